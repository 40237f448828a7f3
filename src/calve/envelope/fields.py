"""Fields of records that envelopes share: times, conditions, and typed columns.

The time of a row is BIGINT milliseconds since 1970, or a TIMESTAMP. It is read as the first order column, which every
envelope takes from any field of its records, also of deletes, and it stays there: changes of one key are ordered by
time first. Envelopes check it when they read a record, so that a record without a valid time is a bad row.

Conditions are SQL that users write over the fields of a record.

A typed column gets its declared type (`Retyped`) only without loss: a value is cast, and the reverse cast must restore
it. 1.5 is not a BIGINT, 12.345 not a DECIMAL(12,2), a timestamp with a time of day not a DATE. Strings are an
exception, since casts do not restore them character by character: they convert like Spark's `try_cast`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from calve.envelope.order import PAIR
from calve.errors import InvalidInput
from calve.model.change import ORDER_PREFIX, TIME
from calve.model.spec import ChangeRows, Diff, Envelope
from calve.model.types import UUID_PATTERN
from calve.records.columns import is_uuid
from calve.records.documents import Malformed
from calve.records.problem import misfit, problem
from calve.records.scalars import number_of
from calve.records.strict import UUID, type_name
from calve.spark.sqltext import ident, literal
from calve.spark.version import condition_of, quiet_analysis

LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: a later time is an error, and would make all following rows late."""

_EARLIEST_MS = -(2**63)
_HINT = "Declare it as a TIMESTAMP column, or send milliseconds since 1970."
_FIRST, _SECOND = f"{ORDER_PREFIX}0", f"{ORDER_PREFIX}1"


def ordered_by_time(envelope: Envelope, field: str) -> Envelope:
    """The same envelope, with changes ordered by this field first."""
    if isinstance(envelope, Diff):
        raise InvalidInput("the envelope DIFF has a time column of its own", hint="Leave out TIME COLUMN.")
    if isinstance(envelope, ChangeRows):
        raise InvalidInput("changes of a table have the order of its snapshots", hint="Leave out TIME COLUMN.")
    return replace(envelope, order_by=(field, *envelope.order_by))


def with_time(changes: DataFrame, field: str) -> DataFrame:
    """Add the column TIME to the changes of an envelope `ordered_by_time`."""
    kind = changes.schema[_FIRST].dataType
    if kind == PAIR[0] and _SECOND in changes.columns and changes.schema[_SECOND].dataType == PAIR[1]:
        time = f"if({_SECOND} = '', try_cast({_FIRST} as bigint), null)"  # an undeclared field of JSON
    else:
        time = millis_of(_FIRST, time_type(field, kind))
    return changes.selectExpr("*", f"{time} as {TIME}")


def check_time(field: str, value: Any) -> None:
    """Raise Malformed unless a value is a time: a datetime, or a number of milliseconds."""
    if value is None:
        raise Malformed(_missing(field), _HINT)
    if isinstance(value, datetime):
        return
    number = number_of(value)
    if number is None or not _EARLIEST_MS <= number <= LATEST_MS:
        raise Malformed(_no_time(field), _HINT)


def time_problem(field: str, sql: str, kind: T.DataType) -> str:
    """SQL of the problem that a column is not a time, or null."""
    time = millis_of(sql, time_type(field, kind))
    missing = problem(literal(_missing(field)), _HINT)
    return f"case when {time} is null then {missing} when {time} > {LATEST_MS} then {_wrong(field)} end"


def _wrong(field: str) -> str:
    return problem(literal(_no_time(field)), _HINT)


def _missing(field: str) -> str:
    return f'the time field "{field}" is missing or null'


def _no_time(field: str) -> str:
    return f'the time "{field}" of a record is not a number of milliseconds up to the year 9999'


def time_type(field: str, kind: T.DataType) -> T.DataType:
    """The type of a time field. Raises InvalidInput for any other type."""
    if not isinstance(kind, T.IntegralType | T.TimestampType):
        raise InvalidInput(
            f'the time field "{field}" has type {kind.simpleString()}',
            hint="Use a TIMESTAMP, or a BIGINT of milliseconds since 1970.",
        )
    return kind


