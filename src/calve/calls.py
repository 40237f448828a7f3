"""Calls by users: arguments that are unknown, missing or of a wrong type are refused with what was meant.

Python raises TypeError for some of them, without the names that there are; `**options` with declared names takes any
name; and a wrong type fails far from the call, or not at all. `@for_users` is for functions, methods and envelopes that
users call. It checks arguments that are declared as a string, a number or a bool; others check themselves.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import Parameter, signature
from numbers import Number
from types import NoneType, UnionType
from typing import Any, TypeVar, Unpack, cast, get_args, get_origin

from calve.errors import InvalidInput
from calve.suggest import closest, did_you_mean, suggestion

Called = TypeVar("Called", bound=Callable[..., Any])

_KINDS: Mapping[type, tuple[type, str]] = {
    str: (str, "a string"),
    bool: (bool, "True or False"),
    int: (Number, "a number"),
    float: (Number, "a number"),
}
"""Declared types that are checked: what is accepted for each, and how it is called."""
_BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_MANY = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def for_users(called: Called) -> Called:
    """Check the arguments of a function or a method, or those that make an instance of a class."""
    if isinstance(called, type):
        called.__init__ = _checked(called.__init__, f"calve.{called.__name__}")  # type: ignore[misc]
        return called
    name = called.__qualname__
    return _checked(called, name if "." in name else f"calve.{name}")


def check_mapping(name: str, given: object) -> None:
    """Refuse anything but a mapping of names to strings, or None. Values may be secrets and are not shown."""
    texts = isinstance(given, Mapping) and all(isinstance(one, str) for pair in given.items() for one in pair)
    if given is not None and not texts:
        raise InvalidInput(f"{name} must be a mapping of names to strings", hint=f'Write {name}={{"name": "value"}}.')


def _checked(called: Called, label: str) -> Called:
    declared = called.__annotations__
    options = next((set(get_args(one)[0].__annotations__) for one in declared.values() if _is_unpacked(one)), None)
    kinds = {name: kind for name, one in declared.items() if (kind := _kind(one)) and name != "return"}
    code = called.__code__ if hasattr(called, "__code__") else None
    places = code.co_varnames[: code.co_argcount] if code else ()

    @wraps(called)
    def call(*args: Any, **given: Any) -> Any:
        for name, argument in (*zip(places, args, strict=False), *given.items()):
            kind = kinds.get(name)
            if kind is not None and not (isinstance(argument, kind[0]) or (argument is None and kind[2])):
                raise _wrong_type(f"{label}: {name} must be {kind[1]}", name, argument)
        try:
            if options is not None:
                _check_options(called, label, given, options)
            return called(*args, **given)
        except TypeError:
            problem = _problem(called, label, args, given)
            if problem is None:
                raise  # not of this call, but of something inside
        raise problem

    return cast("Called", call)


def _wrong_type(primary: str, name: str, given: object) -> InvalidInput:
    texts = isinstance(given, list | tuple) and all(isinstance(one, str) for one in given)
    hint = f'Write {name}="{", ".join(given)}".' if texts and "string" in primary else ""  # type: ignore[arg-type]
    return InvalidInput(primary, detail=f"Got {given!r}.", hint=hint)


def _is_unpacked(declared: object) -> bool:
    return get_origin(declared) is Unpack


def _kind(declared: object) -> tuple[type, str, bool] | None:
    """What is accepted for a declared type, how it is called, and whether None is accepted; None: not checked here."""
    union = isinstance(declared, UnionType)
    kinds = [one for one in get_args(declared) if one is not NoneType] if union else [declared]
    if len(kinds) != 1 or kinds[0] not in _KINDS:
        return None
    return (*_KINDS[cast("type", kinds[0])], union)


def _check_options(called: Callable[..., Any], label: str, given: Iterable[str], options: set[str]) -> None:
    named = [one.name for one in _named(called)]
    for name in given:
        if name not in options and name not in named:
            raise _unknown(label, name, [*named, *sorted(options)])


def _named(called: Callable[..., Any]) -> list[Parameter]:
    return [one for one in signature(called).parameters.values() if one.name != "self" and one.kind not in _MANY]


def _problem(
    called: Callable[..., Any], label: str, args: tuple[Any, ...], given: Mapping[str, Any]
) -> InvalidInput | None:
    """Why a function cannot be called like this; None if it can."""
    parameters = signature(called).parameters
    try:
        signature(called).bind(*args, **given)
    except TypeError as error:
        named = _named(called)
        names = [one.name for one in named]
        unknown = [name for name in given if name not in names]
        if unknown and not any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values()):
            return _unknown(label, unknown[0], names)
        first = 1 if "self" in parameters else 0
        places = [one.name for one in named if one.kind in _BY_PLACE]
        if len(args) - first > len(places):
            return InvalidInput(
                f"{label} takes {len(places)} arguments by position",
                detail=f"Got {len(args) - first}.",
                hint=f"By name it takes {', '.join(others)}." if (others := names[len(places) :]) else "",
            )
        filled = {*places[: len(args) - first], *given}
        missing = [one.name for one in named if one.default is Parameter.empty and one.name not in filled]
        if missing:
            meant = closest(missing[0], unknown)
            hint = did_you_mean(f'"{missing[0]}" instead of "{meant}"' if meant else None, f"Give {missing[0]}=....")
            return InvalidInput(f'{label} needs the argument "{missing[0]}"', hint=hint)
        return InvalidInput(f"{label} cannot be called like this", detail=f"{error}.")
    return None


def _unknown(label: str, name: str, known: Iterable[str]) -> InvalidInput:
    names = list(known)
    return InvalidInput(
        f'{label} has no argument "{name}"',
        detail=f"Expected one of: {', '.join(names)}." if names else "It has none.",
        hint=suggestion(name, names),
    )
