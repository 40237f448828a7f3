"""Catalogs whose swap of metadata is made by this process (SQL, Hive, Glue): what they find before they send anything.

What a change requires of a table is checked here, against metadata that was just loaded. If it does not hold, the
request is never sent: that is certain, unlike an answer of the catalog, and has a class of its own.
"""

from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import StagedTable

if TYPE_CHECKING:
    _Base = MetastoreCatalog
else:
    _Base = object


class NotSent(CommitFailedException):
    """A commit does not fit the table any more. This process found it, before any catalog was asked."""


class Checked(_Base):
    """Goes before a catalog of pyiceberg that keeps metadata files."""

    def _update_and_stage_table(self, *arguments: Any, **named: Any) -> StagedTable:
        try:
            return super()._update_and_stage_table(*arguments, **named)
        except (CommitFailedException, ValueError) as error:
            raise NotSent(str(error)) from error
