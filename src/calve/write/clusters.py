"""Columns that Spark sorts rows by, so that the rows of a partition are adjacent: one per partition field.

Two rows have equal values in these columns if and only if they belong to the same partition. The values differ from
the partition values of the table, which `iceberg/files/transforms.py` computes from the rows: they only have to be
fast, exact and free of overflow. Assumes that the session's time zone is UTC.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from calve.model.files import WriteTarget
from calve.spark.sqltext import quoted
from calve.spark.version import murmur3, murmur3_of_long, unscaled_bytes

_HOUR_MICROS = 3_600_000_000


@dataclass(frozen=True)
class _Source:
    """The source column of a partition field, and Iceberg's name of its type."""

    column: Column
    kind: str


def cluster(target: WriteTarget) -> Column:
    """One number per partition: a 64-bit hash, so collisions are possible but very rare."""
    columns = cluster_columns(target)
    if not columns:
        return F.lit(0).cast("bigint")
    return F.xxhash64(*(part for column in columns for part in (column.isNull(), column)))  # xxhash64 skips nulls


def cluster_columns(target: WriteTarget) -> list[Column]:
    """In the order of the spec, without fields whose source column is not in the schema."""
    spec = json.loads(target.data_spec_json)
    fields = json.loads(target.schema_json)["fields"]
    found = ((_source(fields, field["source-id"]), field["transform"]) for field in spec["fields"])
    return [_cluster(source, transform) for source, transform in found if source and transform != "void"]


def _source(fields: list[dict[str, Any]], field_id: int, parent: Column | None = None) -> _Source | None:
    for field in fields:
        column = quoted(field["name"]) if parent is None else parent.getField(field["name"])
        kind = field["type"]
        if field["id"] == field_id:
            return _Source(column, kind)
        if isinstance(kind, dict) and kind["type"] == "struct" and (found := _source(kind["fields"], field_id, column)):
            return found
    return None


def _cluster(source: _Source, transform: str) -> Column:
    name, _, width = transform.rstrip("]").partition("[")
    return _CLUSTERS[name](source, int(width or 0))


def _identity(source: _Source, _: int) -> Column:
    column = source.column
    if source.kind in {"float", "double"}:  # Spark sorts -0.0 and 0.0 as equal
        return F.struct(column, column.cast("string"))
    return column


def _bucket(source: _Source, buckets: int) -> Column:
    if source.kind.startswith("decimal"):
        hashed = murmur3(unscaled_bytes(source.column))
    elif source.kind in {"string", "binary", "uuid"} or source.kind.startswith("fixed"):
        hashed = murmur3(source.column.cast("binary"))
    else:
        hashed = F.when(source.column.isNotNull(), murmur3_of_long(_long(source)))
    return hashed.bitwiseAND(0x7FFF_FFFF) % buckets


def _long(source: _Source) -> Column:
    match source.kind:
        case "date":
            return F.unix_date(source.column).cast("bigint")
        case "time":
            return (source.column.cast("decimal(20,6)") * 1_000_000).cast("bigint")
        case "timestamp" | "timestamptz":
            return F.unix_micros(source.column.cast("timestamp"))
        case _:
            return source.column.cast("bigint")


def _truncate(source: _Source, width: int) -> Column:
    if source.kind.startswith("decimal"):
        return unscaled_bytes(source.column, multiple_of=width)
    if source.kind in {"string", "binary"}:
        return F.substring(source.column, 1, width)
    return _floor_divided(_long(source), width)


def _floor_divided(value: Column, width: int) -> Column:
    quotient = F.call_function("div", value, F.lit(width).cast("bigint"))
    return quotient - F.when(value % width < 0, 1).otherwise(0)


def _year(source: _Source, _: int) -> Column:
    return F.year(source.column.cast("date"))


def _month(source: _Source, _: int) -> Column:
    day = source.column.cast("date")
    return F.year(day) * 12 + F.month(day)


def _day(source: _Source, _: int) -> Column:
    return source.column.cast("date")


def _hour(source: _Source, _: int) -> Column:
    return _floor_divided(_long(source), _HOUR_MICROS)


_CLUSTERS: dict[str, Callable[[_Source, int], Column]] = {
    "identity": _identity,
    "bucket": _bucket,
    "truncate": _truncate,
    "year": _year,
    "month": _month,
    "day": _day,
    "hour": _hour,
}
