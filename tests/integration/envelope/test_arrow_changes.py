"""Small checkpoints are converted without a Spark job: to the changes that Spark makes of them, or not at all."""

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, PrimitiveType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from calve.clock import SystemClock
from calve.envelope.envelopes import arrow_conversion, changes_of
from calve.envelope.order import with_order
from calve.model.change import BAD, order_columns
from calve.model.checkpoint import SizeLimit
from calve.model.files import NO_NEEDS, ColumnNeeds
from calve.model.spec import Envelope, NoEnvelope, Upsert
from calve.source.files.definition import FileSource, files
from calve.storage.state import LocalState
from calve.write.changes import ArrowChanges
from tests.unit.write.sample import target_in

COLUMNS = (
    "id BIGINT, small TINYINT, short SMALLINT, number INT, ratio FLOAT, amount DOUBLE, price DECIMAL(12,2), "
    "name STRING, data BINARY, day DATE, at TIMESTAMP, there TIMESTAMP_NTZ, gone BOOLEAN, op STRING, seq BIGINT"
)
TABLE = "id, small, short, number, ratio, amount, price, name, data, day, at, there, gone"
CONDITIONS = (
    None,
    "op = 'd'",
    "op in ('d', 'x')",
    "gone",
    "gone = true or op = 'd'",
    "number > 3 and op is not null",
    "day < date'2026-01-03'",
    "at >= timestamp'2026-01-02 00:00:00Z'",
    "there <= timestamp_ntz'2026-01-02 00:00:00'",
    "name like 'a%'",
    "name is null",
    "op <=> 'd'",
)
NEED_SPARK = (
    "op <> 'd'",
    "lower(op) = 'd'",
    "amount > 1.5",
    "op = 'd' and length(name) > 2",
    "price > 3",
    "at < current_timestamp()",
    "day < date_sub(current_date(), 30) and op = 'd'",
    "true",
    "false",
)
LIMIT = SizeLimit(1000, 1 << 20)
DAYS = st.dates(dt.date(2025, 12, 30), dt.date(2026, 1, 5))
TIMES = st.datetimes(dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 3))  # noqa: DTZ001 - NTZ


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(0, 5),
            "small": optional(st.integers(-128, 127)),
            "short": optional(st.integers(-(2**15), 2**15 - 1)),
            "number": optional(st.integers(0, 6)),
            "ratio": optional(st.floats(width=32)),
            "amount": optional(st.floats()),
            "price": optional(st.decimals(-100, 100, places=2)),
            "name": optional(st.text("ab°𝄞", max_size=3)),
            "data": optional(st.binary(max_size=3)),
            "day": optional(DAYS),
            "at": optional(TIMES.map(lambda time: time.replace(tzinfo=dt.UTC))),
            "there": optional(TIMES),
            "gone": optional(st.booleans()),
            "op": optional(st.sampled_from("udx")),
            "seq": st.integers(0, 3),
        }
    ),
    min_size=1,
    max_size=12,
)


@dataclass(frozen=True)
class Folder:
    """A folder of Parquet files, read both ways."""

    path: Path
    spark: SparkSession

    def put(self, rows: pa.Table, name: str = "a", **metadata: str) -> None:
        with pq.ParquetWriter(self.path / "in" / f"{name}.parquet", rows.schema, store_schema=False) as out:
            out.write_table(rows)
            out.add_key_value_metadata({f"org.apache.spark.{name}": value for name, value in metadata.items()})

    def source(self, schema: str = COLUMNS, **options: Any) -> FileSource:
        return files(self.path / "in", format="parquet", schema=schema, **options).open(
            LocalState(self.path / "state"), SystemClock()
        )

    def by_spark(self, source: FileSource, envelope: Envelope, needs: ColumnNeeds, *, ordered: bool) -> DataFrame:
        frame = source.frame(self.spark, None, source.next_end(None))
        changes = changes_of(frame, envelope, ["id"], needs=needs)
        return with_order(changes, frame.schema) if ordered else changes

    def in_memory(
        self,
        source: FileSource,
        envelope: Envelope,
        needs: ColumnNeeds = NO_NEEDS,
        *,
        ordered: bool = False,
        limit: SizeLimit = LIMIT,
    ) -> ArrowChanges | None:
        upserts = arrow_conversion(
            source.schema(self.spark), envelope, ["id"], self.spark, needs=needs, stores_order=ordered
        )
        if upserts is None:
            return None
        records = source.arrow_records(self.spark, None, source.next_end(None), upserts.records, limit)
        changes = None if records is None else upserts.changes(records)
        return None if changes is None else ArrowChanges(changes, upserts.table, upserts.beside)


