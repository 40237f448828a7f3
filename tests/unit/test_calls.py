"""What users call refuses arguments that do not exist, are missing or are of a wrong type, and says what was meant."""

import inspect
import pickle
from collections.abc import Callable
from typing import Any, Unpack

import pytest

import calve
from calve.calls import for_users
from calve.errors import InvalidInput
from calve.reader.local import TimeTravel

ENVELOPES = (calve.NoEnvelope, calve.Upsert, calve.Debezium, calve.Diff)
CLASSES = (calve.Sink, calve.Query, calve.Lake)
FUNCTIONS = [one for name in calve.__all__ if inspect.isfunction(one := getattr(calve, name))]
METHODS = [
    method
    for one in CLASSES
    for name, method in inspect.getmembers(one, inspect.isfunction)
    if not name.startswith("_") and len(inspect.signature(method).parameters) > 1
]
UNTYPED: Any = calve
"""For calls that mypy would refuse."""
INTERNAL = {"Query.begin", "Sink.start_once", "Lake.state", "Lake.state_root"}
"""Called by calve itself."""


def refused(call: Callable[[], object]) -> InvalidInput:
    with pytest.raises(InvalidInput) as raised:
        call()
    return raised.value


@pytest.mark.parametrize("called", [*FUNCTIONS, *ENVELOPES], ids=lambda one: one.__name__)
def test_everything_that_is_exported_refuses_unknown_arguments(called: Any) -> None:
    error = refused(lambda: called(**_given(called), nothing_is_called_like_this=1))
    assert '"nothing_is_called_like_this"' in error.primary or '"nothing-is-called-like-this"' in error.primary


@pytest.mark.parametrize(
    "method", [one for one in METHODS if one.__qualname__ not in INTERNAL], ids=lambda one: one.__qualname__
)
def test_methods_refuse_unknown_arguments(method: Any) -> None:
    error = refused(lambda: method(object(), **_given(method), nothing_is_called_like_this=1))
    assert '"nothing_is_called_like_this"' in error.primary


def _given(called: Any) -> dict[str, Any]:
    """A value for every argument that is needed."""
    if called is calve.sink:
        return {"changes": calve.orders(rows=1), "name": "s", "into": calve.connect().table("a.b"), "key": ["id"]}
    return {
        name: "x"
        for name, one in inspect.signature(called).parameters.items()
        if one.default is one.empty and one.kind is one.KEYWORD_ONLY
    }


def test_the_argument_that_was_meant_is_named() -> None:
    wrong: Any = calve.Upsert
    error = refused(lambda: wrong(order_by=("seq",), delete_whn="op = 'd'"))
    assert error.primary == 'calve.Upsert has no argument "delete_whn"'
    assert error.detail == "Expected one of: order_by, delete_when, columns, epoch_unit, across_checkpoints."
    assert error.hint == 'Did you mean "delete_when"?'
    sink: Any = calve.sink(calve.orders(rows=1), name="s", into=calve.connect().table("a.b"), key=["id"])
    error = refused(lambda: sink.start(stat="/data/state"))
    assert error.primary == 'Sink.start has no argument "stat"'
    assert error.hint == 'Did you mean "state"?'


def test_an_option_that_would_be_ignored_is_refused() -> None:
    for called, wrong, meant in ((calve.read, "asof", "as_of"), (calve.changes, "sinc", "since")):
        anything: Any = called
        error = refused(lambda called=anything, wrong=wrong: called(None, None, **{wrong: "2026-01-31"}))  # type: ignore[misc]
        assert error.primary == f'calve.{called.__name__} has no argument "{wrong}"'
        assert error.hint == f'Did you mean "{meant}"?'


