"""Names, and how names and texts are written in SQL.

An identifier keeps its case. In double quotes it matches exactly, otherwise case-insensitively. `one_line` and
`many_lines` print the clauses of a statement.
"""

import re
from dataclasses import field

from calve.errors import InvalidInput
from calve.sql.text import Span
from calve.values import value

RESERVED = frozenset(
    {
        *("ALTER", "AND", "AS", "CREATE", "DROP", "FALSE", "FROM", "IF", "INTO", "NOT", "NULL"),
        *("OR", "SELECT", "TO", "TRUE", "USING", "WHERE", "WITH"),
    }
)
"""Words that are names only in double quotes: otherwise a forgotten name would swallow the clause after it."""

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


@value
class Identifier:
    """The name of an object, a column or a field of a record."""

    name: str
    quoted: bool = False
    where: Span | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidInput("a name is empty")
        if not self.quoted and not is_plain(self.name):
            raise InvalidInput(f'"{self.name}" must be in double quotes to be a name')

    @classmethod
    def exact(cls, name: str) -> "Identifier":
        """The identifier that matches this name and no other."""
        return cls(name, quoted=True)

    @classmethod
    def shortest(cls, name: str) -> "Identifier":
        """The identifier of this name, in quotes only if it needs them."""
        return cls(name, quoted=not is_plain(name))

    def matches(self, name: str) -> bool:
        """Whether this identifier refers to the object with this name."""
        return self.name == name if self.quoted else self.name.lower() == name.lower()

    def collides(self, other: "Identifier") -> bool:
        """Whether one of two identifiers also refers to the other's object."""
        return self.matches(other.name) or other.matches(self.name)

    def to_sql(self) -> str:
        return quoted_name(self.name) if self.quoted else self.name

    def __str__(self) -> str:
        return self.name


@value
class FieldPath:
    """A column, or a field inside a column: `source.lsn`."""

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


_NARROW = 80
_WIDE = 100


@value
class Listed:
    """A clause that ends with a list: `head (item, item)`."""

    head: str
    items: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.head} ({', '.join(self.items)})"


Clause = str | Listed


def one_line(clauses: list[Clause]) -> str:
    """The canonical text."""
    return " ".join(str(clause) for clause in clauses)


def many_lines(clauses: list[Clause]) -> str:
    """The same text with one line per clause unless the statement is short, and one per item of a long list."""
    short = one_line(clauses)
    if len(short) <= _NARROW and "\n" not in short:
        return short
    first, *rest = clauses
    return "\n  ".join([_lay_out(first, ""), *(_lay_out(clause, "  ") for clause in rest)])


def _lay_out(clause: Clause, indent: str) -> str:
    text = str(clause)
    if isinstance(clause, str) or len(indent) + len(text) <= _WIDE:
        return text
    items = "".join(f"\n{indent}  {item}," for item in clause.items).removesuffix(",")
    return f"{clause.head} ({items}\n{indent})"
