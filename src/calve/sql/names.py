"""Names, and how names and texts are written in SQL.

An identifier keeps the case it was written in. Written in double quotes it matches exactly, otherwise without case.
"""

import re
from dataclasses import dataclass, field

from calve.errors import InvalidInput
from calve.sql.text import Span

RESERVED = frozenset(
    {
        *("ALTER", "AND", "AS", "CREATE", "DROP", "FALSE", "FROM", "IF", "INTO", "NOT", "NULL"),
        *("OR", "SELECT", "TO", "TRUE", "USING", "WHERE", "WITH"),
    }
)
"""Words that are a name only in double quotes: without them a forgotten name would swallow the clause after it."""

_PLAIN = re.compile(r"[^\W\d]\w*")


def is_plain(name: str) -> bool:
    """Whether a name can be written without quotes."""
    return _PLAIN.fullmatch(name) is not None and name.upper() not in RESERVED


def quoted_name(name: str) -> str:
    """A name in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    """A string literal."""
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True)
class Identifier:
    """The name of an object, a column or a field of a record."""

    name: str
    quoted: bool = False
    where: Span | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidInput("a name is empty")
        if not self.quoted and not is_plain(self.name):
            raise InvalidInput(f'"{self.name}" is a name only in double quotes')

    @classmethod
    def exact(cls, name: str) -> "Identifier":
        """The identifier that matches this name and no other."""
        return cls(name, quoted=True)

    def matches(self, name: str) -> bool:
        """Whether this identifier, as it was written, names the thing that has this name."""
        return self.name == name if self.quoted else self.name.lower() == name.lower()

    def collides(self, other: "Identifier") -> bool:
        """Whether one of two identifiers names what the other one does."""
        return self.matches(other.name) or other.matches(self.name)

    def to_sql(self) -> str:
        return quoted_name(self.name) if self.quoted else self.name

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class FieldPath:
    """A column, or a field inside of one: `source.lsn`."""

    parts: tuple[Identifier, ...]

    @property
    def where(self) -> Span | None:
        """From the first part to the last one."""
        first, last = self.parts[0].where, self.parts[-1].where
        return Span(first.source, first.start, last.end) if first and last else None

    def to_sql(self) -> str:
        return ".".join(part.to_sql() for part in self.parts)

    def __str__(self) -> str:
        return ".".join(part.name for part in self.parts)


def in_parentheses(items: tuple[Identifier, ...] | tuple[FieldPath, ...]) -> str:
    """A list of names, as clauses write it."""
    return "(" + ", ".join(item.to_sql() for item in items) + ")"
