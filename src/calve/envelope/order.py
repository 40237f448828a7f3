"""The order of changes of one key: `order_by` first, then the order of arrival.

A typed field is an order column itself. An undeclared field of JSON has no type: it becomes two columns, a number and a
string, so that numbers (also those in strings, like Oracle's SCN) compare as numbers and everything else as strings. A
missing or null value, an array or an object is a problem: without an order the last change is unknown.

An order across checkpoints is stored in the table, as a column of the row (`with_order`). One typed field is stored
unchanged; several fields, or an undeclared field of JSON, as a struct whose fields compare one after the other. The
order of arrival is not stored: of changes that are equal in the envelope's own order, the later one wins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql import types as T  # noqa: N812

from calve.envelope.finish import ORDER_HINT
from calve.errors import InvalidInput
from calve.model.change import ORDER, order_columns
from calve.records import frames
from calve.records.columns import field_at
from calve.records.documents import Malformed
from calve.records.scalars import number_of, text_of
from calve.spark.sqltext import ident, literal
from calve.spark.version import is_variant

PAIR: tuple[T.DataType, T.DataType] = (T.DecimalType(38, 9), T.StringType())
"""The types of the two columns of an untyped field."""

_UNIT, _DIGITS = Decimal("1e-9"), 29
_ROUNDED = Context(prec=60, rounding=ROUND_HALF_EVEN)


@dataclass(frozen=True)
class ChangeOrder:
    """SQL of the order columns, and of the name of an order field without a value (null if all have one)."""

    columns: tuple[str, ...]
    missing: str


def of_columns(schema: T.StructType, paths: Sequence[str], prefix: tuple[str, ...] = ()) -> ChangeOrder:
    """Order by typed fields of a frame or of the struct under `prefix`. Raises InvalidInput."""
    references = {}
    for path in paths:
        data_type = field_at(schema, path, "order field")
        if not isinstance(data_type, T.AtomicType) or is_variant(data_type):
            raise InvalidInput(f'the order field "{path}" has type {data_type.simpleString()}, which has no order')
        references[path] = ident(*prefix, *path.split("."))
    cases = [f"when {sql} is null then {literal(path)}" for path, sql in references.items()]
    return ChangeOrder(tuple(references.values()), f"case {' '.join(cases)} end" if cases else "cast(null as string)")


def missing(path: str) -> Malformed:
    """The problem that an order field has no value."""
    return Malformed(f'the order field "{path}" is missing or null', ORDER_HINT)


def pair_of(path: str, value: Any) -> tuple[Decimal, str]:
    """The two order columns of an untyped field. Raises Malformed."""
    if value is None:
        raise missing(path)
    if isinstance(value, bool | dict | list):
        raise Malformed(f'the order field "{path}" is neither a number nor a string', ORDER_HINT)
    number = number_of(value)
    if number is None:
        return Decimal(0), _text(path, value)
    if number.adjusted() >= _DIGITS:
        raise Malformed(f'the order field "{path}" has more than {_DIGITS} digits', ORDER_HINT)
    return number.quantize(_UNIT, context=_ROUNDED), ""


def _text(path: str, value: str) -> str:
    try:
        return text_of(value)
    except ValueError as error:
        raise Malformed(f'the order field "{path}" is not a valid string', ORDER_HINT) from error


def own_order(changes: DataFrame, schema: T.StructType) -> list[str]:
    """The order columns of the envelope itself, without those of arrival; `schema` is that of the records."""
    return order_columns(changes.columns)[: -len(frames.arrival_types(schema))]


def with_order(changes: DataFrame, schema: T.StructType) -> DataFrame:
    """Add the order column that is stored in the table."""
    own = own_order(changes, schema)
    kept = F.col(own[0]) if len(own) == 1 else F.struct(*(F.col(name).alias(f"_{i}") for i, name in enumerate(own)))
    return changes.withColumn(ORDER, kept)
