"""What a statement answers: a line of text, or rows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    """A line for people."""

    text: str


@dataclass(frozen=True)
class Rows:
    """A table of texts."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Outcome = Message | Rows
