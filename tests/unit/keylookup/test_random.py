"""Random batches of any key, resolved and committed: the table equals a dictionary, and no row is deleted twice."""

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from calve.iceberg.files.content import content_id
from calve.iceberg.files.partitions import Partitioner
from calve.iceberg.schema.arrow import arrow_schema
from tests.support.foreign import Row, in_order, live_entries_of
from tests.support.keyed import KeyedTable
from tests.support.readers import duckdb_rows

pytestmark = pytest.mark.long

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", StringType(), required=True),
    NestedField(3, "price", DecimalType(9, 2), required=True),
    NestedField(4, "day", DateType(), required=True),
    NestedField(5, "at", TimestamptzType(), required=True),
    NestedField(6, "raw", BinaryType(), required=True),
    NestedField(7, "v", IntegerType(), required=False),
)
IDS = {field.name: field.field_id for field in SCHEMA.fields}
DAY = dt.date(1969, 12, 30)
AT = dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC)


def by(*fields: tuple[str, Any]) -> PartitionSpec:
    return PartitionSpec(
        *[PartitionField(IDS[name], 1000 + n, how, f"{name}_{how}") for n, (name, how) in enumerate(fields)]
    )


CASES = [
    (["id"], by()),
    (["id"], by(("id", BucketTransform(4)), ("v", IdentityTransform()))),
    (["region", "id"], by(("region", IdentityTransform()))),
    (["region"], by(("region", TruncateTransform(1)))),
    (["day", "price"], by(("day", IdentityTransform()), ("price", TruncateTransform(50)))),
    (["at"], by(("at", DayTransform()))),
    (["raw", "at", "id"], by(("raw", BucketTransform(3)))),
]


def random_row(rng: random.Random) -> dict[str, Any]:
    return {
        "id": rng.randrange(30),
        "region": rng.choice(["eu", "us", "é", ""]) + str(rng.randrange(8)),
        "price": Decimal(rng.randrange(12)) / 4,
        "day": DAY + dt.timedelta(rng.randrange(6)),
        "at": AT + dt.timedelta(hours=rng.randrange(30)),
        "raw": bytes([rng.randrange(3)]),
        "v": rng.randrange(2),
    }


def files_of(table: KeyedTable, rows: list[Row], rng: random.Random) -> list[Any]:
    """Data files under a random spec of the table, one for each partition."""
    spec = rng.choice(list(table.table.specs().values()))
    placed: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        ((values, _),) = Partitioner(SCHEMA, spec).runs(pa.Table.from_pylist([dict(row)], schema=arrow_schema(SCHEMA)))
        placed.setdefault(values, []).append(row)
    return [table.data(rows, values, spec_id=spec.spec_id, row_group_size=7) for values, rows in placed.items()]


def check_vectors(table: KeyedTable) -> None:
    """Check that data files have at most one vector each, that none is empty, and that nothing else deletes rows."""
    found = [entry.data_file for entry in live_entries_of(table) if entry.data_file.content]
    assert {file.file_format for file in found} <= {FileFormat.PUFFIN}
    assert all(file.record_count for file in found)
    named = [content_id(file).data_file for file in found]
    assert len(set(named)) == len(named)


@pytest.mark.parametrize(("key", "spec"), CASES, ids=lambda case: "-".join(case) if isinstance(case, list) else "")
@pytest.mark.parametrize(
    ("seed", "version"),
    [(0, 2), (1, 3), *(pytest.param(seed, 2 + seed % 2, marks=pytest.mark.soak) for seed in range(2, 12))],
)
def test_a_table_equals_its_changes_and_deletes_every_row_once(
    key: list[str], spec: PartitionSpec, seed: int, version: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    table = KeyedTable(tmp_path, SCHEMA, key, spec, version=version)
    for _ in range(8):
        changes = {table.key_of(row): row for row in (random_row(rng) for _ in range(rng.choice([1, 5, 40])))}
        gone = [row for row in changes.values() if rng.random() < 0.3]
        kept: list[Row] = [row for row in changes.values() if row not in gone]
        table.apply(files_of(table, kept, rng), kept, gone)
        live = int(table.summary["total-records"]) - int(table.summary["total-position-deletes"])
        assert live == len(table.contents), "no position is deleted twice, and none is left"
        if version > 2:
            check_vectors(table)
    assert in_order(table.rows()) == in_order(table.contents.values())
    assert in_order(duckdb_rows(table.table.metadata_location)) == in_order(table.contents.values())
    table.close()
