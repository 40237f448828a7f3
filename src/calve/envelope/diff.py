"""Rows with a time and a multiplicity; see `model.spec.Diff`.

The frame of changes has DIFF, TIME and PROGRESS instead of operation and order: which change of a key is the last one
is known only when all rows of a time have arrived (`write.consolidate`).

A bad row has no or an invalid time or multiplicity, lacks a key or a NOT NULL column, or could not be read. Rows of
multiplicity 0 are ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from calve.envelope.fields import LATEST_MS, Retyped, millis_of, time_type
from calve.envelope.finish import applied, missing_problems, named
from calve.errors import InvalidInput
from calve.model.change import BAD, DIFF, PROGRESS, TIME
from calve.model.spec import Diff
from calve.records import frames
from calve.records.columns import field_at, table_fields, table_of
from calve.records.frames import STEP
from calve.records.problem import bad_row, first_problem, no_text, problem
from calve.spark.sqltext import coalesce, ident, literal, not_utf8
from calve.spark.version import is_variant

_PROBLEM = f"{STEP}problem"
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class DiffPlan:
    """A checked DIFF envelope for records of one schema."""

    envelope: Diff
    schema: T.StructType
    table: T.StructType
    key: tuple[str, ...]


def plan(schema: T.StructType, envelope: Diff, key: Sequence[str]) -> DiffPlan:
    """Check the envelope against the schema of records. Raises InvalidInput."""
    if frames.is_json(schema):
        raise InvalidInput(
            "the envelope DIFF reads columns, not JSON", hint="Parse the records first: from_json(value, schema)."
        )
    record = T.StructType(frames.record_fields(schema))
    time_type(envelope.time, field_at(record, envelope.time, "time field"))
    if not isinstance(field_at(record, envelope.diff, "diff field"), T.IntegralType):
        raise InvalidInput(f'the diff field "{envelope.diff}" is not an integer')
    progress = envelope.progress
    if progress and not isinstance(field_at(record, progress, "progress field"), T.BooleanType):
        raise InvalidInput(f'the progress field "{progress}" is not a BOOLEAN')
    special = {envelope.time, envelope.diff, progress}
    found = [f for f in record.fields if envelope.columns is not None or f.name not in special]
    table = table_of(table_fields(envelope.columns, found), key)
    for field in table.fields:
        _check_comparable(field.name, field.dataType)
    return DiffPlan(envelope, schema, table, tuple(key))


def _check_comparable(name: str, data_type: T.DataType) -> None:
    if isinstance(data_type, T.MapType) or is_variant(data_type):
        raise InvalidInput(
            f'column "{name}" has type {data_type.simpleString()}, whose values cannot be compared',
            hint="The envelope DIFF must find equal rows. Use an array of entries, or a string.",
        )
    if isinstance(data_type, T.StructType):
        for field in data_type.fields:
            _check_comparable(f"{name}.{field.name}", field.dataType)
    if isinstance(data_type, T.ArrayType):
        _check_comparable(f"{name}.element", data_type.elementType)


def changes_of_diffs(frame: DataFrame, checked: DiffPlan) -> DataFrame:
    """The changes in rows with a time and a multiplicity."""
    envelope, schema, table = checked.envelope, checked.schema, checked.table
    record = T.StructType(frames.record_fields(schema))
    time = millis_of(ident(*envelope.time.split(".")), field_at(record, envelope.time, "time field"))
    progress = f"coalesce({ident(*envelope.progress.split('.'))}, false)" if envelope.progress else "false"
    too_large = f"{DIFF} not between -{_LARGEST} and {_LARGEST}"
    diff = f"cast({ident(*envelope.diff.split('.'))} as bigint)"
    values = {name: ident(name) for name in table.names}
    found = first_problem(
        [
            f"if({TIME} is null, {_problem_of('the time field', envelope.time, 'is missing or null')}, null)",
            f"if({TIME} > {LATEST_MS}, {_problem_of('the time field', envelope.time, 'is after the year 9999')}, null)",
            f"if({DIFF} is null, {_problem_of('the diff field', envelope.diff, 'is missing or null')}, null)",
            f"if({too_large}, {_problem_of('the diff field', envelope.diff, 'is too large')}, null)",
            *missing_problems(table, values, table.names),
            *(f"if({garbled}, {no_text(f.name)}, null)" for f in table.fields if (garbled := _garbled(f))),
            *(text.misfit(text.converted) for text in map(_retyped, table.fields) if text.uuid),
        ]
    )
    unread = [frames.SOURCE_PROBLEM] if frames.SOURCE_PROBLEM in schema.names else []
    bad = coalesce(
        [*unread, bad_row(_PROBLEM, frames.where(schema), frames.sample(schema), frames.origin_sql(schema))], "string"
    )
    types = {f.name: f.dataType.simpleString() for f in table.fields}
    made = {name: f"if({PROGRESS}, null, cast({sql} as {types[name]}))" for name, sql in values.items()}
    made |= {DIFF: f"try_cast({DIFF} as int)", TIME: TIME, PROGRESS: PROGRESS, BAD: bad}
    kept = f"{DIFF} is null or {DIFF} != 0 or {PROGRESS}"
    steps = [
        ["*", *named({TIME: time, DIFF: diff, PROGRESS: progress})],
        ["*", f"if({PROGRESS}, null, {found}) as {_PROBLEM}"],
    ]
    return applied(frame, steps).where(kept).selectExpr(*named(made))


def _garbled(field: T.StructField) -> str:
    return not_utf8(ident(field.name), field.dataType)


def _retyped(field: T.StructField) -> Retyped:
    return Retyped.of(field, field.dataType)


def _problem_of(what: str, field: str, wrong: str) -> str:
    return problem(literal(f'{what} "{field}" {wrong}'))
