"""The one interface of all writers.

The table's columns as writers need them: ids, Spark types, widths. Read from the schema's JSON.
"""

import json
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pyspark.sql import DataFrame

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
    """Bytes of a value in memory, guessed."""
    kind: str = ""
    """Iceberg's name of the type; empty for nested types."""
    given: str = ""
    """Its name among the changes, which may differ in case."""


@dataclass(frozen=True)
class Layout:
    """The columns of a frame of changes."""

    columns: tuple[WriteColumn, ...]
    key: tuple[WriteColumn, ...]
    """None: every row stays."""
    order: tuple[str, ...]

    @property
    def key_names(self) -> list[str]:
        """In key order."""
        return [column.name for column in self.key]

    @property
    def native(self) -> bool:
        """True when Spark's own Parquet writer knows all types as the table has them."""
        return all(column.spark_type and column.kind.partition("[")[0] not in _NOT_NATIVE for column in self.columns)

    @property
    def row_width(self) -> int:
        """Bytes of a row in memory, guessed."""
        return sum(column.width for column in self.columns)


def layout_of(frame_columns: list[str], target: WriteTarget) -> Layout:
    """How a frame's columns relate to the table's. Raises InvalidInput when they do not."""
    columns = tuple(_column(field) for field in json.loads(target.schema_json)["fields"])
    expected, found = [column.name for column in columns], table_columns(frame_columns, log=not target.key_ids)
    if [name.lower() for name in expected] != [name.lower() for name in found]:
        raise InvalidInput(
            "the changes do not have the table's columns",
            detail=f"The table has {', '.join(expected)}; the changes have {', '.join(found)}.",
        )
    columns = tuple(replace(column, given=name) for column, name in zip(columns, found, strict=True))
    by_id = {column.field_id: column for column in columns}
    return Layout(columns, tuple(by_id[i] for i in target.key_ids), tuple(order_columns(frame_columns)))


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
            f'column "{field["name"]}" of the table has a type that Spark does not have',
            detail=f"It is {kind}.",
            hint="Write to a table without such a column.",
        )
    return WriteColumn(field["id"], field["name"], field["required"], spark_type, _width(kind), kind)


def _width(kind: Any) -> int:
    if not isinstance(kind, str):
        return _NESTED_WIDTH
    return 16 if kind.startswith("decimal") else _WIDTHS.get(kind, _DEFAULT_WIDTH)


class BatchTooLarge(Exception):
    """The batch turned out larger than this writer takes; nothing was written, the next writer begins anew."""


@dataclass(frozen=True)
class WriteJob:
    """One batch to be written. The frame was checked: it has no bad record and no null where none may be."""

    frame: DataFrame
    layout: Layout
    target: WriteTarget
    deletes: bool
    """False: the table has no live row, so no key has to be deleted."""
    size: SizeHint
    batch_id: str
    """Nobody else's: names of files are derived from it."""


class Writer(Protocol):
    """Turns a batch into files: of the changes of a key the last one alone, rows sorted by key, keys deleted."""

    def write(self, job: WriteJob) -> WriteResult:
        """All files of the batch. Raises BatchTooLarge before anything was written."""
        ...
