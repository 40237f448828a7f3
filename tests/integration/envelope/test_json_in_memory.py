"""Records in JSON become the same changes in the driver as in tasks, or are left to tasks if one is bad."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from calve.clock import SystemClock
from calve.envelope.envelopes import arrow_conversion, changes_of
from calve.envelope.order import with_order
from calve.model.change import BAD, order_columns
from calve.model.checkpoint import SizeLimit
from calve.model.spec import Debezium, Envelope, NoEnvelope, Upsert
from calve.records.frames import Records
from calve.source.files.definition import FileSource, files
from calve.source.kafka.reader import read_schema
from calve.spark.version import arrow_schema_of
from calve.storage.state import LocalState

COLUMNS = "id BIGINT NOT NULL, name STRING, price DECIMAL(12,2), at TIMESTAMP, tags ARRAY<STRING>"
LIMIT = SizeLimit(1000, 1 << 20)
KAFKA = read_schema(included=False, decoded=False)

ROWS = st.fixed_dictionaries(
    {"id": st.integers(0, 4) | st.sampled_from([None, "x"])},
    optional={
        "name": st.none() | st.text("ab°𝄞", max_size=3),
        "price": st.sampled_from([None, "1.50", 2, "1.234"]),
        "at": st.sampled_from([None, "2026-01-01T00:00:00Z", "2026-02-30"]),
        "tags": st.sampled_from([None, [], ["a", None], "a"]),
    },
)
GOOD_ROWS = st.fixed_dictionaries(
    {"id": st.integers(0, 4)},
    optional={"name": st.text("ab", max_size=2), "price": st.just("1.50"), "tags": st.just(["a", None])},
)


def upserts(rows: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    marks = {"op": st.sampled_from(["u", "d", None]), "lsn": st.integers(0, 3), "n": st.integers(0, 3).map(str)}
    return st.builds(lambda row, more: row | more, rows, st.fixed_dictionaries(marks))


@st.composite
def change_records(draw: st.DrawFn, rows: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    before, after = draw(rows), draw(rows)
    op = draw(st.sampled_from("cud"))
    return {
        "before": None if op == "c" else before,
        "after": None if op == "d" else after,
        "op": op,
        "source": {"lsn": draw(st.integers(0, 5))},
    }


@dataclass(frozen=True)
class Case:
    """Records, some of them perhaps bad, and their envelope."""

    envelope: Envelope
    records: list[dict[str, Any]]
    ordered: bool


def _case(envelope: Envelope, records: Any) -> st.SearchStrategy[Case]:
    drawn = st.lists(records(GOOD_ROWS), max_size=8) | st.lists(records(ROWS), min_size=1, max_size=4)
    return st.builds(Case, st.just(envelope), drawn, st.booleans())


CASES = (
    _case(Upsert(("lsn",), "op = 'd'", COLUMNS), upserts)
    | _case(Upsert(("lsn", "n"), None, f"{COLUMNS}, lsn BIGINT"), upserts)
    | _case(Upsert(("lsn",), "name = 'a' or op is null", COLUMNS), upserts)
    | _case(Debezium(order_by=("source.lsn",), columns=COLUMNS), change_records)
)


def same_either_way(
    spark: SparkSession, case: Case, frame: Records, records: pa.Table | None, schema: StructType
) -> None:
    conversion = arrow_conversion(schema, case.envelope, ["id"], spark, stores_order=case.ordered)
    assert conversion is not None
    assert records is not None
    found = conversion.changes(records.select(conversion.records.names))
    changes = changes_of(frame, case.envelope, ["id"])
    changes = with_order(changes, schema) if case.ordered else changes
    expected = changes.toArrow()
    if expected[BAD].null_count < expected.num_rows:
        assert found is None
        return
    assert found is not None
    assert conversion.beside == StructType([changes.schema[field.name] for field in conversion.beside.fields])
    assert conversion.table.names == [n for n in found.column_names if n not in conversion.beside.names]
    expected = expected.select(found.column_names)
    assert found.schema.types == expected.schema.types
    assert _rows(found, kafka="offset" in schema.names) == _rows(expected, kafka="offset" in schema.names)


def _rows(changes: pa.Table, *, kafka: bool) -> list[str]:
    """As text; numbers of lines differ between both ways, offsets do not."""
    kept = (
        changes.column_names
        if kafka
        else [n for n in changes.column_names if n != order_columns(changes.column_names)[-1]]
    )
    return sorted(repr(row) for row in changes.select(kept).to_pylist())


@settings(max_examples=12)
@given(case=CASES)
def test_lines_of_files_become_the_same_changes_in_memory(
    tmp_path_factory: pytest.TempPathFactory, spark: SparkSession, case: Case
) -> None:
    folder = tmp_path_factory.mktemp("json")
    (folder / "in").mkdir()
    lines = [json.dumps(record, ensure_ascii=False) for record in case.records]
    (folder / "in" / "a.json").write_text("".join(f"{line}\r\n  \n" for line in lines) or " \n")
    source = files(folder / "in", format="json", envelope=case.envelope).open(
        LocalState(folder / "state"), SystemClock()
    )
    end = source.next_end(None)
    schema = source.schema(spark)
    records = source.arrow_records(spark, None, end, schema, LIMIT)
    same_either_way(spark, case, source.frame(spark, None, end), records, schema)


@settings(max_examples=12)
@given(case=CASES, tombstones=st.lists(st.integers(0, 4), max_size=2))
def test_records_of_a_topic_become_the_same_changes_in_memory(
    spark: SparkSession, case: Case, tombstones: list[int]
) -> None:
    values = [json.dumps(record).encode() for record in case.records]
    rows: list[tuple[Any, ...]] = [(None, value, "t", at % 2, at) for at, value in enumerate(values)]
    rows += [(str(key).encode(), None, "t", 0, len(rows) + at) for at, key in enumerate(tombstones)]
    arrays = zip(*rows, strict=True) if rows else [()] * len(KAFKA)
    schema = arrow_schema_of(KAFKA)
    records = pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(arrays, schema, strict=True)], schema=schema)
    same_either_way(spark, case, spark.createDataFrame(rows, KAFKA), records, KAFKA)


def _json_source(folder: Path, name: str, data: bytes, **options: Any) -> tuple[FileSource, Any]:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_bytes(data)
    source = files(folder / "in", format="json", schema="id BIGINT, v STRING", **options).open(
        LocalState(folder / "state"), SystemClock()
    )
    return source, source.next_end(None)


def test_typed_lines_are_read_in_memory(spark: SparkSession, tmp_path: Path) -> None:
    source, end = _json_source(tmp_path, "a.json", b'{"id": 1, "v": "x"}\n\n{"id": 2}')
    conversion = arrow_conversion(source.schema(spark), NoEnvelope(), ["id"], spark)
    assert conversion is not None
    records = source.arrow_records(spark, None, end, conversion.records, LIMIT)
    assert records is not None
    changes = conversion.changes(records)
    assert changes is not None
    assert changes.select(["id", "v"]).to_pylist() == [{"id": 1, "v": "x"}, {"id": 2, "v": None}]


@pytest.mark.parametrize(
    ("name", "data", "limit"),
    [
        ("a.json", b'{"id": "x"}', LIMIT),
        ("a.json", b'\xef\xbb\xbf{"id": 1}', LIMIT),
        ("a.json.gz", b'{"id": 1}', LIMIT),
        ("a.json", b'{"id": 1}\n{"id": 2}', SizeLimit(1, 100)),
        ("a.json", b'{"id": 1}\n{"id": 2}', SizeLimit(2, 10)),
    ],
    ids=["bad", "byte order mark", "compressed", "rows", "bytes"],
)
def test_lines_are_left_to_spark(spark: SparkSession, tmp_path: Path, name: str, data: bytes, limit: SizeLimit) -> None:
    source, end = _json_source(tmp_path, name, data)
    assert source.arrow_records(spark, None, end, source.schema(spark), limit) is None


def test_a_file_that_is_gone_is_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    source, end = _json_source(tmp_path, "a.json", b'{"id": 1}')
    (tmp_path / "in" / "a.json").unlink()
    assert source.arrow_records(spark, None, end, source.schema(spark), LIMIT) is None
