"""Random tables: nested columns, keys, partitions and changes; columns and partitions that change; kills in between.

A dictionary is the reference; two other engines read the table. `make soak` runs many.
"""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import calve
from calve.model.checkpoint import Offsets
from calve.model.spec import Upsert
from tests.support.changes import Batches, until_done
from tests.support.readers import duckdb_rows, spark_iceberg_rows

POINTS = [
    "claim.after", "adopt.after", "schema.before", "schema.after", "files.after", "manifests.after", "record.before",
    "record.after", "commit.before", "commit.after", "receipt.before", "load",
]  # fmt: skip
EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a local time
CHAINS: dict[str, list[str]] = {
    "whole": ["INT", "BIGINT"],
    "real": ["FLOAT", "DOUBLE"],
    "money": ["DECIMAL(5,2)", "DECIMAL(12,2)", "DECIMAL(38,2)"],
    "text": ["STRING"],
    "day": ["DATE"],
    "local": ["TIMESTAMP_NTZ"],
    "yes": ["BOOLEAN"],
}
"""Types that a column may have, one after the other."""
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "whole": st.integers(-(2**31), 2**31 - 1),
    "real": st.integers(-1000, 1000).map(lambda n: n / 2),
    "money": st.integers(-99_999, 99_999).map(lambda n: Decimal(n).scaleb(-2)),
    "text": st.text(max_size=4),
    "day": st.integers(-700_000, 2_900_000).map(lambda n: (EPOCH + dt.timedelta(days=n)).date()),
    "local": st.integers(-(10**15), 10**15).map(lambda n: EPOCH + dt.timedelta(microseconds=n)),
    "yes": st.booleans(),
}
PARTITIONS = {
    "whole": ["{}", "bucket(3, {})", "truncate(10, {})"],
    "text": ["{}", "bucket(3, {})", "truncate(1, {})"],
    "day": ["bucket(3, {})", "month({})", "day({})"],
    "local": ["year({})", "hour({})", "bucket(2, {})"],
    "money": ["bucket(3, {})"],
    "yes": ["{}"],
    "real": ["{}"],
}


@dataclass
class Kind:
    """A type that can grow: one of a chain, or `array`, `map` or `struct` with what is inside."""

    name: str
    level: int = 0
    inside: dict[str, "Kind"] = field(default_factory=dict)

    @property
    def ddl(self) -> str:
        match self.name:
            case "array":
                return f"ARRAY<{self.inside['element'].ddl}>"
            case "map":
                return f"MAP<STRING, {self.inside['value'].ddl}>"
            case "struct":
                return f"STRUCT<{', '.join(f'{name}: {kind.ddl}' for name, kind in self.inside.items())}>"
        return CHAINS[self.name][self.level]

    def value(self, draw: Any) -> Any:
        if draw(st.integers(0, 5)) == 0:
            return None
        match self.name:
            case "array":
                return [self.inside["element"].value(draw) for _ in range(draw(st.integers(0, 2)))]
            case "map":
                return {key: self.inside["value"].value(draw) for key in draw(st.sets(st.sampled_from("abc")))}
            case "struct":
                return {name: kind.value(draw) for name, kind in self.inside.items()}
        return draw(VALUES[self.name])

    def whole(self, value: Any) -> Any:
        """A value as the table gives it back, which may have more fields than it was written with."""
        if value is None:
            return None
        match self.name:
            case "array":
                return [self.inside["element"].whole(entry) for entry in value]
            case "map":
                entries = value.items() if isinstance(value, dict) else value
                return sorted((key, self.inside["value"].whole(entry)) for key, entry in entries)
            case "struct":
                return {name: kind.whole(value.get(name)) for name, kind in self.inside.items()}
        return value

    def grow(self, draw: Any) -> None:
        """Become wider, or gain a field, somewhere."""
        if self.name in CHAINS:
            self.level = min(self.level + draw(st.integers(0, 1)), len(CHAINS[self.name]) - 1)
        for kind in self.inside.values():
            kind.grow(draw)
        if self.name == "struct" and draw(st.booleans()):
            self.inside[f"f{len(self.inside)}"] = draw(kinds(1))


@st.composite
def kinds(draw: Any, depth: int = 2) -> Kind:
    name = draw(st.sampled_from([*CHAINS, *(("array", "map", "struct") if depth else ())]))
    match name:
        case "array":
            return Kind(name, 0, {"element": draw(kinds(depth - 1))})
        case "map":
            return Kind(name, 0, {"value": draw(kinds(depth - 1))})
        case "struct":
            return Kind(name, 0, {f"f{n}": draw(kinds(depth - 1)) for n in range(draw(st.integers(1, 2)))})
    return Kind(name)


