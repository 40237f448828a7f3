"""The interface of all writers, and the table's columns as writers need them: ids, Spark types, estimated widths."""

import json
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pyspark.sql import DataFrame

from calve.clock import Timer, untimed
from calve.errors import InvalidInput
from calve.model.change import order_columns, table_columns
from calve.model.checkpoint import SizeHint
from calve.model.files import WriteResult, WriteTarget
from calve.model.types import written_as

_WIDTHS = {"boolean": 1, "int": 4, "float": 4, "date": 4, "string": 24, "binary": 64, "uuid": 16}
_NOT_NATIVE = ("uuid", "fixed", "time")
_NESTED_WIDTH = 96
_DEFAULT_WIDTH = 8


@dataclass(frozen=True)
class WriteColumn:
    """One column of the table."""

    field_id: int
    name: str
    required: bool
    spark_type: str | None
    """Spark SQL's name of the type that is written; None for nested types."""
    width: int
    """Estimated bytes of a value in memory."""
    kind: str = ""
    """Iceberg's name of the type; empty for nested types."""
    given: str = ""
    """Its name in the frame of changes, which may differ in case."""


@dataclass(frozen=True)
class ChangeColumns:
    """The columns of a frame of changes."""

    columns: tuple[WriteColumn, ...]
    key: tuple[WriteColumn, ...]
    """Empty: every row is kept."""
    order: tuple[str, ...]

    @property
    def key_names(self) -> list[str]:
        """In key order."""
        return [column.name for column in self.key]

    @property
    def native(self) -> bool:
        """Whether Spark's own Parquet writer supports all types of the table."""
        return all(column.spark_type and column.kind.partition("[")[0] not in _NOT_NATIVE for column in self.columns)

    @property
    def row_width(self) -> int:
        """Estimated bytes of a row in memory."""
        return sum(column.width for column in self.columns)


def layout_of(frame_columns: list[str], target: WriteTarget) -> ChangeColumns:
    """Match a frame's columns with the table's. Raises InvalidInput if they differ."""
    columns = tuple(_column(field) for field in json.loads(target.schema_json)["fields"])
    expected, found = [column.name for column in columns], table_columns(frame_columns, log=not target.key_ids)
    if [name.lower() for name in expected] != [name.lower() for name in found]:
        raise InvalidInput(
            "the changes do not have the table's columns",
            detail=f"The table has {', '.join(expected)}; the changes have {', '.join(found)}.",
        )
    columns = tuple(replace(column, given=name) for column, name in zip(columns, found, strict=True))
    by_id = {column.field_id: column for column in columns}
    return ChangeColumns(columns, tuple(by_id[i] for i in target.key_ids), tuple(order_columns(frame_columns)))


def key_names(target: WriteTarget) -> tuple[str, ...]:
    """Names of the key columns, in key order."""
    names = {field["id"]: field["name"] for field in json.loads(target.schema_json)["fields"]}
    return tuple(names[number] for number in target.key_ids)


def _column(field: dict[str, Any]) -> WriteColumn:
    kind = field["type"]
    if not isinstance(kind, str):
        return WriteColumn(field["id"], field["name"], field["required"], None, _width(kind))
    spark_type = written_as(kind)
    if spark_type is None:
        raise InvalidInput(
            f'column "{field["name"]}" of the table has a type that Spark does not support',
            detail=f"It is {kind}.",
            hint="Write to a table without such a column.",
        )
    return WriteColumn(field["id"], field["name"], field["required"], spark_type, _width(kind), kind)


def _width(kind: Any) -> int:
    if not isinstance(kind, str):
        return _NESTED_WIDTH
    return 16 if kind.startswith("decimal") else _WIDTHS.get(kind, _DEFAULT_WIDTH)


class BatchTooLarge(Exception):
    """The batch is larger than this writer accepts; nothing was written, and the next writer starts over."""


@dataclass(frozen=True)
class WriteJob:
    """One batch to write. Its frame fails on bad records and invalid nulls (see `changes.py`)."""

    frame: DataFrame
    layout: ChangeColumns
    target: WriteTarget
    deletes: bool
    """False: the table has no live rows, so no keys have to be deleted."""
    size: SizeHint
    batch_id: str
    """Unique: file names are derived from it."""
    timed: Timer = untimed
    """Measures phases, in the driver."""


class Writer(Protocol):
    """Turns a batch into files: the last change of each key, rows sorted by key, and the keys to delete."""

    def write(self, job: WriteJob) -> WriteResult:
        """Write all files of the batch. Raises BatchTooLarge before anything is written."""
        ...
