"""How an option is declared, and how what a statement says is checked against the declarations.

A `Setting` is the one place that knows an option's name, type, default, bounds and a line of documentation.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TypeVar

from calve.errors import InvalidInput
from calve.sql.errors import SqlError
from calve.sql.names import Identifier, quoted_text
from calve.sql.options import Option, Options, SecretLiteral, SecretName
from calve.sql.text import Span
from calve.sql.values import format_duration, format_size, parse_duration, parse_size
from calve.suggest import closest

T = TypeVar("T")


class SettingKind(StrEnum):
    """The type of an option's value, in the words of the reference page."""

    TEXT = "text"
    BOOLEAN = "true or false"
    INTEGER = "whole number"
    NUMBER = "number"
    DURATION = "duration"
    SIZE = "size"
    CHOICE = "choice"
    NAME = "name"
    SECRET = "secret"  # noqa: S105 - the kind, not a secret


Bound = int | timedelta
Typed = str | bool | int | Decimal | timedelta | Identifier | SecretName | SecretLiteral


@dataclass(frozen=True)
class Setting:
    """One option. `default` is for people: a value in SQL, or words."""

    name: str
    kind: SettingKind
    doc: str
    default: str = ""
    low: Bound | None = None
    high: Bound | None = None
    choices: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    """Choices that are planned and refused today; ("*",) refuses the option altogether."""
    required: bool = False
    may_be_empty: bool = False
    """Whether an empty text means something."""

    @property
    def planned(self) -> bool:
        """True for an option that is only announced."""
        return self.later == ("*",)

    @property
    def type_text(self) -> str:
        """The type with its choices and bounds."""
        if self.kind is SettingKind.CHOICE:
            return " | ".join(_choice_text(c) for c in (*self.choices, *self._later_choices))
        low, high = _bound(self.low, self.kind), _bound(self.high, self.kind)
        if low and low == high:
            return low
        if low and high:
            return f"{self.kind.value}, {low} to {high}"
        if low or high:
            return f"{self.kind.value}, at {'least' if low else 'most'} {low or high}"
        return self.kind.value

    @property
    def _later_choices(self) -> tuple[str, ...]:
        return () if self.planned else self.later


@dataclass(frozen=True)
class SettingGroup:
    """The options of one kind of object; `title` says of which."""

    title: str
    settings: tuple[Setting, ...]

    def find(self, name: str) -> Setting | None:
        """The option of this name."""
        return next((s for s in self.settings if s.name == name), None)

    def checked(self, options: Options, where: Span | None) -> "CheckedOptions":
        """Every option known, of its type and within its bounds; `where` is the place of the whole."""
        found: dict[str, tuple[Typed, Option]] = {}
        for option in options:
            setting = self.find(option.name)
            if setting is None:
                raise self.unknown(option.name, option.where)
            found[option.name] = _typed(setting, option), option
        for setting in self.settings:
            if setting.required and setting.name not in found:
                raise SqlError.at(where, f"{self.title} needs the option {setting.name}", hint=setting.doc)
        return CheckedOptions(self, found, where)

    def unknown(self, name: str, where: Span | None) -> SqlError:
        """The error about an option that is none."""
        names = [s.name for s in self.settings]
        found = closest(name, names)
        hint = f"Did you mean {found}?" if found else f"Options are {', '.join(names)}."
        return SqlError.at(where, f"{self.title} has no option {name}", hint=hint)


@dataclass(frozen=True)
class CheckedOptions:
    """The checked options of one statement."""

    group: SettingGroup
    values: dict[str, tuple[Typed, Option]]
    where: Span | None

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def place(self, *names: str) -> Span | None:
        """Where the first of these options stands that is given, else the whole."""
        return next((self.values[n][1].where for n in names if n in self.values), self.where)

    def text(self, name: str) -> str | None:
        """A text or a choice."""
        return self._one(name, str)

    def flag(self, name: str) -> bool | None:
        return self._one(name, bool)

    def integer(self, name: str) -> int | None:
        """A whole number, or a size in bytes."""
        return self._one(name, int)

    def number(self, name: str) -> Decimal | None:
        value = self.values[name][0] if name in self.values else None
        return None if value is None else Decimal(str(value))

    def duration(self, name: str) -> timedelta | None:
        return self._one(name, timedelta)

    def name(self, name: str) -> Identifier | None:
        """The name of an object or a column."""
        return self._one(name, Identifier)

    def secret(self, name: str) -> SecretName | None:
        """A secret by name; literals were stored under a name before anything is planned."""
        return self._one(name, SecretName)

    def _one(self, name: str, kind: type[T]) -> T | None:
        value = self.values[name][0] if name in self.values else None
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{name} is not a {kind.__name__}")
        return value

    def error(self, name: str, primary: str, hint: str = "") -> SqlError:
        """An error about one option."""
        return SqlError.at(self.place(name), primary, hint=hint)

    def exclude(self, one: str, *others: str) -> None:
        """Refuse options that cannot stand together."""
        for other in others:
            if one in self and other in self:
                raise self.error(other, f"{one} and {other} exclude each other", "Leave out one of them.")

    def need(self, one: str, *others: str) -> None:
        """Refuse an option without those it needs."""
        for other in others:
            if one in self and other not in self:
                raise self.error(one, f"{one} needs {other}", f"Add {other} = ...")


