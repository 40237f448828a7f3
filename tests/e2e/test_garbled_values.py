"""Parquet files with invalid UTF-8 and timestamps outside Python's range: dead letters, never a broken table."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from calve.api.verify import verify
from calve.errors import BadRow
from tests.support.pipelines import Pipelines
from tests.support.readers import spark_iceberg_rows

LAKE = "CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');"
SINK = "CREATE SINK {0} FROM {0} TO ICEBERG CATALOG lake NAMESPACE x TABLE {0} {1} WITH ({2});"
TEXTS = [b"good", b"\xff\xfe\xfa", b"caf\xe9", b"\xed\xa0\x80", "größe".encode()]
GOOD = [0, 4]
IDS = pa.array(range(len(TEXTS)), pa.int64())
ID = "id BIGINT NOT NULL"


def texts() -> pa.Array:
    """Bytes under the name of texts, as a careless writer leaves them."""
    data = pa.array(TEXTS, pa.binary())
    _, offsets, values = data.buffers()
    return pa.StringArray.from_buffers(len(data), offsets, values)


def each(value: pa.Array, wrap: str) -> pa.Array:
    """Every text inside of another type."""
    offsets = pa.array(range(len(TEXTS) + 1), pa.int32())
    numbers = pa.array([1] * len(TEXTS), pa.int64())
    match wrap:
        case "list":
            return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([value], ["x"]))
        case "key":
            return pa.MapArray.from_arrays(offsets, value, numbers)
    return pa.MapArray.from_arrays(offsets, numbers, value)


def changes(image: pa.StructArray) -> pa.Table:
    before = image.take(pa.array([None] * len(image), pa.int64()))
    return pa.table({"op": ["c"] * len(image), "before": before, "after": image, "ts_ms": IDS})


def moments() -> pa.Array:
    found = [0, 253_402_300_800_000_000, -62_135_596_800_000_001, 2**63 - 1, 1]
    return pa.array(found, pa.int64()).cast(pa.timestamp("us", "UTC"))


TABLES: dict[str, tuple[str, str, str, pa.Table]] = {
    "plain": (f"{ID}, s STRING, PRIMARY KEY (id) NOT ENFORCED", "", "", pa.table({"id": IDS, "s": texts()})),
    "parted": (
        f"{ID}, s STRING, PRIMARY KEY (id) NOT ENFORCED",
        "",
        "PARTITION BY (s)",
        pa.table({"id": IDS, "s": texts()}),
    ),
    "keyed": (
        "s STRING NOT NULL, id BIGINT, PRIMARY KEY (s) NOT ENFORCED",
        "ENVELOPE UPSERT (ORDER BY id)",
        "",
        pa.table({"s": texts(), "id": IDS}),
    ),
    "nested": (
        f"{ID}, l ARRAY<STRUCT<x: STRING>>, m MAP<BIGINT, STRING>, PRIMARY KEY (id) NOT ENFORCED",
        "",
        "",
        pa.table({"id": IDS, "l": each(texts(), "list"), "m": each(texts(), "value")}),
    ),
    "keys": (
        f"{ID}, m MAP<STRING, BIGINT>, PRIMARY KEY (id) NOT ENFORCED",
        "",
        "",
        pa.table({"id": IDS, "m": each(texts(), "key")}),
    ),
    "changed": (
        f"{ID}, s STRING, PRIMARY KEY (id) NOT ENFORCED",
        "ENVELOPE DEBEZIUM (ORDER BY ts_ms)",
        "",
        changes(pa.StructArray.from_arrays([IDS, texts()], ["id", "s"])),
    ),
    "moments": (
        f"{ID}, t TIMESTAMP, PRIMARY KEY (id) NOT ENFORCED",
        "ENVELOPE DEBEZIUM (ORDER BY ts_ms)",
        "",
        changes(pa.StructArray.from_arrays([IDS, moments()], ["id", "t"])),
    ),
}
REASONS = {
    name: f'column "{column}" contains invalid UTF-8'
    for name, column in {
        "plain": "s",
        "parted": "s",
        "keyed": "s",
        "nested": "l",
        "keys": "m",
        "changed": "after",
    }.items()
} | {"moments": 'column "after" contains a time outside of the years 0001 to 9999'}


@pytest.fixture
def pipelines(tmp_path: Path, spark: SparkSession) -> Pipelines:
    made = Pipelines(tmp_path / "home", spark)
    made.apply(LAKE)
    for name, (columns, envelope, _, table) in TABLES.items():
        (tmp_path / name).mkdir()
        pq.write_table(table, tmp_path / name / "1.parquet")
        made.apply(
            f"CREATE SOURCE {name} ({columns}) FROM FILES (PATH = '{tmp_path}/{name}', FORMAT = 'parquet') {envelope}"
        )
    return made


def test_values_that_others_cannot_read_are_letters_and_the_table_stays_readable(pipelines: Pipelines) -> None:
    for name, (_, _, partitions, _) in TABLES.items():
        pipelines.apply(SINK.format(name, partitions, "ON BAD ROW = 'dead letter'"))
    for _ in range(2):
        assert [(r.name, r.cause, r.pending) for r in pipelines.run()] == [(name, None, 0) for name in TABLES]
    for name in TABLES:
        assert sorted(number for (number,) in pipelines.rows(f"x.{name}", "id")) == GOOD, name
        found = spark_iceberg_rows(pipelines.table(f"x.{name}").metadata_location)
        assert sorted(row["id"] for row in found) == GOOD, name
        assert pipelines.rows(f"x.{name}_dead_letters", "reason") == [(REASONS[name],)] * 3, name
    assert verify(pipelines.place, "plain").none


def test_values_that_others_cannot_read_halt_the_sink_and_their_record_is_shown(pipelines: Pipelines) -> None:
    pipelines.apply("CREATE VIEW made AS SELECT id, CAST(unhex('FF') AS STRING) AS s FROM plain")
    for name in ("plain", "changed", "made"):
        pipelines.apply(SINK.format(name, "", "ON BAD ROW = 'halt'"))
    causes: dict[str, Any] = {result.name: result.cause for result in pipelines.run()}
    for name in ("plain", "changed"):
        assert isinstance(causes[name], BadRow)
        assert causes[name].primary == REASONS[name]
        assert '"id":1' in causes[name].detail
        assert pipelines.rows(f"x.{name}") == []
    assert isinstance(causes["made"], BadRow)
    assert pipelines.rows("x.made") == []
