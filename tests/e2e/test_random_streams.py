"""Random change streams and random kills, compared with a dictionary: two other engines read the correct table."""

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import calve
from calve.model.spec import Debezium, Envelope, NoEnvelope, Upsert
from tests.support.changes import Batches, until_done
from tests.support.readers import duckdb_rows, spark_iceberg_rows

POINTS = [
    "claim.before", "claim.after", "adopt.before", "adopt.after", "files.before", "files.after", "manifests.after",
    "record.before", "record.after", "manifest-list.before", "manifest-list.after", "commit.before", "commit.after",
    "receipt.before", "receipt.after", "state.put", "load", "resolve.before", "resolve.after",
]  # fmt: skip

Change = tuple[str, int, str]
"""Op (u, d), key, value."""

changes = st.tuples(st.sampled_from("uuud"), st.integers(0, 6), st.text(max_size=3))
streams = st.lists(st.lists(changes, max_size=8), min_size=1, max_size=5)
deaths = st.lists(st.tuples(st.sampled_from(POINTS), st.integers(1, 3)), max_size=3)


def upsert(stream: list[list[Change]]) -> Batches:
    numbered = _numbered(stream)
    rows = [[(k, v if op == "u" else None, op, n) for n, (op, k, v) in batch] for batch in numbered]
    envelope = Upsert(order_by=("seq",), delete_when="op = 'd'", columns="id, value")
    return Batches(rows, "id BIGINT, value STRING, op STRING, seq BIGINT", envelope)


def debezium(stream: list[list[Change]]) -> Batches:
    known: dict[int, str] = {}
    batches = []
    for batch in _numbered(stream):
        rows: list[tuple[Any, ...]] = []
        for n, (op, key, value) in batch:
            before = {"id": key, "value": known[key]} if key in known else {"id": key, "value": None}
            after = {"id": key, "value": value}
            record = (
                {"before": before, "after": None, "op": "d"}
                if op == "d"
                else {"before": None, "after": after, "op": "u"}
            )
            rows.append((json.dumps({"id": key}), json.dumps(record), "t", 0, n))
            if op == "d":
                known.pop(key, None)
                rows.append((json.dumps({"id": key}), None, "t", 0, n))  # Debezium sends a tombstone after a delete
            else:
                known[key] = value
        batches.append(rows)
    ddl = "key STRING, value STRING, topic STRING, partition INT, offset BIGINT"
    return Batches(batches, ddl, Debezium(columns="id BIGINT, value STRING"))


def inserts(stream: list[list[Change]]) -> Batches:
    rows = [[(k, v) for _, k, v in {c[1]: c for c in batch}.values()] for batch in stream]
    return Batches(rows, "id BIGINT, value STRING", NoEnvelope())


def _numbered(stream: list[list[Change]]) -> list[list[tuple[int, Change]]]:
    count = iter(range(10**6))
    return [[(next(count), change) for change in batch] for batch in stream]


def reference(stream: list[list[Change]], envelope: Envelope) -> dict[int, str]:
    table: dict[int, str] = {}
    for op, key, value in (change for batch in stream for change in batch):
        if op == "d" and not isinstance(envelope, NoEnvelope):
            table.pop(key, None)
        else:
            table[key] = value
    return table


def table_of(rows: list[dict[str, Any]]) -> dict[int, str]:
    assert len({row["id"] for row in rows}) == len(rows), f"a key is there twice: {rows}"
    return {row["id"]: row["value"] for row in rows}


@pytest.mark.parametrize("examples", [3, pytest.param(150, marks=pytest.mark.soak)])
@pytest.mark.parametrize("make", [upsert, debezium, inserts], ids=lambda f: f.__name__)
def test_the_table_equals_the_stream_whatever_dies_on_the_way(
    make: Any, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, examples: int
) -> None:
    del spark

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        stream=streams,
        points=deaths,
        encodings=st.permutations(["position", "equality"]),
        version=st.sampled_from([None, 3]),
    )
    def check(
        stream: list[list[Change]], points: list[tuple[str, int]], encodings: list[str], version: int | None
    ) -> None:
        home: Path = tmp_path_factory.mktemp("home")
        source = make(stream)
        lake = calve.connect(home=home)
        sink = calve.sink(source, name="s", into=lake.table("x.t"), key=["id"])
        turns = cycle(encodings)
        until_done(lambda: sink.options(deletes=next(turns), format_version=version).start(), points)
        location = lake.open().load_table("x.t").metadata_location
        expected = reference(stream, source.envelope)
        assert table_of(duckdb_rows(location)) == expected
        assert table_of(spark_iceberg_rows(location)) == expected

    check()
