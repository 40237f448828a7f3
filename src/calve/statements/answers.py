"""Results of statements: a line of text, rows of texts, or typed rows of a query."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from calve.values import value

if TYPE_CHECKING:
    import pyarrow as pa


@value
class TextAnswer:
    """A line of text."""

    text: str


@value
class RowsAnswer:
    """A table of texts."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@value
class PlainColumn:
    """A column whose values are plain values of Python: no lists, structs or maps."""

    name: str
    is_number: bool


@value
class PlainRows:
    """Rows of plain values, all of them here."""

    columns: tuple[PlainColumn, ...]
    lines: tuple[tuple[Any, ...], ...]

    def values(self, limit: int | None = None) -> Iterator[tuple[Any, ...]]:
        """The rows, at most `limit`."""
        yield from self.lines[:limit]


class TypedRows(Protocol):
    """Rows with types, brought to this process on demand: of tables, their changes, folders and queries."""

    @property
    def schema(self) -> "pa.Schema":
        """The schema of the rows."""
        ...

    def rows(self, limit: int | None = None) -> "Iterator[pa.RecordBatch]":
        """The rows, at most `limit`."""
        ...


@value
class QueryAnswer:
    """The rows of a query."""

    found: TypedRows | PlainRows


Outcome = TextAnswer | RowsAnswer | QueryAnswer
