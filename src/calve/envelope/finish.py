"""The last steps of every envelope: from values, flags and problems to a frame of changes.

A bad row contains nothing but its error: all columns of the table and of the order are null. Good rows never have a
null key, so keeping the last change of each key keeps at least one bad row, whatever the order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from calve.model.change import BAD, BEFORE, DELETE, OP, ORDER_PREFIX, UPSERT
from calve.records.problem import missing, problem
from calve.spark.sqltext import ident

ORDER_HINT = "Every change needs a value in its order fields."


@dataclass(frozen=True)
class Row:
    """SQL of everything that a change is made of. All but `values` and `bad` are cheap references."""

    values: dict[str, str]
    """By column of the table."""
    deleted: str
    """BOOLEAN, never null."""
    order: Sequence[str]
    fine: str
    """BOOLEAN: whether there is no error."""
    bad: str
    """The encoded error, or null."""

    def columns(self, table: T.StructType, key: Sequence[str]) -> dict[str, str]:
        """The change as columns: those of the table, operation, order, error."""
        kept = f"{self.fine} and not {self.deleted}"
        made = {n: f"if({self.fine if n in key else kept}, {self.values[n]}, null)" for n in table.names}
        made[OP] = f"cast(if({self.deleted}, {DELETE}, {UPSERT}) as tinyint)"
        made |= {f"{ORDER_PREFIX}{i}": f"if({self.fine}, {sql}, null)" for i, sql in enumerate(self.order)}
        return made | {BAD: self.bad}


def applied(frame: DataFrame, steps: Sequence[Sequence[str]]) -> DataFrame:
    """Apply selections one after the other."""
    for step in steps:
        frame = frame.selectExpr(*step)
    return frame


def named(columns: dict[str, str]) -> list[str]:
    """A selection from SQL by name."""
    return [f"{sql} as {ident(name)}" for name, sql in columns.items()]


def change_schema(table: T.StructType, order: Sequence[T.DataType], *, before: bool = False) -> T.StructType:
    """The schema of a frame of changes; with `before`, with the old rows."""
    columns = [T.StructField(f.name, f.dataType) for f in table.fields]
    image = [T.StructField(BEFORE, T.StructType(columns))] if before else []
    orders = [T.StructField(f"{ORDER_PREFIX}{i}", data_type) for i, data_type in enumerate(order)]
    bad = T.StructField(BAD, T.StringType())
    return T.StructType([*columns, T.StructField(OP, T.ByteType()), *orders, bad, *image])


def missing_problems(table: T.StructType, values: dict[str, str], only: Sequence[str]) -> list[str]:
    """SQL of a problem for every NOT NULL column of `only` that is null."""
    names = [f.name for f in table.fields if not f.nullable and f.name in only]
    return [f"if({values[n]} is null, {missing(n)}, null)" for n in names]


def order_problem(name: str) -> str:
    """SQL of the problem that an order field (SQL of its name) has no value, or null."""
    words = f"concat('the order field \"', {name}, '\" is missing or null')"
    return f"if({name} is null, null, {problem(words, ORDER_HINT)})"
