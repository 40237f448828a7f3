"""Every type as a column, as a key and as a partition source, with boundary values, read by other engines.

A sink writes one wide table of each kind; each test checks one column of the readers' results.
"""

import datetime as dt
import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import PartitionField
from pyiceberg.table import Table
from pyiceberg.types import DateType, IcebergType, TimestampType, TimestamptzType, UUIDType
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import StructType

import calve
from calve.model.checkpoint import Offsets
from calve.model.spec import PartitionBy, Upsert
from calve.model.types import TYPES, declared_type
from tests.support.changes import Batches
from tests.support.readers import Rows, duckdb_rows, spark_iceberg_rows

FIRST, LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001 - local times
JULIAN, BEFORE_1970 = dt.datetime(1582, 10, 10, 12), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001
LOCAL = [FIRST, LAST, JULIAN, BEFORE_1970]
MOMENTS = [moment.replace(tzinfo=dt.UTC) for moment in LOCAL]
FLOATS = [0.0, -0.0, 1.5, math.nan, math.inf, -math.inf]
LARGE = "x" * 2_000_000


@dataclass(frozen=True)
class Kind:
    """A type: how it is declared, values, and an expression that makes it of what Python can give to Spark."""

    ddl: str
    values: Sequence[Any]
    sql: str = "{}"
    stored: Sequence[Any] | None = None
    """What the table has, where it is something else."""


EXACT = {
    "yes": Kind("BOOLEAN", [True, False]),
    "tiny": Kind("TINYINT", [-128, 127]),
    "small": Kind("SMALLINT", [-(2**15), 2**15 - 1]),
    "number": Kind("INT", [-(2**31), 2**31 - 1, 0]),
    "long": Kind("BIGINT", [-(2**63), 2**63 - 1]),
    "price": Kind("DECIMAL(5,2)", [Decimal("-999.99"), Decimal("999.99"), Decimal("0.00")]),
    "total": Kind("DECIMAL(18,4)", [Decimal("-99999999999999.9999"), Decimal("0.0001")]),
    "huge": Kind("DECIMAL(38,0)", [Decimal(-(10**38) + 1), Decimal(10**38 - 1)]),
    "part": Kind("DECIMAL(38,38)", [Decimal("-0." + "9" * 38), Decimal("0." + "0" * 37 + "1")]),
    "text": Kind("STRING", ["", "é😀\0", " padded ", "x" * 300]),
    "raw": Kind("BINARY", [b"", bytes(range(256)), b"\0"]),
    "day": Kind("DATE", [moment.date() for moment in LOCAL]),
    "at": Kind("TIMESTAMP", MOMENTS),
    "local": Kind("TIMESTAMP_NTZ", LOCAL),
    "ident": Kind("UUID", [str(uuid.UUID(int=n)) for n in (0, 2**128 - 1, 0x3F2504E04F8911D39A0C0305E82C3301)]),
}
"""What keys and partitions can be made of."""

INEXACT = {
    "ratio": Kind("FLOAT", [*FLOATS, 3.4028234663852886e38, 1.401298464324817e-45]),
    "exact": Kind("DOUBLE", [*FLOATS, 1.7976931348623157e308, 5e-324]),
}
NESTED = {
    "large": Kind("STRING", [LARGE]),
    "span": Kind(
        "INTERVAL DAY TO SECOND",
        [dt.timedelta(0), dt.timedelta(days=-1, microseconds=1), dt.timedelta(days=106_751_990)],
        stored=[
            "INTERVAL '0 00:00:00' DAY TO SECOND",
            "INTERVAL '-0 23:59:59.999999' DAY TO SECOND",
            "INTERVAL '106751990 00:00:00' DAY TO SECOND",
        ],
    ),
    "months": Kind(
        "STRING", ["1-2", "-1-0"], "cast({} as INTERVAL YEAR TO MONTH)",
        stored=["INTERVAL '1-2' YEAR TO MONTH", "INTERVAL '-1-0' YEAR TO MONTH"],
    ),
    "json": Kind("STRING", ['{"a":[1,2.5,null]}', '"text"', "null", "[]"], "parse_json({})"),
    "spans": Kind(
        "ARRAY<INTERVAL DAY TO SECOND>", [[], [dt.timedelta(days=1), None]],
        stored=[[], ["INTERVAL '1 00:00:00' DAY TO SECOND", None]],
    ),
    "list": Kind("ARRAY<INT>", [[], [1, None, -(2**31)]]),
    "lists": Kind("ARRAY<ARRAY<STRING>>", [[], [[], None, ["", None]]]),
    "map": Kind("MAP<STRING, DOUBLE>", [{}, {"": math.inf, "b": None}], stored=[[], [("", math.inf), ("b", None)]]),
    "struct": Kind(
        "STRUCT<a: INT, b: STRUCT<c: STRING, d: DATE>>",
        [
            {"a": None, "b": None},
            {"a": 1, "b": {"c": None, "d": None}},
            {"a": 2, "b": {"c": "", "d": FIRST.date()}},
        ],
    ),
    "deep": Kind(
        "ARRAY<STRUCT<x: TIMESTAMP, y: MAP<INT, ARRAY<DECIMAL(38,0)>>>>",
        [[], [None, {"x": MOMENTS[0], "y": {1: [Decimal(10**38 - 1), None]}}, {"x": None, "y": None}]],
        stored=[[], [None, {"x": MOMENTS[0], "y": [(1, [Decimal(10**38 - 1), None])]}, {"x": None, "y": None}]],
    ),
}  # fmt: skip
COLUMNS = EXACT | INEXACT | NESTED
UUIDS = ("ident",)
READERS: dict[str, Callable[[str], Rows]] = {"duckdb": duckdb_rows, "spark": spark_iceberg_rows}


