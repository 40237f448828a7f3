"""Filters over units: a small tree of comparisons with two-valued logic.

A null is not equal to, less than or greater than anything, and in no list. So `ne` and `none_of` match it, and so does
the negation of any comparison. No result is ever "unknown".

A filter is evaluated twice: on the partition keys of a file, to skip files that cannot match (`outcome` is None if
other columns decide), and on whole rows. `matching` evaluates it on Arrow tables, column by column, with the same
results. Arrow's comparisons return null for nulls; each is replaced at once by the filter's result for null, so that no
null ever reaches a connective.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from calve.errors import InvalidInput

Value = str | int | float | bool
Row = Mapping[str, Any]


class Filter(ABC):
    """A condition on a unit. `&`, `|` and `~` combine filters."""

    @abstractmethod
    def outcome(self, row: Row) -> bool | None:
        """Whether a row matches; None if that depends on columns that the row lacks."""

    @abstractmethod
    def open_parts(self, row: Row) -> "Filter":
        """The part of the filter that remains undecided if the outcome for a row is None."""

    @abstractmethod
    def leaves(self) -> "Iterable[Leaf]":
        """The comparisons in it."""

    def columns(self) -> frozenset[str]:
        """The columns it refers to."""
        return frozenset(leaf.column for leaf in self.leaves())

    def __and__(self, other: "Filter") -> "Filter":
        return Every((self, other))

    def __or__(self, other: "Filter") -> "Filter":
        return Either((self, other))

    def __invert__(self) -> "Filter":
        return Negation(self)


@dataclass(frozen=True)
class Leaf(Filter):
    """A condition on one column."""

    column: str

    def outcome(self, row: Row) -> bool | None:
        return self._holds(row[self.column]) if self.column in row else None

    def open_parts(self, row: Row) -> Filter:  # noqa: ARG002 - a leaf is undecided as a whole
        return self

    def leaves(self) -> "Iterable[Leaf]":
        yield self

    def values(self) -> tuple[Value, ...]:
        """The values that the column is compared with."""
        return ()

    @abstractmethod
    def _holds(self, value: Any) -> bool: ...


class Operator(StrEnum):
    """How two values are compared."""

    EQUAL = "="
    NOT_EQUAL = "<>"
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="


_COMPARE: dict[Operator, Callable[[Any, Any], bool]] = {
    Operator.EQUAL: operator.eq,
    Operator.NOT_EQUAL: operator.ne,
    Operator.LESS: operator.lt,
    Operator.LESS_OR_EQUAL: operator.le,
    Operator.GREATER: operator.gt,
    Operator.GREATER_OR_EQUAL: operator.ge,
}


@dataclass(frozen=True)
class ValueComparison(Leaf):
    """Compares a column with a value."""

    operator: Operator
    value: Value

    def values(self) -> tuple[Value, ...]:
        return (self.value,)

    def _holds(self, value: Any) -> bool:
        if value is None:
            return self.operator is Operator.NOT_EQUAL
        return _COMPARE[self.operator](value, self.value)


@dataclass(frozen=True)
class Membership(Leaf):
    """Whether a column is in a list, or not in it."""

    members: tuple[Value, ...]
    negated: bool = False

    def values(self) -> tuple[Value, ...]:
        return self.members

    def _holds(self, value: Any) -> bool:
        return (value is not None and value in self.members) is not self.negated


@dataclass(frozen=True)
class Absence(Leaf):
    """Whether a column is null, or not null."""

    negated: bool = False

    def _holds(self, value: Any) -> bool:
        return (value is None) is not self.negated


@dataclass(frozen=True)
class Negation(Filter):
    """Matches what the negated filter does not match."""

    negated: Filter

    def outcome(self, row: Row) -> bool | None:
        found = self.negated.outcome(row)
        return None if found is None else not found

    def open_parts(self, row: Row) -> Filter:
        return Negation(self.negated.open_parts(row))

    def leaves(self) -> "Iterable[Leaf]":
        return self.negated.leaves()


@dataclass(frozen=True)
class Every(Filter):
    """Matches if all parts match; without parts, always."""

    parts: tuple[Filter, ...]

    def outcome(self, row: Row) -> bool | None:
        found = {part.outcome(row) for part in self.parts}
        return False if False in found else None if None in found else True

    def open_parts(self, row: Row) -> Filter:
        return Every(tuple(part.open_parts(row) for part in self.parts if part.outcome(row) is None))

    def leaves(self) -> "Iterable[Leaf]":
        for part in self.parts:
            yield from part.leaves()


@dataclass(frozen=True)
class Either(Filter):
    """Matches if at least one part matches; without parts, never."""

    parts: tuple[Filter, ...]

    def outcome(self, row: Row) -> bool | None:
        found = {part.outcome(row) for part in self.parts}
        return True if True in found else None if None in found else False

    def open_parts(self, row: Row) -> Filter:
        return Either(tuple(part.open_parts(row) for part in self.parts if part.outcome(row) is None))

    def leaves(self) -> "Iterable[Leaf]":
        for part in self.parts:
            yield from part.leaves()


def eq(column: str, value: Value) -> Filter:
    """The column has this value."""
    return ValueComparison(column, Operator.EQUAL, _given(column, value))


def ne(column: str, value: Value) -> Filter:
    """The column has a different value or is null."""
    return ValueComparison(column, Operator.NOT_EQUAL, _given(column, value))


def lt(column: str, value: Value) -> Filter:
    """The column is less."""
    return ValueComparison(column, Operator.LESS, _given(column, value))


def le(column: str, value: Value) -> Filter:
    """The column is less or equal."""
    return ValueComparison(column, Operator.LESS_OR_EQUAL, _given(column, value))


def gt(column: str, value: Value) -> Filter:
    """The column is greater."""
    return ValueComparison(column, Operator.GREATER, _given(column, value))


def ge(column: str, value: Value) -> Filter:
    """The column is greater or equal."""
    return ValueComparison(column, Operator.GREATER_OR_EQUAL, _given(column, value))


def one_of(column: str, values: Iterable[Value]) -> Filter:
    """The column has one of these values."""
    return Membership(column, tuple(_given(column, value) for value in values))


def none_of(column: str, values: Iterable[Value]) -> Filter:
    """The column has none of these values or is null."""
    return Membership(column, tuple(_given(column, value) for value in values), negated=True)


def is_null(column: str) -> Filter:
    """The column is null."""
    return Absence(column)


def not_null(column: str) -> Filter:
    """The column is not null."""
    return Absence(column, negated=True)


def negation(condition: Filter) -> Filter:
    """The condition does not match."""
    return Negation(condition)


def all_of(*conditions: Filter) -> Filter:
    """All conditions match; without conditions, always."""
    return Every(conditions)


def any_of(*conditions: Filter) -> Filter:
    """At least one condition matches; without conditions, never."""
    return Either(conditions)


def _given(column: str, value: Value | None) -> Value:
    if value is None:
        raise InvalidInput(f'column "{column}" cannot be compared with a null', hint="Use is_null or not_null.")
    return value


_COMPARE_COLUMNS: dict[Operator, Callable[[Any, Any], Any]] = {
    Operator.EQUAL: pc.equal,
    Operator.NOT_EQUAL: pc.not_equal,
    Operator.LESS: pc.less,
    Operator.LESS_OR_EQUAL: pc.less_equal,
    Operator.GREATER: pc.greater,
    Operator.GREATER_OR_EQUAL: pc.greater_equal,
}


def matching(table: pa.Table, condition: Filter) -> pa.Table:
    """The rows that match. The table must have all columns of the filter."""
    if not table.num_rows or not condition.columns():
        return table if condition.outcome({}) is not False else table.slice(0, 0)
    return table.filter(_mask(table, condition))


def _mask(table: pa.Table, condition: Filter) -> Any:
    match condition:
        case Negation(negated):
            return pc.invert(_mask(table, negated))
        case Every(parts):
            return reduce(pc.and_, (_mask(table, part) for part in parts), _all(table, answer=True))
        case Either(parts):
            return reduce(pc.or_, (_mask(table, part) for part in parts), _all(table, answer=False))
        case Leaf():
            return _leaf(table.column(condition.column).combine_chunks(), condition)
        case _:
            raise TypeError(f"not a filter: {condition!r}")


def _leaf(column: pa.Array, leaf: Leaf) -> Any:
    match leaf:
        case ValueComparison(operator=operator, value=value):
            answers = _COMPARE_COLUMNS[operator](column, pa.scalar(value, column.type))
            return pc.fill_null(answers, operator is Operator.NOT_EQUAL)
        case Membership(members=members, negated=negated):
            among = pc.is_in(column, pa.array(members, column.type))
            return pc.invert(among) if negated else among
        case Absence(negated=negated):
            return pc.is_valid(column) if negated else pc.is_null(column)
        case _:
            raise TypeError(f"not a filter: {leaf!r}")


def _all(table: pa.Table, *, answer: bool) -> Any:
    return pa.repeat(answer, table.num_rows)