class Endless(Batches):
    """Batches after which more may come."""

    def ended(self, _end: Offsets) -> bool:
        return False

    @property
    def took_all(self) -> bool:
        return True


@dataclass
class Phase:
    """What one definition of the sink does."""

    source: Endless
    partitions: list[str]
    deaths: list[tuple[str, int]]
    rows: dict[tuple[Any, ...], dict[str, Any]]
    """What the table holds afterwards."""
    columns: dict[str, Kind]
    """All that the table has then."""


KEYS = [{"k": Kind("whole", 1)}, {"k": Kind("text")}, {"k": Kind("day"), "j": Kind("whole")}]


def phases(draw: Any) -> Iterator[Phase]:
    """One after the other; what a phase refers to changes when the next one is asked for."""
    key = draw(st.sampled_from(KEYS))
    live = {f"c{n}": draw(kinds()) for n in range(draw(st.integers(1, 3)))}
    ever = dict(live)
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    done: list[list[tuple[Any, ...]]] = []
    number = 0
    for at in range(draw(st.integers(2, 3))):
        if at:
            _change(draw, live, ever)
        columns = {**key, **live}
        fresh = []
        for _ in range(draw(st.integers(1, 2))):
            batch = []
            for _ in range(draw(st.integers(0, 6))):
                number += 1
                values = {name: kind.value(draw) for name, kind in live.items()}
                named = {name: draw(VALUES[kind.name].filter(lambda v: v is not None)) for name, kind in key.items()}
                if rows and draw(st.booleans()):
                    named = dict(zip(key, draw(st.sampled_from(sorted(rows))), strict=True))
                gone = draw(st.integers(0, 3)) == 0
                rows.pop(tuple(named.values()), None)
                if not gone:
                    rows[tuple(named.values())] = {**named, **values}
                batch.append((*named.values(), *values.values(), "d" if gone else "u", number))
            fresh.append(batch)
        ddl = ", ".join(f"{name} {kind.ddl}" for name, kind in columns.items())
        envelope = Upsert(order_by=("seq",), delete_when="op = 'd'", columns=", ".join(columns))
        source = Endless([*done, *fresh], f"{ddl}, op STRING, seq BIGINT", envelope)
        done += [[] for _ in fresh]
        flat = [(name, kind) for name, kind in columns.items() if kind.name in PARTITIONS]
        chosen = draw(st.lists(st.sampled_from(flat), max_size=2, unique_by=lambda pair: pair[0]))
        partitions = [draw(st.sampled_from(PARTITIONS[kind.name])).format(name) for name, kind in chosen]
        deaths = draw(st.lists(st.tuples(st.sampled_from(POINTS), st.integers(1, 2)), max_size=1))
        yield Phase(source, partitions, deaths, rows, {**key, **ever})


def _change(draw: Any, live: dict[str, Kind], ever: dict[str, Kind]) -> None:
    for kind in live.values():
        kind.grow(draw)
    if len(live) > 1 and draw(st.booleans()):
        live.pop(draw(st.sampled_from(sorted(live))))
    if draw(st.booleans()):
        name = f"c{len(ever)}"
        live[name] = ever[name] = draw(kinds())


def found(rows: list[dict[str, Any]], phase: Phase) -> list[dict[str, Any]]:
    return sorted(({n: kind.whole(row.get(n)) for n, kind in phase.columns.items()} for row in rows), key=repr)


@pytest.mark.parametrize("examples", [2, pytest.param(300, marks=pytest.mark.soak)])
def test_random_tables_are_right_whatever_changes_and_dies_on_the_way(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, examples: int
) -> None:
    del spark

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        home: Path = tmp_path_factory.mktemp("home")
        lake = calve.connect(home=home)
        version = data.draw(st.sampled_from([None, 3]))
        for phase in phases(data.draw):
            key = ["k", "j"] if "j" in phase.columns else ["k"]
            sink = calve.sink(phase.source, name="s", into=lake.table("x.t"), key=key)
            sink = sink.partition_by(*phase.partitions).options(format_version=version)
            until_done(sink.start, phase.deaths, bounded=False)
            location = lake.open().load_table("x.t").metadata_location
            expected = found(list(phase.rows.values()), phase)
            assert found(duckdb_rows(location), phase) == expected
            assert found(spark_iceberg_rows(location), phase) == expected

    check()