@dataclass(frozen=True)
class Typed(Batches):
    """Batches with types that Python has no values of."""

    made: tuple[tuple[str, str], ...] = ()

    def frame(self, spark: SparkSession, start: Offsets, end: Offsets) -> DataFrame:
        return super().frame(spark, start, end).withColumns({name: _sql(text) for name, text in self.made})

    def schema(self, spark: SparkSession) -> StructType:
        return self.frame(spark, None, None).schema


def _sql(text: str) -> Any:
    from pyspark.sql.functions import expr  # noqa: PLC0415 - needs a session

    return expr(text)


def source(kinds: Mapping[str, Kind], batches: Sequence[Sequence[dict[str, Any]]], key: str = "id BIGINT") -> Typed:
    ddl = ", ".join([key, *(f"{name} {kind.ddl.replace('UUID', 'STRING')}" for name, kind in kinds.items())])
    names = [part.split(" ")[0] for part in key.split(", ")] + list(kinds)
    rows = [[tuple(row.get(name) for name in (*names, "op")) for row in batch] for batch in batches]
    made = tuple((name, kind.sql.format(name)) for name, kind in kinds.items() if kind.sql != "{}")
    envelope = Upsert(order_by=("id",), delete_when="op = 'd'", columns=", ".join(names))
    return Typed(rows, f"{ddl}, op STRING", envelope, made)


def written(home: Path, changes: Typed, key: Sequence[str], *partitions: PartitionBy) -> Table:
    lake = calve.connect(home=home)
    sink = calve.sink(changes, name="s", into=lake.table("x.t"), key=key)
    sink = replace(sink, spec=replace(sink.spec, uuids=UUIDS, partition_by=partitions))
    query = sink.start()
    assert query.await_termination(30), query.status().cause
    return lake.open().load_table("x.t")


