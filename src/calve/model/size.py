"""How large a checkpoint probably is: a hint that chooses a writer, never a promise."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SizeHint:
    """Rows and bytes as far as the source knows them before anything is read."""

    rows: int | None = None
    bytes: int | None = None
    """In memory."""
    stored: int | None = None
    """As Parquet, where the rows were kept so before."""


UNKNOWN = SizeHint()
