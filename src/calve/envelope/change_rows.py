"""Rows of a change feed: what a table's snapshots insert, delete and update; see `model.spec.ChangeRows`.

    insert, update_postimage    upserts
    delete, update_preimage     deletes; the row is the one before the change

Rows of one snapshot are deletes first, then upserts. So an update is the retraction of a row and the insertion of
another, whatever the key of the sink is: an update that changes it deletes the row under the old key.

A bad row lacks a key or a NOT NULL column of the table that it is written to; a delete without a key is ignored, since
its row was never written.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from calve.envelope.finish import Row, applied, missing_problems, named
from calve.errors import InvalidInput
from calve.model.change import BEFORE
from calve.model.changelog import CHANGE_COLUMNS, CHANGE_TYPE, VERSION, ChangeType
from calve.records import frames
from calve.records.columns import table_of
from calve.records.frames import STEP
from calve.records.problem import bad_row, first_problem
from calve.spark.sqltext import ident, literal

_DELETED, _PROBLEM, _ARRIVAL = f"{STEP}deleted", f"{STEP}problem", f"{STEP}arrival"
BEFORE_TYPES = (ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE)
"""Rows that were there before a change."""


@dataclass(frozen=True)
class ChangeRowsPlan:
    """A checked envelope for rows of one schema."""

    schema: T.StructType
    table: T.StructType
    key: tuple[str, ...]


def plan(schema: T.StructType, key: Sequence[str]) -> ChangeRowsPlan:
    """Check that the frame is a change feed. Raises InvalidInput."""
    missing = [name for name in (CHANGE_TYPE, VERSION) if name not in schema.names]
    if missing:
        raise InvalidInput(
            f'the frame has no column "{missing[0]}"',
            detail=f"Its columns are {', '.join(schema.names)}.",
            hint="Use calve.table_changes(...), or calve.changes(..., net=False, before=True).",
        )
    fields = [f for f in frames.record_fields(schema) if f.name not in CHANGE_COLUMNS]
    return ChangeRowsPlan(schema, table_of(fields, key), tuple(key))


def changes_of_rows(frame: DataFrame, checked: ChangeRowsPlan, *, before: bool = False) -> DataFrame:
    """The changes in rows of a change feed; with `before`, deletes carry their row."""
    schema, table, key = checked.schema, checked.table, checked.key
    values = {name: ident(name) for name in table.names}
    rest = [name for name in table.names if name not in key]
    others = missing_problems(table, values, rest)
    problem = first_problem(
        [*missing_problems(table, values, key), *([f"if({_DELETED}, null, {first_problem(others)})"] if others else [])]
    )
    bad = bad_row(_PROBLEM, frames.where(schema), frames.sample(schema), frames.origin_sql(schema))
    orders = [VERSION, f"cast(if({_DELETED}, 0, 1) as tinyint)", _ARRIVAL]
    row = Row(values, _DELETED, orders, f"{_PROBLEM} is null", bad)
    made = row.columns(table, key)
    if before:
        image = ", ".join(f"'{name.replace(chr(39), chr(39) * 2)}', {sql}" for name, sql in values.items())
        made[BEFORE] = f"if({_DELETED} and {_PROBLEM} is null, named_struct({image}), null)"
    deleted = f"{ident(CHANGE_TYPE)} in ({', '.join(literal(one.value) for one in BEFORE_TYPES)})"
    (arrival,) = frames.arrival(schema, streaming=frame.isStreaming)
    steps = [
        ["*", f"{deleted} as {_DELETED}", f"{arrival} as {_ARRIVAL}"],
        ["*", f"{problem or 'cast(null as string)'} as {_PROBLEM}"],
    ]
    keyless = " or ".join(f"{ident(name)} is null" for name in key)
    kept = f"not ({_DELETED} and ({keyless}))" if keyless else "true"
    return applied(frame, steps).where(kept).selectExpr(*named(made))
