"""Text of CSV files, such that no byte of it is lost.

Spark replaces bytes that are not UTF-8 without a word. So its parser is told that files are ISO-8859-1, in which every
byte is one character: it finds the same values, as its delimiters are, and they are decoded afterwards, where a failure
is the problem of one record. Names and options that are compared with text of the file are given in the same form.

Files are left to Spark if the user says how they are encoded, if records span lines (Spark then detects encodings
itself), and if a quote is not ASCII, since it has to be one character.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_OF_THE_USER = frozenset({"encoding", "charset", "multiline"})
_ONE_CHARACTER = frozenset({"quote", "escape", "comment", "chartoescapequoteescaping"})


@dataclass(frozen=True)
class CsvText:
    """How a CSV parser sees text. Pickled into tasks."""

    bytewise: bool
    """Whether its characters are the bytes of the file."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "CsvText":
        """By the options of Spark's reader."""
        given = {name.lower(): str(value) for name, value in options.items()}
        plain = all(value.isascii() for name, value in given.items() if name in _ONE_CHARACTER)
        return cls(plain and not _OF_THE_USER & given.keys())

    def options(self, options: Mapping[str, str]) -> dict[str, str]:
        """The options for the parser."""
        if not self.bytewise:
            return dict(options)
        return {name: self.seen(str(value)) for name, value in options.items()} | {"encoding": "ISO-8859-1"}

    def seen(self, text: str) -> str:
        """A text as the parser sees it."""
        return text.encode().decode("latin-1") if self.bytewise else text

    def text(self, seen: str) -> str:
        """The text of what the parser found. Raises UnicodeDecodeError."""
        return seen if not self.bytewise or seen.isascii() else seen.encode("latin-1").decode()

    def seen_of(self, data: bytes) -> str:
        """Bytes as the parser sees them. Raises UnicodeDecodeError."""
        return data.decode("latin-1" if self.bytewise else "utf-8")

    def data(self, seen: str) -> bytes:
        """The bytes of what the parser found."""
        return seen.encode("latin-1" if self.bytewise else "utf-8")
