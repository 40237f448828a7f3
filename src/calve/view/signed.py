"""Changes with the rows before, as rows that go and rows that come.

A change that replaces b by a is two rows: b with -1, a with +1. `signed` makes them of every change. `netted` makes at
most two for each key of the input: the row as it was before the first change of the checkpoint goes, the row after the
last one comes. Only then can all that goes be applied before all that comes, without asking in which order changes of
different rows happened; Kafka does not tell for rows in different partitions.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from calve.model.change import BAD, BEFORE, DELETE, OP, UPSERT, order_columns
from calve.sparktext import ident

SIDE = "_calve__side"
"""TINYINT: UPSERT for a row that comes, DELETE for one that goes."""

_FIRST, _LAST, _ORDER, _ROW = "_calve__first", "_calve__last", "_calve__order", "_calve__row"


def signed(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Rows with their side, the order and the error of their change."""
    return _sides(
        frame.selectExpr(
            f"{BEFORE} as {_FIRST}", f"{_struct(columns)} as {_LAST}", OP, f"{_order(frame)} as {_ORDER}", BAD
        ),
        columns,
        order_columns(frame.columns),
    )


def netted(frame: DataFrame, columns: Sequence[str], key: Sequence[str]) -> DataFrame:
    """The same, at most one row of each side for every key of the input."""
    at = _order(frame)
    # Bad rows have no key; whichever of them is found is raised.
    last = frame.groupBy(*[F.col(ident(name)) for name in key]).agg(
        _named(f"min_by({BEFORE}, {at})", _FIRST),
        _named(f"max_by({_struct(columns)}, {at})", _LAST),
        _named(f"max_by({OP}, {at})", OP),
        _named(f"max({at})", _ORDER),
        _named(f"max({BAD})", BAD),
    )
    return _sides(last, columns, order_columns(frame.columns))


def _sides(frame: DataFrame, columns: Sequence[str], orders: Sequence[str]) -> DataFrame:
    gone = f"if({_FIRST} is not null and {BAD} is null, named_struct('side', {DELETE}Y, 'row', {_FIRST}), null)"
    come = f"if({OP} = {UPSERT} or {BAD} is not null, named_struct('side', {UPSERT}Y, 'row', {_LAST}), null)"
    exploded = frame.selectExpr(f"explode(array_compact(array({gone}, {come}))) as {_ROW}", _ORDER, BAD)
    return exploded.selectExpr(
        *[f"{ident(_ROW, 'row', name)} as {ident(name)}" for name in columns],
        f"{_ROW}.side as {SIDE}",
        *[f"{ident(_ORDER, name)} as {name}" for name in orders],
        BAD,
    )


def _struct(columns: Sequence[str]) -> str:
    return f"struct({', '.join(ident(name) for name in columns)})"


def _order(frame: DataFrame) -> str:
    return _struct(order_columns(frame.columns))


def _named(sql: str, name: str) -> Column:
    return F.expr(sql).alias(name)