def millis_of(sql: str, kind: T.DataType) -> str:
    """SQL of the milliseconds."""
    return f"unix_millis({sql})" if isinstance(kind, T.TimestampType) else f"cast({sql} as bigint)"


Path = tuple[str, ...]

_PART = re.compile(r"`((?:[^`]|``)*)`")
_MOST_FIELDS = 100


def check_condition(condition: str, schema: T.StructType) -> None:
    """Reject a condition that Spark cannot evaluate on records of this schema. Raises InvalidInput."""
    error = _error(condition, schema)
    if error is not None:
        raise _invalid(condition, error) from error


def undeclared_fields(condition: str, declared: Sequence[T.StructField]) -> list[Path]:
    """Fields of a condition that are not declared columns: they are read from the JSON as strings."""
    paths: list[Path] = []
    for _ in range(_MOST_FIELDS):
        error = _error(condition, T.StructType([*declared, *text_fields(paths)]))
        if error is None:
            return paths
        path = _unresolved(error)
        if path is None or path in paths:
            raise _invalid(condition, error) from error
        paths.append(path)
    raise InvalidInput("delete_when names too many fields", detail=f"{condition}: more than {_MOST_FIELDS}.")


def text_fields(paths: Sequence[Path]) -> list[T.StructField]:
    """The strings at these paths as columns; structs where a path has several parts."""
    tops = dict.fromkeys(path[0] for path in paths)
    return [T.StructField(top, _text_type([p[1:] for p in paths if p[0] == top])) for top in tops]


def _text_type(rests: list[Path]) -> T.DataType:
    deeper = [rest for rest in rests if rest]
    return T.StructType(text_fields(deeper)) if deeper else T.StringType()


def _error(condition: str, schema: T.StructType) -> AnalysisException | ParseException | None:
    try:
        with quiet_analysis():
            _ = SparkSession.active().createDataFrame([], schema).where(condition).schema
    except (AnalysisException, ParseException) as error:
        return error
    return None


def _unresolved(error: AnalysisException | ParseException) -> Path | None:
    if not condition_of(error).startswith("UNRESOLVED_COLUMN"):
        return None
    name = (error.getMessageParameters() or {}).get("objectName", "")
    return tuple(part.replace("``", "`") for part in _PART.findall(name)) or None


def _invalid(condition: str, error: AnalysisException | ParseException) -> InvalidInput:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return InvalidInput(
        "the condition of delete_when is invalid",
        detail=f"{condition}: {lines[0] if lines else type(error).__name__}",
        hint="Write a Spark SQL condition over fields of the record, such as op = 'd'.",
    )


@dataclass(frozen=True)
class Retyped:
    """A column that is cast to its declared type."""

    name: str
    found: T.DataType
    declared: T.DataType
    uuid: bool = False
    """Whether its values must be UUIDs."""

    @classmethod
    def of(cls, field: T.StructField, found: T.DataType) -> Self:
        """A column of the table from one of a frame."""
        uuid = is_uuid(field) and isinstance(found, T.StringType)
        return cls(field.name, found, field.dataType, uuid)

    @property
    def reference(self) -> str:
        """SQL of the original value."""
        return ident(self.name)

    @property
    def converted(self) -> str:
        """SQL of the value, null when it does not fit."""
        if self.uuid:
            return f"if({self.reference} rlike {literal(UUID_PATTERN)}, {self.reference}, null)"
        return f"try_cast({self.reference} as {self.declared.simpleString()})"

    def misfit(self, converted: str) -> str:
        """SQL of the problem or null, given a reference to `converted`."""
        fine = f"{self.reference} is null or {converted} is not null"
        if not isinstance(self.found, T.StringType) and isinstance(self.found, T.AtomicType):
            fine = f"try_cast({converted} as {self.found.simpleString()}) <=> {self.reference}"
        wanted = UUID if self.uuid else type_name(self.declared)
        return f"if({fine}, null, {misfit(self.name, f'cast({self.reference} as string)', wanted)})"

    @property
    def same(self) -> bool:
        """Whether nothing has to be done."""
        return self.found.simpleString() == self.declared.simpleString() and not self.uuid
