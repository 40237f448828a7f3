"""How options are declared, and how the options of a statement are checked against their declarations.

A `Setting` is the only place that states an option's name, type, bounds, default and documentation. Code reads an
option through its declaration, `given.get(SinkOptions.COMMIT_INTERVAL)`: the value has the declared type, and a
misspelt option does not pass the type checker.
"""

from collections.abc import Iterator
from dataclasses import field
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, Generic, TypeVar, overload

from calve.errors import InvalidInput
from calve.model.numbers import whole_number
from calve.sql.errors import SqlError
from calve.sql.names import Identifier, quoted_text
from calve.sql.options import Option, Options, SecretLiteral, SecretName
from calve.sql.text import Span
from calve.sql.values import format_duration, format_size, parse_duration, parse_size
from calve.suggest import closest, did_you_mean
from calve.values import value

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


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


@value
class Setting(Generic[T]):
    """One option, declared as an attribute of a class: `COMMIT_INTERVAL` declares the option COMMIT INTERVAL.

    `default` is for people: a value in SQL, or words.
    """

    kind: SettingKind
    value_type: type[T]
    doc: str
    default: str = ""
    low: Bound | None = None
    high: Bound | None = None
    choices: tuple[str, ...] = ()
    required: bool = False
    may_be_empty: bool = False
    """Whether an empty text is a valid value."""
    attribute: str = field(default="", init=False)

    def __set_name__(self, owner: type, name: str) -> None:
        object.__setattr__(self, "attribute", name)

    @property
    def name(self) -> str:
        """The name in SQL."""
        return self.attribute.replace("_", " ")

    @property
    def keyword(self) -> str:
        """The name in Python."""
        return self.attribute.lower()

    @property
    def type_text(self) -> str:
        """The type with its choices and bounds."""
        if self.kind is SettingKind.CHOICE:
            return " | ".join(_choice_text(c) for c in self.choices)
        low, high = _bound(self.low, self.kind), _bound(self.high, self.kind)
        if low and low == high:
            return low
        if low and high:
            return f"{self.kind.value}, {low} to {high}"
        if low or high:
            return f"{self.kind.value}, at {'least' if low else 'most'} {low or high}"
        return self.kind.value


AnySetting = Setting[Any]


def text(doc: str, *, default: str = "", required: bool = False, may_be_empty: bool = False) -> Setting[str]:
    """An option that takes a text."""
    return Setting(SettingKind.TEXT, str, doc, default, required=required, may_be_empty=may_be_empty)


def boolean(doc: str, *, default: str) -> Setting[bool]:
    """An option that takes true or false."""
    return Setting(SettingKind.BOOLEAN, bool, doc, default)


def integer(doc: str, *, default: str, low: int, high: int | None = None) -> Setting[int]:
    """An option that takes a whole number."""
    return Setting(SettingKind.INTEGER, int, doc, default, low, high)


def number(doc: str, *, default: str, low: int, high: int | None = None) -> Setting[Decimal]:
    """An option that takes a number, which may have decimals."""
    return Setting(SettingKind.NUMBER, Decimal, doc, default, low, high)


def duration(doc: str, *, default: str, low: timedelta) -> Setting[timedelta]:
    """An option that takes a duration."""
    return Setting(SettingKind.DURATION, timedelta, doc, default, low)


def size(doc: str, *, default: str = "", low: int, high: int | None = None) -> Setting[int]:
    """An option that takes a number of bytes, or a text such as '512MB'."""
    return Setting(SettingKind.SIZE, int, doc, default, low, high)


def choice(doc: str, choices: type[E], *, default: str = "") -> Setting[E]:
    """An option that takes one value of an enumeration."""
    return Setting(SettingKind.CHOICE, choices, doc, default, choices=tuple(one.value for one in choices))


def word(doc: str, *choices: str, default: str = "", required: bool = False) -> Setting[str]:
    """An option that takes one of these words."""
    return Setting(SettingKind.CHOICE, str, doc, default, choices=choices, required=required)


def name(doc: str, *, default: str = "") -> Setting[Identifier]:
    """An option that names an object or a column."""
    return Setting(SettingKind.NAME, Identifier, doc, default)


def secret(doc: str) -> Setting[SecretName]:
    """An option that takes a secret."""
    return Setting(SettingKind.SECRET, SecretName, doc)


class SettingGroup:
    """The options of one kind of object, declared by the attributes of a class; `title` names the kind."""

    def __init__(self, title: str, declarations: type) -> None:
        self.title = title
        self.settings: tuple[AnySetting, ...] = tuple(
            declared for declared in vars(declarations).values() if isinstance(declared, Setting)
        )

    def find(self, name: str) -> AnySetting | None:
        """The option of this name."""
        return next((s for s in self.settings if s.name == name), None)

    def check(self, options: Options, where: Span | None) -> "CheckedOptions":
        """Check that each option is known, typed and within bounds. `where` is the place of the statement."""
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
        """The error for an option that this kind of object does not have."""
        names = [s.name for s in self.settings]
        hint = did_you_mean(closest(name, names), f"Options are {', '.join(names)}.")
        return SqlError.at(where, f"{self.title} has no option {name}", hint=hint)


