"""A foreign table with all kinds of equality deletes: of several keys, of partitions, of an older spec."""

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, DecimalType, IntegerType, LongType, NestedField, StringType

from tests.support.foreign import ForeignTable

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "price", DecimalType(9, 2), required=False),
    NestedField(4, "day", DateType(), required=False),
    NestedField(5, "v", IntegerType(), required=False),
)
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
REGIONS = ["eu", "us", None]
KEYS = [["id"], ["region", "v"], ["day", "id"], ["price"]]


def table_of_regions(folder: Path) -> ForeignTable:
    """Create the table without rows; spec 0 is by region, the current one has no field."""
    made = ForeignTable(folder, SCHEMA, BY_REGION)
    with made.table.update_spec() as update:
        update.remove_field("region")
    return made


def random_row(rng: random.Random, region: str | None) -> dict[str, Any]:
    return {
        "id": rng.choice([None, *range(30)]),
        "region": region,
        "price": rng.choice([None, Decimal(rng.randrange(8)) / 4]),
        "day": rng.choice([None, dt.date(2024, 1, 1) + dt.timedelta(rng.randrange(5))]),
        "v": rng.choice([None, *range(4)]),
    }


def random_commit(table: ForeignTable, rng: random.Random) -> None:
    files = []
    for region in rng.sample(REGIONS, 2):
        rows = [random_row(rng, region) for _ in range(40)]
        files.append(table.data(rows, [region], spec_id=0, row_group_size=16))
        fields = rng.choice(KEYS)
        gone = [random_row(rng, region) for _ in range(2)]
        files.append(table.equality(fields, [{n: g[n] for n in fields} for g in gone], [region], spec_id=0))
    files.append(table.data([random_row(rng, rng.choice(REGIONS)) for _ in range(20)]))
    fields = rng.choice(KEYS)
    files.append(table.equality(fields, [{n: random_row(rng, "eu")[n] for n in fields}]))
    files.append(table.positions([(files[-2], rng.randrange(20)) for _ in range(3)]))
    table.commit(*files)


def row(number: int, v: int = 0) -> dict[str, Any]:
    """A row of one region."""
    return {"id": number, "region": "eu", "price": None, "day": None, "v": v}