def comparable(value: Any) -> Any:
    """Equal where the values are the same, NaN and the sign of zero included."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bytearray | uuid.UUID):
        return bytes(value) if isinstance(value, bytearray) else str(value)
    if isinstance(value, list | tuple):
        return [comparable(entry) for entry in value]
    if isinstance(value, dict):
        return {name: comparable(entry) for name, entry in value.items()}
    return value


# ---- columns


@pytest.fixture(scope="module")
def columns(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    """One table with a column of every type; row n has the n-th value of each, the last one none."""
    del spark
    count = max(len(kind.values) for kind in COLUMNS.values())
    rows = [
        {"id": n, **{name: kind.values[n] for name, kind in COLUMNS.items() if n < len(kind.values)}}
        for n in range(count + 1)
    ]
    table = written(tmp_path_factory.mktemp("columns"), source(COLUMNS, [rows]), ["id"])
    return {name: sorted(read(table.metadata_location), key=lambda row: row["id"]) for name, read in READERS.items()}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_gives_back_what_was_written(columns: dict[str, Rows], name: str, reader: str) -> None:
    kind, found = COLUMNS[name], [row[name] for row in columns[reader]]
    expected = list(kind.values if kind.stored is None else kind.stored)
    expected += [None] * (len(found) - len(expected))
    assert comparable(found) == comparable(expected)


# ---- keys


@pytest.fixture(scope="module")
def keyed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    """One table whose key has a column of every type; each row differs in one of them from the first."""
    del spark
    base = {name: kind.values[-1] for name, kind in EXACT.items()}
    first = [
        {"id": n, "of": name, **base, name: value}
        for n, (name, value) in enumerate((name, value) for name, kind in EXACT.items() for value in kind.values[:-1])
    ]
    again = [{**row, "id": row["id"] + 1000} for row in first]
    gone = [{**row, "id": row["id"] + 2000, "op": "d"} for row in first if row[row["of"]] == EXACT[row["of"]].values[0]]
    changes = source(EXACT, [first, again, gone], "id BIGINT, of STRING")
    table = written(tmp_path_factory.mktemp("keys"), changes, list(EXACT))
    return {name: read(table.metadata_location) for name, read in READERS.items()}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", EXACT)
def test_a_key_is_found_again(keyed: dict[str, Rows], name: str, reader: str) -> None:
    values = EXACT[name].values[1:-1]
    found = sorted((row["id"] > 999, comparable(row[name])) for row in keyed[reader] if row["of"] == name)
    assert found == sorted((True, comparable(value)) for value in values)


# ---- partitions


SPECS = [
    PartitionBy(transform, (name,), width)
    for name, kind in EXACT.items()
    for transform, width in (("identity", None), ("bucket", 7), ("truncate", 4), ("month", None), ("hour", None))
    if transform in getattr(declared_type(kind.ddl), "transforms", ())
    if not (transform == "truncate" and "DECIMAL" in kind.ddl)  # below
    if not (transform == "month" and "TIMESTAMP" in kind.ddl)  # follows from the hour
] + [PartitionBy("truncate", (name,), 3) for name, kind in EXACT.items() if "DECIMAL" in kind.ddl]
"""A decimal that leaves its digits when truncated cannot be written, by Java neither: 3 divides the least ones."""


DECIMALS = [by for by in SPECS if EXACT[by.column[0]].ddl.startswith("DECIMAL") and by.transform != "bucket"]
"""DuckDB 1.5 ends its process when it meets a decimal in a manifest: those are read by Spark alone."""


@dataclass(frozen=True)
class Partitioned:
    table: Table
    rows: dict[str, Rows]
    values: dict[int, dict[str, Any]]
    """Partition values of the file of each row."""

    @classmethod
    def of(cls, home: Path, kinds: Mapping[str, Kind], specs: Sequence[PartitionBy], readers: Sequence[str]) -> Self:
        count = max(len(kind.values) for kind in kinds.values())
        rows = [
            {"id": n, **{name: kind.values[n] for name, kind in kinds.items() if n < len(kind.values)}}
            for n in range(count + 1)
        ]
        table = written(home, source(kinds, [rows, rows]), ["id"], *specs)
        found = {name: READERS[name](table.metadata_location) for name in readers}
        return cls(table, found, dict(_partition_values(table)))


@pytest.fixture(scope="module")
def partitioned(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Partitioned]:
    """Tables that are partitioned by every column in every way, by the names of the columns."""
    del spark
    kinds = EXACT | {"ratio": INEXACT["ratio"]}
    specs = [*(by for by in SPECS if by not in DECIMALS), PartitionBy("identity", ("ratio",))]
    most = Partitioned.of(tmp_path_factory.mktemp("partitions"), kinds, specs, list(READERS))
    decimals = {by.column[0]: EXACT[by.column[0]] for by in DECIMALS}
    rest = Partitioned.of(tmp_path_factory.mktemp("decimals"), decimals, DECIMALS, ["spark"])
    return {"most": most, "decimals": rest}


def _partition_values(table: Table) -> Iterator[tuple[int, dict[str, Any]]]:
    number = table.schema().find_field("id").field_id
    head = table.current_snapshot()
    assert head
    for manifest in head.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io) if manifest.content == ManifestContent.DATA else ():
            file = entry.data_file
            values = {field.name: file.partition[at] for at, field in enumerate(table.spec().fields)}
            yield int.from_bytes(file.lower_bounds[number], "little"), values


@pytest.mark.parametrize(("which", "reader"), [("most", "duckdb"), ("most", "spark"), ("decimals", "spark")])
def test_rows_of_many_partitions_are_all_there(partitioned: dict[str, Partitioned], which: str, reader: str) -> None:
    rows = partitioned[which].rows[reader]
    assert sorted(row["id"] for row in rows) == list(range(len(rows)))
    for name in [name for name in EXACT if name in rows[0]]:
        found = {row["id"]: comparable(row[name]) for row in rows}
        values = EXACT[name].values
        assert [found[n] for n in range(len(values))] == comparable(list(values)), name


@pytest.mark.parametrize("wanted", SPECS, ids=str)
def test_the_partition_of_a_row_is_what_the_specification_says(
    partitioned: dict[str, Partitioned], wanted: PartitionBy
) -> None:
    """As pyiceberg computes it, value by value."""
    made = partitioned["decimals" if wanted in DECIMALS else "most"]
    (name,), schema = wanted.column, made.table.schema()
    field = next(f for f in made.table.spec().fields if _is(f, wanted, schema.find_field(name).field_id))
    kind = schema.find_type(name)
    transform = field.transform.transform(kind)
    values = [*EXACT[name].values, None]
    found = [made.values[n][field.name] for n in range(len(values))]
    assert [plain(value, kind) for value in found] == [transform(plain(value, kind)) for value in values]


def _is(field: PartitionField, wanted: PartitionBy, source_id: int) -> bool:
    return field.source_id == source_id and str(field.transform).partition("[")[0] == wanted.transform


def plain(value: Any, kind: IcebergType) -> Any:
    """As the specification computes with it."""
    if isinstance(value, dt.datetime) and isinstance(kind, TimestampType | TimestamptzType):
        return datetime_to_micros(value)
    if isinstance(value, dt.date) and isinstance(kind, DateType):
        return date_to_days(value)
    return uuid.UUID(value) if isinstance(value, str) and isinstance(kind, UUIDType) else value


# ---- times of day, which Spark's Iceberg runtime does not have


def test_times_of_day_are_columns_keys_and_partitions(spark: SparkSession, tmp_path: Path) -> None:
    times = [dt.time(0), dt.time(23, 59, 59, 999_999), dt.time(12, 30)]
    kinds = {"clock": Kind("TIME(6)", times), "maybe": Kind("TIME(6)", times)}
    rows = [{"id": n, "clock": value, "maybe": value if n else None} for n, value in enumerate(times)]
    again = [{**row, "id": n + 10} for n, row in enumerate(rows)]
    gone = [{**rows[2], "id": 20, "op": "d"}]
    changes = source(kinds, [rows, again, gone])
    table = written(
        tmp_path, changes, ["clock"], PartitionBy("bucket", ("clock",), 4), PartitionBy("identity", ("maybe",))
    )
    expected = [(10, times[0], None), (11, times[1], times[1])]
    readers = [duckdb_rows(table.metadata_location)]
    readers.append([row.asDict() for row in calve.read(spark, calve.connect(home=tmp_path).table("x.t")).collect()])
    for found in readers:
        assert sorted((row["id"], row["clock"], row["maybe"]) for row in found) == expected


# ---- what files say of columns


def test_files_have_the_extension_types_that_columns_of_a_frame_name_and_bloom_filters_of_the_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    said = {"ARROW:extension:name": "geoarrow.wkb", "ARROW:extension:metadata": "{}"}
    shape = F.col("id").cast("string").cast("binary").alias("shape", metadata=said)
    note = F.lit("{}").alias("note", metadata={"ARROW:extension:name": "arrow.json"})
    lake = calve.connect(home=tmp_path)
    sink = calve.sink(spark.range(3).select("id", shape, note), name="s", into=lake.table("x.t"), key=["id"])
    query = sink.options(bloom_filter=True).start()
    query.await_caught_up()
    query.stop()
    table = lake.open().load_table("x.t")
    (task,) = table.scan().plan_files()
    file = pq.ParquetFile(task.file.file_path.removeprefix("file://"))
    told = {name.encode(): value.encode() for name, value in said.items()}
    assert told.items() <= file.schema_arrow.field("shape").metadata.items()
    assert file.schema_arrow.field("note").type == pa.large_string()
    group = file.metadata.row_group(0)
    assert [bool(group.column(i).bloom_filter_offset) for i in range(3)] == [True, False, False]
    rows = [{"id": n, "shape": str(n).encode(), "note": "{}"} for n in range(3)]
    assert sorted(table.scan().to_arrow().to_pylist(), key=lambda row: int(row["id"])) == rows
    for read in (duckdb_rows, spark_iceberg_rows):
        assert sorted(read(table.metadata_location), key=lambda row: int(row["id"])) == rows


def test_every_type_is_tried() -> None:
    tried = {kind.ddl for kind in COLUMNS.values()} | {"TIME"}
    elsewhere = {"VARIANT", "CHAR", "VARCHAR", "VOID"}  # made by an expression; not for frames; refused
    assert {kind.sql for kind in TYPES} == {known.sql for ddl in tried if (known := declared_type(ddl))} | elsewhere
