"""Statistics of a column (nulls, values, least, greatest) and of a unit (rows, bytes, ...), typed and mergeable.

The statistics of a segment are merged from its files, those of a file from its row groups. A value that is unknown in
one part is unknown in the merge.
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from functools import reduce
from typing import Any, Self

from calve.errors import InvalidInput

Bound = bool | int | float | str | Decimal | date | datetime | bytes


class StatisticsType(StrEnum):
    """Types of columns, as far as bounds need them."""

    BOOLEAN = "boolean"
    WHOLE = "long"
    FRACTION = "double"
    DECIMAL = "decimal"
    TEXT = "string"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    LOCAL_TIMESTAMP = "timestamp_ntz"
    OTHER = "other"
    """Without bounds: a list, a map, a struct, or a merge of different types."""


_NUMBERS = (StatisticsType.WHOLE, StatisticsType.DECIMAL, StatisticsType.FRACTION)
"""Each can hold the bounds of those before it."""

_PYTHON: dict[StatisticsType, tuple[type[Any], ...]] = {
    StatisticsType.BOOLEAN: (bool,),
    StatisticsType.WHOLE: (int,),
    StatisticsType.FRACTION: (float, int),
    StatisticsType.DECIMAL: (Decimal, int),
    StatisticsType.TEXT: (str,),
    StatisticsType.BINARY: (bytes,),
    StatisticsType.DATE: (date,),
    StatisticsType.TIMESTAMP: (datetime,),
    StatisticsType.LOCAL_TIMESTAMP: (datetime,),
    StatisticsType.OTHER: (),
}

_READ: dict[StatisticsType, Callable[[Any], Bound]] = {
    StatisticsType.BOOLEAN: bool,
    StatisticsType.WHOLE: int,
    StatisticsType.FRACTION: float,
    StatisticsType.DECIMAL: Decimal,
    StatisticsType.TEXT: str,
    StatisticsType.BINARY: bytes.fromhex,
    StatisticsType.DATE: date.fromisoformat,
    StatisticsType.TIMESTAMP: datetime.fromisoformat,
    StatisticsType.LOCAL_TIMESTAMP: datetime.fromisoformat,
}


@dataclass(frozen=True)
class ColumnStatistics:
    """What is known about the values of a column; None if unknown."""

    type: StatisticsType
    nulls: int | None = None
    values: int | None = None
    """The number of values that are not null."""
    least: Bound | None = None
    greatest: Bound | None = None

    def __post_init__(self) -> None:
        for bound in (self.least, self.greatest):
            if bound is not None and not _bounds(self.type, bound):
                raise InvalidInput(f"{bound!r} is not a valid bound for a column of type {self.type}")

    def merged(self, other: "ColumnStatistics") -> "ColumnStatistics":
        """The statistics of both sets of values together."""
        kind = _common(self.type, other.type)
        return ColumnStatistics(
            kind,
            _sum(self.nulls, other.nulls),
            _sum(self.values, other.values),
            None if kind is StatisticsType.OTHER else self._bound(other, "least", min),
            None if kind is StatisticsType.OTHER else self._bound(other, "greatest", max),
        )

    def _bound(self, other: "ColumnStatistics", name: str, choose: Callable[[Any, Any], Any]) -> Bound | None:
        mine, theirs = getattr(self, name), getattr(other, name)
        if self.values == 0:
            return _as(_common(self.type, other.type), theirs)
        if other.values == 0:
            return _as(_common(self.type, other.type), mine)
        if mine is None or theirs is None:
            return None
        return _as(_common(self.type, other.type), choose(mine, theirs))

    def to_text(self) -> str:
        """As JSON."""
        found = {
            "type": str(self.type),
            "nulls": self.nulls,
            "values": self.values,
            "least": _to_json(self.least),
            "greatest": _to_json(self.greatest),
        }
        return json.dumps({name: value for name, value in found.items() if value is not None})

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Inverse of `to_text`."""
        found = json.loads(text)
        kind = StatisticsType(found["type"])
        bounds = {n: _READ[kind](found[n]) for n in ("least", "greatest") if n in found}
        return cls(kind, found.get("nulls"), found.get("values"), **bounds)


class StatisticKind(StrEnum):
    """The meaning of a statistic of a unit."""

    ROWS = "rows"
    ESTIMATED_ROWS = "estimated_rows"
    BYTES = "bytes"
    FILES = "files"
    LEVEL = "level"
    """The level down to which a table was analyzed."""

    @property
    def adds_up(self) -> bool:
        """Whether the value of the whole is the sum of its parts."""
        return self is not StatisticKind.LEVEL


@dataclass(frozen=True)
class Statistic:
    """One number or word that describes a unit."""

    kind: StatisticKind
    value: int | str
    exact: bool = True

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps({"kind": str(self.kind), "value": self.value, "exact": self.exact})

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Inverse of `to_text`."""
        found = json.loads(text)
        return cls(StatisticKind(found["kind"]), found["value"], found["exact"])


def merge_columns(parts: Iterable[dict[str, ColumnStatistics]]) -> dict[str, ColumnStatistics]:
    """Merge the column statistics of parts; a column that a part lacks is dropped."""
    given = list(parts)
    common = [name for name in (given[0] if given else {}) if all(name in part for part in given)]
    return {name: reduce(ColumnStatistics.merged, (part[name] for part in given)) for name in common}


def merge_statistics(parts: Iterable[Iterable[Statistic]]) -> tuple[Statistic, ...]:
    """Merge the statistics of parts: sums, and values that are the same in all parts."""
    given = [{one.kind: one for one in part} for part in parts]
    merged: list[Statistic] = []
    for kind in given[0] if given else {}:
        if not all(kind in part for part in given):
            continue
        same = [part[kind] for part in given]
        exact = all(one.exact for one in same)
        if kind.adds_up:
            merged.append(Statistic(kind, sum(int(one.value) for one in same), exact))
        elif len({one.value for one in same}) == 1:
            merged.append(Statistic(kind, same[0].value, exact))
    return tuple(merged)


def _bounds(kind: StatisticsType, bound: Bound) -> bool:
    if isinstance(bound, bool) and kind is not StatisticsType.BOOLEAN:
        return False
    if isinstance(bound, datetime):
        aware = bound.tzinfo is not None
        return (kind is StatisticsType.TIMESTAMP and aware) or (kind is StatisticsType.LOCAL_TIMESTAMP and not aware)
    return isinstance(bound, _PYTHON[kind]) and not (isinstance(bound, float) and math.isnan(bound))


def _common(one: StatisticsType, other: StatisticsType) -> StatisticsType:
    if one is other:
        return one
    if one in _NUMBERS and other in _NUMBERS:
        return max(one, other, key=_NUMBERS.index)
    return StatisticsType.OTHER


def _as(kind: StatisticsType, bound: Bound | None) -> Bound | None:
    if bound is None or kind not in _NUMBERS:
        return bound
    return _READ[kind](bound)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _to_json(bound: Bound | None) -> Any:
    match bound:
        case bytes():
            return bound.hex()
        case datetime():
            return (bound.astimezone(UTC) if bound.tzinfo else bound).isoformat()
        case date():
            return bound.isoformat()
        case Decimal():
            return str(bound)
        case float() if math.isinf(bound):
            return str(bound)
        case _:
            return bound
