"""Frozen dataclasses that are cheap to declare, for modules that the command line imports before it can answer.

`@dataclass(frozen=True)` compiles six methods for every class, half a millisecond of CPU, and statements, options and
specifications are two hundred classes. `@value` collects the same fields and lets all classes share methods that look
them up. Instances are those of a frozen dataclass: `fields`, `replace`, `asdict`, patterns, pickles, equality, hash and
texts are the same. It has no option but `kw_only`, and no slots. A class that extends a value is a value.
"""

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def value(cls: type[T], /) -> type[T]: ...
@overload
def value(*, kw_only: bool) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T] | None = None, /, *, kw_only: bool = False) -> type[T] | Callable[[type[T]], type[T]]:
    """Make a class a frozen dataclass, whose fields are its annotated attributes."""

    def declare(one: type[T]) -> type[T]:
        return _declare(one, kw_only=kw_only)

    return declare if cls is None else declare(cls)


def _declare(cls: type[T], *, kw_only: bool) -> type[T]:
    declared = dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    own = vars(declared)
    found = fields(declared)  # type: ignore[arg-type] # a dataclass since the line above
    given = {
        "__init__": _init,
        "__repr__": _repr,
        "__eq__": _eq,
        "__setattr__": _setattr,
        "__delattr__": _delattr,
        "__value_places__": tuple(one.name for one in found if one.init and not one.kw_only),
        "__value_inits__": {one.name: one for one in found if one.init},
        "__value_rest__": tuple(one for one in found if not one.init),
        "__value_compared__": _compared([one.name for one in found if one.compare]),
    }
    for name, what in given.items():
        if name not in own:
            setattr(declared, name, what)
    if own.get("__hash__") is None:
        declared.__hash__ = _hash  # type: ignore[method-assign]
    return declared


def _init(self: Any, *args: Any, **kwargs: Any) -> None:
    cls = type(self)
    places, state = cls.__value_places__, vars(self)
    if len(args) > len(places):
        raise TypeError(f"{cls.__name__} takes {len(places)} positional arguments but {len(args)} were given")
    state.update(zip(places, args, strict=False))
    if kwargs:
        for name in kwargs:
            if name in state:
                raise TypeError(f"{cls.__name__} got multiple values for argument {name!r}")
            if name not in cls.__value_inits__:
                raise TypeError(f"{cls.__name__} got an unexpected keyword argument {name!r}")
        state.update(kwargs)
    if len(state) < len(cls.__value_inits__):
        missing = [name for name, one in cls.__value_inits__.items() if name not in state and not _fill(state, one)]
        if missing:
            raise TypeError(f"{cls.__name__} is missing {', '.join(missing)}")
    for one in cls.__value_rest__:
        _fill(state, one)
    if (check := getattr(self, "__post_init__", None)) is not None:
        check()


def _fill(state: dict[str, Any], one: Field[Any]) -> bool:
    """Whether a field has a default, which it then gets."""
    if one.default is not MISSING:
        state[one.name] = one.default
    elif one.default_factory is not MISSING:
        state[one.name] = one.default_factory()
    else:
        return False
    return True


def _compared(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Returns the values of fields as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return staticmethod(lambda self: tuple(getattr(self, name) for name in names))


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: Any) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    if self is other:
        return True
    compared: Callable[[Any], tuple[Any, ...]] = type(self).__value_compared__
    return compared(self) == compared(other)


def _hash(self: Any) -> int:
    return hash(type(self).__value_compared__(self))


def _setattr(self: Any, name: str, _value: object) -> None:  # noqa: ARG001 - the signature of __setattr__
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:  # noqa: ARG001 - the signature of __delattr__
    raise FrozenInstanceError(f"cannot delete field {name!r}")
