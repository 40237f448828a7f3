"""Columns that other tools add to tables of format version 3: with default values, and of types that no input has."""

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    StringType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from calve.iceberg.schema.arrow import arrow_schema
from calve.iceberg.schema.readable import schema_with
from calve.model.files import ColumnMetrics, Content, WrittenFile
from tests.support.foreign import exchange_files
from tests.support.runs import Run

DEFAULTS: dict[str, tuple[IcebergType, Any]] = {
    "amount": (DecimalType(9, 2), Decimal("1.25")),
    "at": (TimestamptzType(), dt.datetime(2024, 2, 29, 1, tzinfo=dt.UTC)),
    "bytes": (BinaryType(), b"\x00\xff"),
    "clock": (TimeType(), dt.time(1, 2, 3, 4)),
    "code": (FixedType(2), b"\x00\xff"),
    "day": (DateType(), dt.date(2024, 2, 29)),
    "flag": (BooleanType(), True),
    "mark": (UUIDType(), UUID("12345678-1234-5678-1234-567812345678")),
    "note": (StringType(), "none"),
    "rate": (FloatType(), 0.5),
}


def add_defaults(run: Run, initial: int, now: int | None, *, without: str = "") -> dict[str, Any]:
    """Do what another tool does: add columns with defaults, and change one. Returns the values of the other columns."""
    added = {name: one for name, one in DEFAULTS.items() if name != without}
    with run.now.update_schema() as update:
        for name, (kind, value) in added.items():
            update.add_column(name, kind, default_value=value)
        update.add_column("n", IntegerType(), default_value=initial)
    with run.now.update_schema() as update:
        update.set_default_value("n", now)
    run.table.load()
    return {name: value for name, (_, value) in added.items()}


def add_row(run: Run, *values: Any) -> None:
    """Do what another tool does: add a file with a row."""
    columns, path = arrow_schema(schema_with(run.now.schema())), run.home / "other.parquet"
    arrays = [pa.array([one], field.type) for one, field in zip(values, columns, strict=False)]
    pq.write_table(pa.Table.from_arrays(arrays, schema=columns), path)
    file = WrittenFile(Content.DATA, path.as_uri(), 1, path.stat().st_size, 0, (), ColumnMetrics(), ())
    exchange_files(run.now, [], [file])