def test_a_missing_argument_is_named_with_the_one_that_was_given_instead() -> None:
    files: Any = calve.files
    assert refused(lambda: files("in")).primary == 'calve.files needs the argument "format"'
    sink: Any = calve.sink
    error = refused(lambda: sink(calve.orders(rows=1), nam="s", into=calve.connect().table("a.b"), key=["id"]))
    assert error.primary == 'calve.sink needs the argument "name"'
    assert error.hint == 'Did you mean "name" instead of "nam"?'


def test_arguments_by_position_and_arguments_that_are_given_twice() -> None:
    orders: Any = calve.orders
    error = refused(lambda: orders(5))
    assert (error.primary, error.detail) == ("calve.orders takes 0 arguments by position", "Got 1.")
    assert error.hint == "By name it takes rows, changes, seed, per_checkpoint, per_second."
    diff: Any = calve.Diff
    assert "multiple values for argument 'time'" in refused(lambda: diff("t", "d", time="x")).detail


@pytest.mark.parametrize(
    ("call", "primary"),
    [
        (lambda: UNTYPED.Upsert(delete_when=5), "calve.Upsert: delete_when must be a string"),
        (lambda: UNTYPED.Upsert(across_checkpoints="no"), "calve.Upsert: across_checkpoints must be True or False"),
        (lambda: UNTYPED.Diff(5, "diff"), "calve.Diff: time must be a string"),
        (lambda: UNTYPED.orders(rows="5"), "calve.orders: rows must be a number"),
        (lambda: UNTYPED.kafka("b:9092", 5, schema="id INT"), "calve.kafka: topic must be a string"),
        (lambda: UNTYPED.files("in", format=5), "calve.files: format must be a string"),
        (lambda: UNTYPED.files("in", format="json", schema=["id"]), "calve.files: schema must be a string"),
        (lambda: UNTYPED.compact("shop.orders"), "calve.compact takes a table of a lake"),
        (lambda: UNTYPED.convert_deletes(None), "calve.convert_deletes takes a table of a lake"),
        (lambda: UNTYPED.files("in", format="text", envelope="upsert"), "unknown envelope"),
        (lambda: UNTYPED.kafka("b:9092", "t", schema="id INT", envelope="upsert"), "unknown envelope"),
        (lambda: UNTYPED.files("in", format="parquet", options=["x"]), "options must be a mapping of names to strings"),
        (
            lambda: UNTYPED.kafka("b", "t", schema="id INT", options="x"),
            "options must be a mapping of names to strings",
        ),
        (lambda: UNTYPED.Upsert(order_by=5), "order_by is a tuple of fields"),
        (lambda: UNTYPED.Upsert(order_by=("seq", 5)), "order_by is a tuple of fields"),
        (lambda: UNTYPED.Upsert(epoch_unit="hours"), 'unknown epoch_unit "hours"'),
        (lambda: UNTYPED.Debezium(on_truncate="stop"), 'unknown on_truncate "stop"'),
        (lambda: UNTYPED.Debezium(on_unavailable_value="x"), 'unknown on_unavailable_value "x"'),
    ],
)
def test_wrong_types_and_values_are_refused_at_once(call: Callable[[], object], primary: str) -> None:
    assert refused(call).primary == primary


def test_texts_of_choices_are_the_choices() -> None:
    given: Any = {"on_truncate": "ignore", "on_unavailable_value": "null", "epoch_unit": "ms"}
    one = calve.Debezium(**given)
    assert (type(one.on_truncate).__name__, type(one.epoch_unit).__name__) == ("OnTruncate", "EpochUnit")
    assert pickle.loads(pickle.dumps(one)) == one


@for_users
def _fails_inside(at: str = "", **options: Unpack[TimeTravel]) -> str:
    """A function for users."""
    return at + options  # type: ignore[operator] # on purpose


def test_errors_of_the_function_itself_are_left_alone() -> None:
    with pytest.raises(TypeError, match="can only concatenate str"):
        _fails_inside("x", as_of=None)
    assert str(inspect.signature(_fails_inside)).startswith("(at: str = ''")
    assert _fails_inside.__doc__ == "A function for users."