def _typed(setting: Setting, option: Option) -> Typed:
    if setting.planned:
        raise SqlError.at(option.where, f"option {setting.name} is not supported yet", hint="Leave it out.")
    value = option.value
    if isinstance(value, bool) and "true" in setting.choices:
        value = str(value).lower()
    if setting.kind is SettingKind.SECRET:
        if isinstance(value, SecretName | SecretLiteral):
            return value
        raise SqlError.at(option.where, f"{setting.name} takes a secret", hint=f"Write {setting.name} = SECRET name.")
    if isinstance(value, SecretName | SecretLiteral):
        raise SqlError.at(option.where, f"{setting.name} takes no secret", hint=f"It takes: {setting.type_text}.")
    try:
        found = _converted(setting, value)
    except InvalidInput as error:
        hint = f"{error.detail} {error.hint}".strip()
        raise SqlError.at(option.value_where, f"{setting.name}: {error.primary}", hint=hint) from error
    if not found and setting.kind is SettingKind.TEXT and not setting.may_be_empty:
        usual = f"Leave it out for the default: {setting.default}." if setting.default else _example(setting)
        raise SqlError.at(option.value_where, f"{setting.name} is empty", hint=usual)
    return _bounded(setting, found, option)


def _converted(setting: Setting, value: Typed) -> Typed:
    kind = setting.kind
    if kind is SettingKind.NAME and isinstance(value, str):
        value = Identifier.exact(value)
    match kind, value:
        case SettingKind.DURATION, str():
            return parse_duration(value)
        case SettingKind.SIZE, str():
            return parse_size(value)
        case SettingKind.CHOICE, str():
            return _choice(setting, value)
        case SettingKind.BOOLEAN, str() if value.lower() in {"true", "false"}:
            return value.lower() == "true"
        case SettingKind.INTEGER, str() if value.isdecimal() and len(value) < 19:
            return int(value)
        case (SettingKind.BOOLEAN, bool()) | (SettingKind.TEXT, str()) | (SettingKind.NAME, Identifier()):
            return value
        case (SettingKind.INTEGER | SettingKind.SIZE, int()) if not isinstance(value, bool):
            return value
        case (SettingKind.NUMBER, int() | Decimal()) if not isinstance(value, bool):
            return value
        case _:
            article = "" if kind is SettingKind.BOOLEAN else "a "
            raise InvalidInput(f"expected {article}{kind.value}", hint=_example(setting))


def _choice_text(choice: str) -> str:
    return choice if choice in {"true", "false"} else quoted_text(choice)


def _example(setting: Setting) -> str:
    examples = {
        SettingKind.DURATION: "'1m 30s'",
        SettingKind.SIZE: "'512MB'",
        SettingKind.BOOLEAN: "true",
        SettingKind.INTEGER: "10",
        SettingKind.NUMBER: "1.5",
        SettingKind.NAME: "name",
        SettingKind.TEXT: "'text'",
    }
    if setting.kind is SettingKind.CHOICE:
        return f"Choices are {', '.join(_choice_text(c) for c in setting.choices)}."
    return f"Write {setting.name} = {examples[setting.kind]}."


def _choice(setting: Setting, value: str) -> str:
    lower = value.lower()
    if lower in setting.choices:
        return lower
    if lower in setting.later:
        raise InvalidInput(f"{quoted_text(lower)} is not supported yet", hint=_example(setting))
    found = closest(lower, setting.choices)
    hint = f"Did you mean {quoted_text(found)}?" if found else _example(setting)
    raise InvalidInput(f"{quoted_text(value)} is none of its choices", hint=hint)


def _bounded(setting: Setting, value: Typed, option: Option) -> Typed:
    low, high = setting.low, setting.high
    amount = value if isinstance(value, int | Decimal | timedelta) else None
    if amount is None:
        return value
    if (low is not None and _below(amount, low)) or (high is not None and _below(high, amount)):
        shown = _bound(amount, setting.kind) if isinstance(amount, int | timedelta) else str(amount)
        raise SqlError.at(
            option.value_where,
            f"{setting.name} is out of range: got {shown}",
            hint=f"It takes: {setting.type_text}.",
        )
    return value


def _below(left: int | Decimal | timedelta, right: int | Decimal | timedelta) -> bool:
    if isinstance(left, timedelta) and isinstance(right, timedelta):
        return left < right
    if isinstance(left, timedelta) or isinstance(right, timedelta):
        raise TypeError("a bound of another type")
    return left < right


def _bound(value: Bound | None, kind: SettingKind) -> str:
    if value is None:
        return ""
    if isinstance(value, timedelta):
        return format_duration(value)
    return format_size(value) if kind is SettingKind.SIZE and value >= 0 else str(value)
