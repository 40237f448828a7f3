"""A value behaves as a frozen dataclass does."""

import pickle
from copy import copy, deepcopy
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, cast

import pytest

from calve.values import value


@value
class Point:
    """A value with every kind of field."""

    x: int
    y: int = 2
    names: tuple[str, ...] = ()
    tags: list[str] = field(default_factory=list)
    note: str | None = field(default=None, compare=False, repr=False)
    seen: str = field(default="never", init=False)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x is negative")


@dataclass(frozen=True)
class Reference:
    """The same, by the standard library."""

    x: int
    y: int = 2
    names: tuple[str, ...] = ()
    tags: list[str] = field(default_factory=list)
    note: str | None = field(default=None, compare=False, repr=False)
    seen: str = field(default="never", init=False)


@value(kw_only=True)
class Base:
    """A value with keywords only, to be extended."""

    place: int = 0


@value(kw_only=True)
class Extended(Base):
    """Has a field without a default after one with a default."""

    name: str


@value
class Shown:
    """Has its own text, hash and equality."""

    name: str

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shown) and self.name.lower() == other.name.lower()

    def __hash__(self) -> int:
        return hash(self.name.lower())


ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, 3), {"names": ("a",)}),
    ((), {"x": 1, "note": "n"}),
    ((1, 3, ("a",), ["t"], "n"), {}),
]
WRONG: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((), {"y": 1}),
    ((1,), {"x": 1}),
    ((1,), {"z": 1}),
    ((1,), {"seen": "now"}),
    ((1, 2, (), [], "n", "now"), {}),
]


@pytest.mark.parametrize(("args", "kwargs"), ARGUMENTS)
def test_a_value_is_made_shown_and_compared_like_a_frozen_dataclass(args: Any, kwargs: Any) -> None:
    one, reference = Point(*args, **kwargs), Reference(*args, **kwargs)
    assert repr(one) == repr(reference).replace("Reference", "Point")
    assert asdict(one) == asdict(reference)
    assert is_dataclass(Point)
    assert [a.name for a in fields(Point)] == [b.name for b in fields(Reference)]
    assert one == replace(one, note="another"), "notes are not compared"
    assert one != cast("object", reference)
    assert one != replace(one, x=5)
    assert all(copied == one for copied in (copy(one), deepcopy(one), pickle.loads(pickle.dumps(one)), replace(one)))


@pytest.mark.parametrize(("args", "kwargs"), WRONG)
def test_wrong_arguments_are_refused_as_by_a_dataclass(args: Any, kwargs: Any) -> None:
    for cls in (Point, Reference):
        with pytest.raises(TypeError, match=cls.__name__):
            cls(*args, **kwargs)


def test_a_value_is_frozen_and_its_defaults_are_its_own() -> None:
    one = Point(1)
    with pytest.raises(FrozenInstanceError, match="'x'"):
        one.x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="'x'"):
        del one.x
    one.tags.append("t")
    assert Point(1).tags == []
    with pytest.raises(ValueError, match="negative"):
        Point(-1)


def test_values_are_hashed_by_what_is_compared() -> None:
    assert len({Extended(name="a"), Extended(name="a", place=0), Extended(name="b")}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point(1))


def test_a_value_extends_a_value_and_matches_patterns() -> None:
    extended = Extended(name="n", place=3)
    assert repr(extended) == "Extended(place=3, name='n')"
    assert extended != Base(place=3)
    match extended:
        case Base(place=found):
            assert found == 3
    match Point(7, 8):
        case Point(x, y):
            assert (x, y) == (7, 8)
    with pytest.raises(TypeError, match="name"):
        Extended(place=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        Extended(3, "n")  # type: ignore[call-arg]


def test_what_a_class_defines_itself_stays() -> None:
    assert repr(Shown("a")) == "<a>"
    assert Shown("a") == Shown("A")
    assert len({Shown("a"), Shown("A")}) == 1
