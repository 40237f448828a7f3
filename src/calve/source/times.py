"""The logical time of a row: BIGINT milliseconds since 1970, or a TIMESTAMP.

A time column is read as the first of the order columns, which every envelope takes from any field of its records, of
deletes, too. It stays there: changes of one key are ordered by time first.
"""

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from calve.errors import BadRow, InvalidInput
from calve.model.change import BAD, ORDER_PREFIX, TIME
from calve.model.spec import Diff, Envelope
from calve.source.order import PAIR
from calve.sparktext import literal

LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: a later time is a mistake, and would make everything that follows late."""

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
    error = BadRow(
        f'the time "{field}" of a record is not a number of milliseconds up to the year 9999',
        hint="Declare it as a TIMESTAMP column, or send milliseconds since 1970.",
    )
    bad = f"coalesce({BAD}, if({TIME} is null, {literal(error.encode())}, null)) as {BAD}"
    rest = [f"`{name.replace('`', '``')}`" for name in changes.columns if name != BAD]
    known = f"if({time} <= {LATEST_MS}, {time}, null) as {TIME}"
    return changes.selectExpr(*rest, known, BAD).selectExpr(*rest, TIME, bad)


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
