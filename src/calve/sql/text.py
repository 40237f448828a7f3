"""The text of a script, and places in it.

Lines and columns are computed only when a message needs them.
"""

import re
from bisect import bisect_right
from functools import cached_property

from calve.values import value

_LINE_END = re.compile(r"\r\n|\r|\n")


@value
class TextPosition:
    """A place: line and column from 1, offset from 0."""

    line: int
    column: int
    offset: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


@value
class SqlText:
    """The text of a script."""

    text: str

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in _LINE_END.finditer(self.text))]

    def position(self, offset: int) -> TextPosition:
        """Line and column of an offset."""
        line = bisect_right(self._line_starts, offset)
        return TextPosition(line, offset - self._line_starts[line - 1] + 1, offset)

    def line_bounds(self, line: int) -> tuple[int, int]:
        """Offsets of the start and the end of a line (counted from 1), without its line break."""
        starts = self._line_starts
        if line == len(starts):
            return starts[-1], len(self.text)
        end = starts[line]
        return starts[line - 1], end - (2 if self.text.endswith("\r\n", 0, end) else 1)


@value
class Span:
    """The characters from `start` (inclusive) to `end` (exclusive) of a text."""

    source: SqlText
    start: int
    end: int

    @property
    def position(self) -> TextPosition:
        """Where it starts."""
        return self.source.position(self.start)

    @property
    def text(self) -> str:
        """The characters themselves."""
        return self.source.text[self.start : self.end]

    def __repr__(self) -> str:
        return f"Span({self.position})"

    def __reduce__(self) -> tuple[object, ...]:
        # Spans serve messages of this process. A pickle must not carry the script, which may contain secrets.
        return Span, (SqlText(""), 0, 0)