@pytest.fixture
def folder(tmp_path: Path, spark: SparkSession) -> Folder:
    (tmp_path / "in").mkdir()
    return Folder(tmp_path, spark)


def arrow_type(spark: SparkSession, columns: str = COLUMNS) -> pa.Schema:
    return spark.createDataFrame([], columns).toArrow().schema


def rows_of(changes: pa.Table) -> list[str]:
    """Rows as text, so that NaN equals itself, without the arrival, whose numbers differ."""
    kept = [name for name in changes.column_names if name != order_columns(changes.column_names)[-1]]
    return [repr(sorted(row.items())) for row in changes.select(kept).to_pylist()]


@dataclass(frozen=True)
class Case:
    batches: list[list[dict[str, Any]]]
    condition: str | None
    order: tuple[str, ...]
    required: frozenset[str]
    ordered: bool


CASES = st.builds(
    Case,
    st.lists(RECORDS, min_size=1, max_size=2),
    st.sampled_from(CONDITIONS),
    st.sampled_from([("seq",), ("at", "seq"), ("price",)]),
    st.sampled_from([frozenset[str](), frozenset({"name"}), frozenset({"amount", "day"})]),
    st.booleans(),
)


@settings(max_examples=12)
@given(case=CASES)
def test_changes_in_memory_are_those_of_spark_unless_one_record_is_bad(
    tmp_path_factory: pytest.TempPathFactory, spark: SparkSession, case: Case
) -> None:
    folder = Folder(tmp_path_factory.mktemp("both"), spark)
    (folder.path / "in").mkdir()
    schema = arrow_type(spark)
    for number, batch in enumerate(case.batches):
        folder.put(pa.Table.from_pylist(batch, schema), f"{number}")
    envelope = Upsert(case.order, case.condition, TABLE)
    needs = ColumnNeeds(required=case.required)
    changes = folder.by_spark(folder.source(), envelope, needs, ordered=case.ordered)
    expected = changes.toArrow()
    found = folder.in_memory(folder.source(), envelope, needs, ordered=case.ordered)
    if any(expected[BAD].is_valid().to_pylist()):
        assert found is None
        return
    assert found is not None
    beside = [changes.schema[field.name] for field in found.beside.fields]
    assert found.beside == StructType(beside), "staged rows of both ways are of one kind"
    expected = expected.drop_columns([BAD]).select(found.rows.column_names)
    assert found.rows.schema.types == expected.schema.types
    assert sorted(rows_of(found.rows)) == sorted(rows_of(expected))
    assert found.rows[order_columns(found.rows.column_names)[-1]].to_pylist() == list(range(found.rows.num_rows))


@pytest.mark.parametrize("condition", NEED_SPARK)
def test_a_condition_that_is_not_a_comparison_with_a_constant_needs_spark(folder: Folder, condition: str) -> None:
    folder.put(pa.Table.from_pylist([{"id": 1, "seq": 1, "op": "d"}], arrow_type(folder.spark)))
    assert folder.in_memory(folder.source(), Upsert(("seq",), condition, TABLE)) is None


@pytest.mark.parametrize("condition", [c for c in CONDITIONS if c])
def test_a_comparison_with_a_constant_does_not_need_spark(folder: Folder, condition: str) -> None:
    folder.put(pa.Table.from_pylist([{"id": 1, "seq": 1, "op": "d"}], arrow_type(folder.spark)))
    assert folder.in_memory(folder.source(), Upsert(("seq",), condition, TABLE)) is not None


def test_records_that_have_to_be_cast_need_spark(folder: Folder) -> None:
    folder.put(pa.table({"id": pa.array([1]), "number": pa.array([2], pa.int32()), "seq": pa.array([3])}))
    envelope = Upsert(("seq",), None, "id BIGINT, number BIGINT")
    assert folder.in_memory(folder.source("id BIGINT, number INT, seq BIGINT"), envelope) is None


def _one_column(values: pa.Array, **more: pa.Array) -> pa.Table:
    return pa.table({"id": pa.array(range(len(values)), pa.int64()), "v": values} | more)


