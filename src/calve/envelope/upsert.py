"""Upserts: every record replaces the row with its key, or deletes it.

A record is a row of the frame, or, in frames from Kafka or of lines of files, the JSON object in `value` (also inside
Kafka Connect's schema/payload wrapper; the conversion rules are in `records.strict`). It deletes when `delete_when` is
true for it; null is not true. From Kafka a null value deletes, too, by the key's JSON: an object with the key columns,
or the bare value of a single one; key columns that a value lacks are taken from there as well. `delete_when` and
`order_by` may name undeclared fields of the JSON; in `delete_when` those are strings.

A bad row has a value that does not convert to the declared type, lacks a NOT NULL or key column (a delete: only a key
column), or lacks an order field, which is always so for a null value with `order_by`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from calve.envelope import order
from calve.envelope.fields import Path, Retyped, check_condition, time_problem, undeclared_fields
from calve.envelope.finish import Row, applied, missing_problems, named, order_problem
from calve.envelope.upsert_records import BAD_KEY, BAD_REST, GONE, ORDER, read_records
from calve.errors import InvalidInput
from calve.model.spec import NoEnvelope, Upsert
from calve.records import frames
from calve.records.columns import field_at, table_fields, table_of
from calve.records.frames import STEP, Records
from calve.records.problem import bad_row, first_problem, no_text
from calve.records.strict import declared_in_json
from calve.spark.sqltext import coalesce, ident, not_utf8

_DELETED = f"{STEP}deleted"
_PROBLEM = f"{STEP}problem"
_BAD = f"{STEP}bad"


@dataclass(frozen=True)
class UpsertPlan:
    """A checked upsert envelope for records of one schema."""

    envelope: Upsert
    schema: T.StructType
    table: T.StructType
    key: tuple[str, ...]
    json: bool
    """Whether records are JSON in `value`."""
    texts: tuple[Path, ...] = field(default=())
    """Fields of the JSON that only the condition names."""


def plan(schema: T.StructType, envelope: Upsert | NoEnvelope, key: Sequence[str]) -> UpsertPlan:
    """Check the envelope against the schema of records. Raises InvalidInput."""
    if isinstance(envelope, NoEnvelope):
        record = T.StructType(frames.record_fields(schema))
        order.of_columns(record, envelope.order_by)
        return UpsertPlan(Upsert(envelope.order_by), schema, table_of(record.fields, key), tuple(key), json=False)
    if not key:
        raise InvalidInput("an upsert needs a key", hint="Name the columns that identify a row.")
    if not envelope.order_by and not frames.is_kafka(schema):
        raise InvalidInput(
            "an upsert needs an order",
            detail="The frame does not come from Kafka, whose offsets order changes of one key.",
            hint="Set order_by to a field that increases with every change.",
        )
    if frames.is_json(schema):
        return _plan_json(schema, envelope, key)
    record = T.StructType(frames.record_fields(schema))
    order.of_columns(record, envelope.order_by)
    if envelope.delete_when is not None:
        check_condition(envelope.delete_when, record)
    table = table_of(table_fields(envelope.columns, record.fields), key)
    return UpsertPlan(envelope, schema, table, tuple(key), json=False)


def _plan_json(schema: T.StructType, envelope: Upsert, key: Sequence[str]) -> UpsertPlan:
    fields = declared_in_json(envelope.columns)
    paths = undeclared_fields(envelope.delete_when, fields) if envelope.delete_when is not None else []
    return UpsertPlan(envelope, schema, table_of(fields, key), tuple(key), json=True, texts=tuple(paths))


def changes_of_upserts(records: Records, checked: UpsertPlan, *, timed: bool = False) -> DataFrame:
    """The changes in upserts. `timed` says that the first order field is the time of a record."""
    if checked.json:
        return _from_json(records, checked, timed=timed)
    return _from_columns(frames.frame_of(records), checked, timed=timed)


def _from_columns(frame: DataFrame, checked: UpsertPlan, *, timed: bool) -> DataFrame:
    envelope, schema, table = checked.envelope, checked.schema, checked.table
    record = T.StructType(frames.record_fields(schema))
    by_field = order.of_columns(record, envelope.order_by)
    ordered = [*by_field.columns, *frames.arrival(schema, streaming=frame.isStreaming)]
    orders = {f"{STEP}order_{i}": sql for i, sql in enumerate(ordered)}
    condition = "false" if envelope.delete_when is None else f"coalesce({envelope.delete_when}, false)"
    types = {f.name: f.dataType for f in schema.fields}
    retyped = [Retyped.of(f, types[f.name]) for f in table.fields]
    converted = {c.name: f"{STEP}value_{i}" for i, c in enumerate(retyped) if not c.same}
    values = {c.name: converted.get(c.name, ident(c.name)) for c in retyped}
    misfits = {c.name: c.misfit(converted[c.name]) for c in retyped if not c.same}
    for name in table.names:
        garbled = not_utf8(ident(name), types[name])
        if garbled:  # before the other problem, which shows the text
            misfits[name] = first_problem([f"if({garbled}, {no_text(name)}, null)", *filter(None, [misfits.get(name)])])
    typed = {converted[c.name]: c.converted for c in retyped if not c.same}
    unordered = order_problem(by_field.missing)
    if timed:
        field = envelope.order_by[0]
        time = time_problem(field, by_field.columns[0], field_at(record, field, "time field"))
        unordered = first_problem([time, unordered])
    problem = _problem(checked, values, misfits, unordered)
    judge = bool(misfits) or timed
    fine, found = (f"{_PROBLEM} is null", _PROBLEM) if judge else (_complete(checked, values, by_field), f"({problem})")
    unread = [frames.SOURCE_PROBLEM] if frames.SOURCE_PROBLEM in schema.names else []
    bad = coalesce(
        [*unread, bad_row(found, frames.where(schema), frames.sample(schema), frames.origin_sql(schema))], "string"
    )
    row = Row(values, _DELETED, list(orders), " and ".join([*(f"{u} is null" for u in unread), fine]), bad)
    judged = [["*", f"{problem} as {_PROBLEM}"]] if judge else []
    first = ["*", *named({**orders, **typed, _DELETED: condition})]
    return applied(frame, [first, *judged, named(row.columns(table, checked.key))])


def _complete(checked: UpsertPlan, values: dict[str, str], by_field: order.ChangeOrder) -> str:
    """SQL: whether nothing is missing. It spares a selection, which would add to the planning of every micro-batch."""
    key = [f"{values[k]} is not null" for k in checked.key]
    rest = [f.name for f in checked.table.fields if not f.nullable and f.name not in checked.key]
    others = [f"({_DELETED} or {values[name]} is not null)" for name in rest]
    return " and ".join([*key, *others, *(f"{sql} is not null" for sql in by_field.columns)]) or "true"


def _problem(checked: UpsertPlan, values: dict[str, str], misfits: dict[str, str], unordered: str) -> str:
    """SQL of the first problem; for a delete only those of the key count."""
    table, key = checked.table, checked.key
    rest = [name for name in table.names if name not in key]
    of_key = [*(misfits[k] for k in key if k in misfits), *missing_problems(table, values, key)]
    others = [*(misfits[n] for n in rest if n in misfits), *missing_problems(table, values, rest)]
    upserts = [f"if({_DELETED}, null, {first_problem(others)})"] if others else []
    return first_problem([*of_key, *upserts, unordered])


def _from_json(records: Records, checked: UpsertPlan, *, timed: bool) -> DataFrame:
    envelope, table = checked.envelope, checked.table
    read = read_records(records, checked.schema, table, checked.key, (envelope, checked.texts), timed=timed)
    condition = GONE if envelope.delete_when is None else f"({GONE} or coalesce({envelope.delete_when}, false))"
    orders = [name for name in read.columns if name.startswith(ORDER)]
    row = Row({n: ident(n) for n in table.names}, _DELETED, orders, f"({_BAD} is null)", _BAD)
    return applied(
        read,
        [
            ["*", f"{condition} as {_DELETED}"],
            ["*", f"coalesce({BAD_KEY}, if({_DELETED}, null, {BAD_REST})) as {_BAD}"],
            named(row.columns(table, checked.key)),
        ],
    )
