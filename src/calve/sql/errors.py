"""Errors that point at a place in SQL text.

    expected FROM after the name of the sink, got "FORM"
      line 1: CREATE SINK s FORM orders
                            ^^^^
      hint: Did you mean FROM?

Any check of a statement, planning included, raises `SqlError`; the parser raises `SqlSyntaxError`. The excerpt shows
`<hidden>` in place of secrets.
"""

import unicodedata
from typing import Self

from calve.errors import InvalidInput
from calve.sql.hiding import hidden_ranges
from calve.sql.options import HIDDEN
from calve.sql.text import Span, TextPosition

_WIDTH = 100
"""Columns of an excerpt; a longer line is clipped around the place."""


def excerpt(where: Span) -> str:
    """`line 3: the text` and, on a second line, carets below the place."""
    position = where.position
    start, end = where.source.line_bounds(position.line)
    cells = _cells(where, start, end)
    marked = [
        index for index, (_, offset) in enumerate(cells) if where.start <= offset < max(where.end, where.start + 1)
    ]
    first, last = (marked[0], marked[-1] + 1) if marked else (len(cells), len(cells) + 1)
    low, high = _window(len(cells), first, last)
    shown = "".join(text for text, _ in cells[low:high])
    label = f"line {position.line}: " + ("…" if low else "")
    before = sum(_width(text) for text, _ in cells[low:first])
    carets = max(1, sum(_width(text) for text, _ in cells[first : min(last, high)]))
    below = " " * (len(label) + before) + "^" * carets
    return f"{label}{shown}{'…' if high < len(cells) else ''}\n{below}"


def _window(length: int, first: int, last: int) -> tuple[int, int]:
    """Which cells to show: all of them, or as many as fit with the place inside."""
    if length <= _WIDTH:
        return 0, length
    low = max(0, min(first - _WIDTH // 3, length - _WIDTH))
    return low, max(low + _WIDTH, min(last, first + _WIDTH // 2))


def _cells(where: Span, start: int, end: int) -> list[tuple[str, int]]:
    """The characters of a line with their offsets; a hidden range has one cell per character of its replacement."""
    hidden = hidden_ranges(where.source, end)
    cells: list[tuple[str, int]] = []
    offset = start
    for low, high in [*hidden, (end, end)]:
        cut_low, cut_high = max(low, offset), min(high, end)
        cells.extend((_visible(where.source.text[at]), at) for at in range(offset, min(cut_low, end)))
        if cut_low < cut_high:
            # The carets mark the whole replacement if the place is anywhere inside it.
            inside = where.start if cut_low <= where.start < cut_high else cut_low
            cells.extend((char, inside) for char in HIDDEN)
        offset = max(offset, cut_high)
    return cells


def _visible(char: str) -> str:
    return char if char.isprintable() else " "


def _width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


class SqlError(InvalidInput):
    """An error at a place in a statement. The detail shows the line with a caret below."""

    def __init__(self, primary: str, *, detail: str = "", hint: str = "", position: TextPosition | None = None) -> None:
        super().__init__(primary, detail=detail, hint=hint)
        self.position = position

    @classmethod
    def at(cls, where: Span | None, primary: str, *, hint: str = "") -> Self:
        """An error at a place; without a place (a statement that was built, not parsed), the text alone."""
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


def _rebuild(cls: type[SqlError], primary: str, detail: str, hint: str, position: TextPosition | None) -> SqlError:
    return cls(primary, detail=detail, hint=hint, position=position)


class SqlSyntaxError(SqlError):
    """The text is not a statement that calve knows."""
