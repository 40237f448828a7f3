"""The text that was written, and places in it.

Lines and columns are computed when a message needs them: places that nobody looks at cost nothing.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class TextPosition:
    """A place as people count it: line and column from 1, offset from 0."""

    line: int
    column: int
    offset: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


@dataclass(frozen=True)
class SqlText:
    """A script, as it was written."""

    text: str

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in _LINE_END.finditer(self.text))]

    def position(self, offset: int) -> TextPosition:
        """Line and column of an offset."""
        line = bisect_right(self._line_starts, offset)
        return TextPosition(line, offset - self._line_starts[line - 1] + 1, offset)

    def line_bounds(self, line: int) -> tuple[int, int]:
        """Offsets of the first character of a line (counted from 1) and after its last one, without the line's end."""
        starts = self._line_starts
        if line == len(starts):
            return starts[-1], len(self.text)
        end = starts[line]
        return starts[line - 1], end - (2 if self.text.endswith("\r\n", 0, end) else 1)


@dataclass(frozen=True)
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
        # A span serves messages of this process. What leaves it must not carry a script, which may hold secrets.
        return Span, (SqlText(""), 0, 0)
