"""What a table holds before a new sink writes to it."""

from dataclasses import dataclass
from typing import Self

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from calve.catalog.failures import trying
from calve.iceberg.snapshots import has_data, head_of
from calve.model.spec import TableName


@dataclass(frozen=True)
class Occupied:
    """A table that exists, seen from one of its branches."""

    written: bool
    """Whether the branch has a snapshot, or will begin at one of main."""
    rows: bool
    """False only when no row can be there."""
    format_version: int

    @classmethod
    def of(cls, catalog: Catalog, name: TableName, branch: str) -> Self | None:
        """The table as it is now, None when it does not exist. Raises TransientError."""
        with trying(f'loading table "{name}"'):
            try:
                metadata = catalog.load_table(name.identifier).metadata
            except NoSuchTableError:
                return None
        head = head_of(metadata, branch)
        return cls(head is not None, has_data(head), metadata.format_version)
