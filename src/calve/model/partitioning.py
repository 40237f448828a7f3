"""How a table is to be partitioned, as a sink says it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PartitionBy:
    """One partition field. `transform` is Iceberg's name of it without the width: identity, bucket, day, ..."""

    transform: str
    column: tuple[str, ...]
    """The column's name; more than one for a field inside of a struct."""
    width: int | None = None
    """The number of buckets, or the width of truncation."""

    def __str__(self) -> str:
        column = ".".join(self.column)
        if self.transform == "identity":
            return column
        width = "" if self.width is None else f"{self.width}, "
        return f"{self.transform}({width}{column})"
