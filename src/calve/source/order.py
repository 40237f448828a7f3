"""What orders the changes of one key: `order_by` first, then the order of arrival.

A typed field is an order column as it is. A field of JSON that is not declared has no type: it becomes two columns, a number
and a text, so that numbers (also those sent as text, like Oracle's SCN) compare as numbers and everything else as text. A
missing or null value, an array or an object is a problem: without an order nobody knows which change is the last.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import types as T  # noqa: N812

from calve.errors import InvalidInput
from calve.source.columns import field_at
from calve.source.sqltext import ident, literal

_NUMBER = "decimal(38,9)"


@dataclass(frozen=True)
class Order:
    """SQL of the order columns, and of the name of an order field without a value (null when all have one)."""

    columns: tuple[str, ...]
    missing: str


def of_columns(schema: T.StructType, paths: Sequence[str], prefix: tuple[str, ...] = ()) -> Order:
    """Order by typed fields of a frame or of the struct under `prefix`."""
    references = []
    for path in paths:
        data_type = field_at(schema, path, "order field")
        if not isinstance(data_type, T.AtomicType) or isinstance(data_type, T.VariantType):
            raise InvalidInput(f'the order field "{path}" has type {data_type.simpleString()}, which has no order')
        references.append(ident(*prefix, *path.split(".")))
    return Order(tuple(references), missing_of(dict(zip(paths, references, strict=True))))


def of_text(text: str) -> tuple[str, str]:
    """The two order columns of a field of JSON, given a cheap reference to its text."""
    number = f"try_cast({text} as {_NUMBER})"
    return f"coalesce({number}, 0BD)", f"if({number} is null, {text}, '')"


def missing_of(fields: dict[str, str]) -> str:
    """The first of the named fields whose SQL is null."""
    cases = [f"when {sql} is null then {literal(name)}" for name, sql in fields.items()]
    return f"case {' '.join(cases)} end" if cases else "cast(null as string)"


def usable(text: str) -> str:
    """Null instead of the JSON of an array or an object."""
    return f"if(left({text}, 1) in ('{{', '['), null, {text})"
