"""Errors that point at a place in SQL text.

    expected FROM after the name of the sink, got "FORM"
      line 1: CREATE SINK s FORM orders
                            ^^^^
      hint: Did you mean FROM?

`SqlError` serves everybody who finds something wrong with a statement, planning included; `SqlSyntaxError` is the
parser's.
"""

from typing import Self

from calve.errors import InvalidInput
from calve.sql.excerpt import excerpt
from calve.sql.text import Position, Span


class SqlError(InvalidInput):
    """Something is wrong with a statement, at a place. The detail shows the line with a caret below."""

    def __init__(self, primary: str, *, detail: str = "", hint: str = "", position: Position | None = None) -> None:
        super().__init__(primary, detail=detail, hint=hint)
        self.position = position

    @classmethod
    def at(cls, where: Span | None, primary: str, *, hint: str = "") -> Self:
        """An error at a place; without a place (a statement that was built, not read) the text alone."""
        if where is None or not where.source.text:
            return cls(primary, hint=hint)
        return cls(primary, detail=excerpt(where), hint=hint, position=where.position)

    def __str__(self) -> str:
        lines = [self.primary, *(f"  {line}" for line in self.detail.splitlines())]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.primary, self.detail, self.hint, self.position)


def _rebuild(cls: type[SqlError], primary: str, detail: str, hint: str, position: Position | None) -> SqlError:
    return cls(primary, detail=detail, hint=hint, position=position)


class SqlSyntaxError(SqlError):
    """The text is not a statement that calve knows."""