@pytest.mark.parametrize(
    ("declared", "rows"),
    [
        ("v BIGINT", _one_column(pa.array([1], pa.int32()))),
        ("v TIMESTAMP", _one_column(pa.array([1], pa.timestamp("ms", "UTC")))),
        ("v TIMESTAMP", _one_column(pa.array([1], pa.timestamp("us")))),
        ("v STRING", _one_column(pa.array([b"x"], pa.binary()))),
        ("v DECIMAL(12,2)", _one_column(pa.array([Decimal("1.0")], pa.decimal128(10, 2)))),
        ("v STRING", _one_column(pa.array(["x"]), V=pa.array(["y"]))),
        ("missing STRING", _one_column(pa.array(["x"]))),
    ],
    ids=["narrower", "milliseconds", "no zone", "bytes", "decimal", "two spellings", "missing"],
)
def test_a_file_whose_columns_are_not_exactly_the_declared_ones_is_read_by_spark(
    folder: Folder, declared: str, rows: pa.Table
) -> None:
    folder.put(rows)
    assert folder.in_memory(folder.source(f"id BIGINT, {declared}"), NoEnvelope()) is None


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        ("v STRING", pa.array(["x", None], pa.large_string())),
        ("v STRING", pa.array(["x", None]).dictionary_encode()),
        ("v BINARY", pa.array([b"x", None], pa.large_binary())),
        ("v TIMESTAMP", pa.array([1, None], pa.timestamp("us", "Europe/Berlin"))),
    ],
    ids=["large string", "dictionary", "large binary", "zone"],
)
def test_how_a_writer_had_values_in_memory_does_not_matter(folder: Folder, declared: str, values: pa.Array) -> None:
    pq.write_table(_one_column(values), folder.path / "in" / "a.parquet", store_schema=True)
    source = folder.source(f"id BIGINT, {declared}")
    found = folder.in_memory(source, NoEnvelope())
    assert found is not None
    expected = folder.by_spark(source, NoEnvelope(), NO_NEEDS, ordered=False).select("id", "v").toArrow()
    assert found.rows.select(["id", "v"]).to_pylist() == expected.to_pylist()
    assert found.rows.schema.field("v").type == expected.schema.field("v").type


@pytest.mark.parametrize("metadata", [{"version": "2.4.8"}, {"version": "3.1.1", "legacyDateTime": ""}])
def test_dates_of_another_calendar_are_left_to_spark(folder: Folder, metadata: dict[str, str]) -> None:
    rows = _one_column(pa.array([dt.date(1500, 1, 1)]))
    folder.put(rows, version="3.5.1")
    assert folder.in_memory(folder.source("id BIGINT, v DATE"), NoEnvelope()) is not None
    folder.put(rows, "b", **metadata)
    assert folder.in_memory(folder.source("id BIGINT, v DATE"), NoEnvelope()) is None


def test_invalid_utf8_is_left_to_spark(folder: Folder) -> None:
    folder.put(_one_column(pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())))
    assert folder.in_memory(folder.source("id BIGINT, v STRING"), NoEnvelope()) is None


def test_a_damaged_or_missing_file_is_left_to_spark(folder: Folder) -> None:
    (folder.path / "in" / "a.parquet").write_bytes(b"PAR1 no PAR1")
    assert folder.in_memory(folder.source("id BIGINT, v STRING"), NoEnvelope()) is None
    folder.put(_one_column(pa.array(["x"])), "b")
    source = folder.source("id BIGINT, v STRING")
    end = source.next_end(None)
    (folder.path / "in" / "b.parquet").unlink()
    assert source.arrow_records(folder.spark, None, end, source.schema(folder.spark), LIMIT) is None


def test_options_of_the_reader_are_left_to_spark(folder: Folder) -> None:
    folder.put(_one_column(pa.array(["x"])))
    assert folder.in_memory(folder.source("id BIGINT, v STRING", options={"mergeSchema": "true"}), NoEnvelope()) is None


def test_many_rows_files_or_bytes_are_left_to_spark(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        folder.put(_one_column(pa.array(["x", "y"])), name)

    def found(limit: SizeLimit) -> bool:
        return folder.in_memory(folder.source("id BIGINT, v STRING"), NoEnvelope(), limit=limit) is not None

    assert found(SizeLimit(6, 10_000))
    assert not found(SizeLimit(5, 10_000))
    assert not found(SizeLimit(6, 100))
    monkeypatch.setattr("calve.source.files.in_memory.MOST_FILES", 2)
    assert not found(SizeLimit(6, 10_000))


def test_only_changes_that_the_table_takes_as_they_are_are_written_from_memory(folder: Folder) -> None:
    folder.put(_one_column(pa.array([3, None], pa.int32())))
    changes = folder.in_memory(folder.source("id BIGINT, v INT"), NoEnvelope())
    assert changes is not None

    def fits(kind: PrimitiveType, *, required: bool = False) -> bool:
        v = NestedField(2, "V", kind, required=required)
        schema = Schema(NestedField(1, "id", LongType(), required=True), v)
        return changes.fits(target_in(folder.path, schema))

    assert fits(IntegerType())
    assert not fits(LongType()), "a cast"
    assert not fits(IntegerType(), required=True), "a null"
