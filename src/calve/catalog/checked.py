"""Checks before a commit is sent, for catalogs whose metadata this process swaps (SQL, Hive, Glue).

The requirements of a commit are checked here, against metadata that was just loaded. If they do not hold, the request
is never sent: unlike a response of the catalog that is certain, so it has a class of its own.
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
    """A commit no longer applies to the table. This process found that out before it sent a request."""


class Checked(_Base):
    """Mixin before a pyiceberg catalog that keeps metadata files."""

    def _update_and_stage_table(self, *arguments: Any, **named: Any) -> StagedTable:
        try:
            return super()._update_and_stage_table(*arguments, **named)
        except (CommitFailedException, ValueError) as error:
            raise NotSent(str(error)) from error
