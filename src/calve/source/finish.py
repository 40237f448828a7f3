"""The last steps of every envelope: from values, flags and problems to a frame of changes.

A bad row carries nothing but its error: all columns of the table and of the order are null in it. Good rows never have a null
key, so keeping the last change of each key keeps at least one bad row, whatever the order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from calve.model.change import BAD, DELETE, OP, ORDER_PREFIX, UPSERT
from calve.source.frames import STEP
from calve.source.problem import bad_row, misfit, problem
from calve.source.sqltext import ident

_CHANGES = f"{STEP}changes"


@dataclass(frozen=True)
class Row:
    """SQL, on one frame, of everything that a change is made of. All but `values` are cheap references."""

    values: dict[str, str]
    """By column of the table."""
    deleted: str
    """BOOLEAN, never null."""
    order: Sequence[str]
    problem: str
    where: str
    sample: str

    def columns(self, table: T.StructType, key: Sequence[str]) -> dict[str, str]:
        """The change as columns: those of the table, operation, order, error."""
        fine = f"{self.problem} is null"
        made = {
            name: f"if({fine if name in key else f'{fine} and not {self.deleted}'}, {self.values[name]}, null)"
            for name in table.names
        }
        made[OP] = f"cast(if({self.deleted}, {DELETE}, {UPSERT}) as tinyint)"
        made |= {f"{ORDER_PREFIX}{i}": f"if({fine}, {sql}, null)" for i, sql in enumerate(self.order)}
        return made | {BAD: bad_row(self.problem, self.where, self.sample)}


def applied(frame: DataFrame, steps: Sequence[Sequence[str]]) -> DataFrame:
    """Selection upon selection."""
    for step in steps:
        frame = frame.selectExpr(*step)
    return frame


def named(columns: dict[str, str]) -> list[str]:
    """SQL by name, as a selection."""
    return [f"{sql} as {ident(name)}" for name, sql in columns.items()]


def unfolded(choices: Sequence[tuple[str, dict[str, str]]]) -> list[list[str]]:
    """Steps that give one row for every choice whose condition holds.

    They are also a wall. Spark's optimizer moves filters down through selections and takes the selections' expressions
    along, once for every use: a filter on top of these steps would multiply them beyond any memory. It moves none through
    an unfolding, and none into a selection that asks for the number of the partition.
    """
    made = [f"if({condition}, struct({', '.join(named(columns))}), null)" for condition, columns in choices]
    rows = f"filter(array({', '.join(made)}), r -> r is not null)"
    return [[f"if(spark_partition_id() < 0, null, {rows}) as {_CHANGES}"], [f"inline({_CHANGES})"]]


def required_misfits(table: T.StructType, values: dict[str, str], only: Sequence[str] | None = None) -> list[str]:
    """SQL of a misfit for every NOT NULL column (or those of `only`) that is null."""
    names = [f.name for f in table.fields if not f.nullable and (only is None or f.name in only)]
    return [f"if({values[n]} is null, {misfit(n, 'cast(null as string)', 'NOT NULL')}, null)" for n in names]


def order_problem(missing: str) -> str:
    """SQL of the problem that an order field has no value, or null."""
    words = f"concat('the order field \"', {missing}, '\" is missing or null')"
    hint = "Every change needs a value to be ordered by."
    return f"if({missing} is null, null, {problem(words, hint)})"
