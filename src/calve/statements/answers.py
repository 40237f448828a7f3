"""Results of statements: a line of text, or rows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TextAnswer:
    """A line of text."""

    text: str


@dataclass(frozen=True)
class RowsAnswer:
    """A table of texts."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Outcome = TextAnswer | RowsAnswer
