"""Options: `NAME = value` pairs in parentheses, with names of several words, in any order.

Statements with the same options in another order are equal and print the same text. A literal that must not be shown (a
password, a key) is a `SecretLiteral` as soon as it is parsed: it prints as `<hidden>`, which the parser refuses with a
clear message, and only `reveal()` returns its text.
"""

from collections.abc import Iterable, Iterator
from dataclasses import field
from decimal import Decimal
from itertools import pairwise

from calve.errors import InvalidInput
from calve.sql.names import Clause, Identifier, Listed, quoted_text
from calve.sql.text import Span
from calve.values import value

HIDDEN = "<hidden>"

_SENSITIVE_ANYWHERE = frozenset({"PASSPHRASE", "PASSWORD", "SECRET"})
_SENSITIVE_AT_END = frozenset({"CREDENTIAL", "CREDENTIALS", "KEY", "TOKEN"})
_REFERENCES = frozenset({"COLUMN", "CONNECTION"})


def is_sensitive(name: str) -> bool:
    """Whether an option's literal must not be shown, by the words of its name (SECRET ACCESS KEY, SASL PASSWORD)."""
    words = name.split(" ")
    return words[-1] in _SENSITIVE_AT_END or not _SENSITIVE_ANYWHERE.isdisjoint(words)


def is_reference(name: str) -> bool:
    """Whether an option refers to an object or column (AWS CONNECTION, TIME COLUMN): its value is an identifier."""
    return name.rpartition(" ")[2] in _REFERENCES and not is_sensitive(name)


class SecretLiteral:
    """A text that compares like any other and is never shown."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, only for code that stores or uses it."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretLiteral) and other._text == self._text

    def __hash__(self) -> int:
        return hash((SecretLiteral, self._text))

    def __repr__(self) -> str:
        return f"SecretLiteral({HIDDEN})"

    def to_sql(self, *, reveal: bool = False) -> str:
        return quoted_text(self._text) if reveal else HIDDEN


@value
class SecretName:
    """`SECRET name`: the value is resolved when it is used."""

    name: Identifier

    def to_sql(self) -> str:
        return f"SECRET {self.name.to_sql()}"


Value = str | bool | int | Decimal | Identifier | SecretName | SecretLiteral


def value_to_sql(value: Value, *, reveal: bool = False) -> str:
    """An option's value as SQL."""
    match value:
        case SecretLiteral():
            return value.to_sql(reveal=reveal)
        case SecretName() | Identifier():
            return value.to_sql()
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case Decimal():
            return format(value, "f")
        case str():
            return quoted_text(value)


@value
class Option:
    """One option. The name is in capitals, its words one space apart."""

    name: str
    value: Value
    where: Span | None = field(default=None, compare=False, repr=False)
    value_where: Span | None = field(default=None, compare=False, repr=False)

    def to_sql(self, *, reveal: bool = False) -> str:
        return f"{self.name} = {value_to_sql(self.value, reveal=reveal)}"


@value
class Options:
    """Options by name: sorted, each at most once."""

    entries: tuple[Option, ...] = ()

    def __post_init__(self) -> None:
        entries = tuple(sorted(self.entries, key=lambda option: option.name))
        for left, right in pairwise(entries):
            if left.name == right.name:
                raise InvalidInput(f"option {left.name} is given twice")
        object.__setattr__(self, "entries", entries)

    def __iter__(self) -> Iterator[Option]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def find(self, name: str) -> Option | None:
        """The option of this name, if it is given."""
        return next((option for option in self.entries if option.name == name), None)

    def value(self, name: str) -> Value | None:
        """The value of this option, if it is given."""
        option = self.find(name)
        return None if option is None else option.value

    def updated(self, other: "Options") -> "Options":
        """These options, with those of `other` added or replaced."""
        kept = tuple(option for option in self.entries if other.find(option.name) is None)
        return Options(kept + other.entries)

    def without(self, names: Iterable[str]) -> "Options":
        """These options without the named ones."""
        dropped = set(names)
        return Options(tuple(option for option in self.entries if option.name not in dropped))

    def items(self, *, reveal: bool = False) -> tuple[str, ...]:
        """Each option as SQL."""
        return tuple(option.to_sql(reveal=reveal) for option in self.entries)

    def to_sql(self, *, reveal: bool = False) -> str:
        return f"({', '.join(self.items(reveal=reveal))})"


NO_OPTIONS = Options()


def with_options(options: Options, *, reveal: bool) -> list[Clause]:
    """The clause WITH, unless it is empty."""
    return [Listed("WITH", options.items(reveal=reveal))] if options else []


@value
class OptionName:
    """The name of an option without a value, for RESET."""

    text: str
    where: Span | None = field(default=None, compare=False, repr=False)
