"""The logical time of a row: BIGINT milliseconds since 1970, or a TIMESTAMP.

A time column is read as the first of the order columns, which every envelope takes from any field of its records, of
deletes, too. It stays there: changes of one key are ordered by time first. Envelopes check it when they read a record,
so that a record without a usable time is a bad row like any other.
"""

from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from calve.errors import InvalidInput
from calve.model.change import ORDER_PREFIX, TIME
from calve.model.spec import Diff, Envelope
from calve.source.documents import Malformed
from calve.source.order import PAIR
from calve.source.problem import problem
from calve.source.scalars import number_of
from calve.sparktext import literal

LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: a later time is a mistake, and would make everything that follows late."""

_EARLIEST_MS = -(2**63)
_HINT = "Declare it as a TIMESTAMP column, or send milliseconds since 1970."
_FIRST, _SECOND = f"{ORDER_PREFIX}0", f"{ORDER_PREFIX}1"


def ordered_by_time(envelope: Envelope, field: str) -> Envelope:
    """The same envelope, its changes ordered by this field first."""
    if isinstance(envelope, Diff):
        raise InvalidInput("the envelope DIFF names its time itself", hint="Leave out TIME COLUMN.")
    return replace(envelope, order_by=(field, *envelope.order_by))


def with_time(changes: DataFrame, field: str) -> DataFrame:
    """Changes of an envelope `ordered_by_time`, with the column TIME."""
    kind = changes.schema[_FIRST].dataType
    if kind == PAIR[0] and _SECOND in changes.columns and changes.schema[_SECOND].dataType == PAIR[1]:
        time = f"if({_SECOND} = '', try_cast({_FIRST} as bigint), null)"  # an undeclared field of JSON
    else:
        time = millis_of(_FIRST, time_type(field, kind))
    return changes.selectExpr("*", f"{time} as {TIME}")


def check_time(field: str, value: Any) -> None:
    """Raise Malformed unless the value of a record is a time: a datetime, or a number of milliseconds."""
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
    """The type of a time, if it is one."""
    if not isinstance(kind, T.IntegralType | T.TimestampType):
        raise InvalidInput(
            f'"{field}" has type {kind.simpleString()}, which is no time',
            hint="A time is a BIGINT of milliseconds since 1970, or a TIMESTAMP.",
        )
    return kind


def millis_of(sql: str, kind: T.DataType) -> str:
    """SQL of the milliseconds."""
    return f"unix_millis({sql})" if isinstance(kind, T.TimestampType) else f"cast({sql} as bigint)"