@value
class CheckedOptions:
    """The checked options of one statement. Raises TypeError when asked for an option of another group."""

    group: SettingGroup
    values: dict[str, tuple[Typed, Option]]
    where: Span | None

    def __contains__(self, setting: AnySetting) -> bool:
        return self._given(setting) is not None

    def __iter__(self) -> Iterator[AnySetting]:
        return (setting for name in self.values if (setting := self.group.find(name)) is not None)

    @overload
    def get(self, setting: Setting[T]) -> T | None: ...

    @overload
    def get(self, setting: Setting[T], default: T) -> T: ...

    def get(self, setting: Setting[T], default: T | None = None) -> T | None:
        """The value of an option, or the default. Literal secrets were stored under a name before planning."""
        given = self._given(setting)
        if given is None:
            return default
        value, _ = given
        if not isinstance(value, setting.value_type):
            raise TypeError(f"{setting.name} is not a {setting.value_type.__name__}")
        return value

    def required(self, setting: Setting[T]) -> T:
        """The value of an option that is declared as required."""
        value = self.get(setting)
        if value is None:
            raise TypeError(f"{setting.name} is not declared as required")
        return value

    def error(self, setting: AnySetting, primary: str, hint: str = "") -> SqlError:
        """An error at the place of one option, or of the whole statement if the option is not given."""
        given = self._given(setting)
        return SqlError.at(self.where if given is None else given[1].where, primary, hint=hint)

    def exclude(self, one: AnySetting, *others: AnySetting) -> None:
        """Refuse options that exclude each other."""
        for other in others:
            if one in self and other in self:
                raise self.error(other, f"{one.name} and {other.name} exclude each other", "Leave out one of them.")

    def need(self, one: AnySetting, *others: AnySetting) -> None:
        """Refuse an option without those that it needs."""
        for other in others:
            if one in self and other not in self:
                raise self.error(one, f"{one.name} needs {other.name}", f"Add {other.name} = ...")

    def _given(self, setting: AnySetting) -> tuple[Typed, Option] | None:
        if self.group.find(setting.name) is not setting:
            raise TypeError(f"{setting.name} is not declared for {self.group.title}")
        return self.values.get(setting.name)


def _typed(setting: AnySetting, option: Option) -> Typed:
    value = option.value
    if isinstance(value, bool) and "true" in setting.choices:
        value = str(value).lower()
    if setting.kind is SettingKind.SECRET:
        if isinstance(value, SecretName | SecretLiteral):
            return value
        raise SqlError.at(option.where, f"{setting.name} takes a secret", hint=f"Write {setting.name} = SECRET name.")
    if isinstance(value, SecretName | SecretLiteral):
        raise SqlError.at(
            option.where, f"{setting.name} does not take a secret", hint=f"It takes: {setting.type_text}."
        )
    try:
        found = _convert(setting, value)
    except InvalidInput as error:
        hint = f"{error.detail} {error.hint}".strip()
        raise SqlError.at(option.value_where, f"{setting.name}: {error.primary}", hint=hint) from error
    if not found and setting.kind is SettingKind.TEXT and not setting.may_be_empty:
        hint = f"Leave it out for the default: {setting.default}." if setting.default else _example(setting)
        raise SqlError.at(option.value_where, f"{setting.name} is empty", hint=hint)
    return _check_bounds(setting, found, option)


def _convert(setting: AnySetting, value: Typed) -> Typed:
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
        case SettingKind.INTEGER, str() if (number := whole_number(value)) is not None:
            return number
        case (SettingKind.BOOLEAN, bool()) | (SettingKind.TEXT, str()) | (SettingKind.NAME, Identifier()):
            return value
        case (SettingKind.INTEGER | SettingKind.SIZE, int()) if not isinstance(value, bool):
            return value
        case (SettingKind.NUMBER, int() | Decimal()) if not isinstance(value, bool):
            return Decimal(value)
        case _:
            article = "" if kind is SettingKind.BOOLEAN else "a "
            raise InvalidInput(f"expected {article}{kind.value}", hint=_example(setting))


def _choice_text(choice: str) -> str:
    return choice if choice in {"true", "false"} else quoted_text(choice)


def _example(setting: AnySetting) -> str:
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
        return f"Expected one of {', '.join(_choice_text(c) for c in setting.choices)}."
    return f"Write {setting.name} = {examples[setting.kind]}."


def _choice(setting: AnySetting, value: str) -> str:
    lower = value.lower()
    if lower in setting.choices:
        chosen: str = setting.value_type(lower)
        return chosen
    found = closest(lower, setting.choices)
    hint = did_you_mean(quoted_text(found) if found else None, _example(setting))
    raise InvalidInput(f"invalid value {quoted_text(value)}", hint=hint)


def _check_bounds(setting: AnySetting, value: Typed, option: Option) -> Typed:
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
