"""Upserts: every record replaces the row with its key, or deletes it.

A record is a row of the frame, or, in frames of Kafka's shape, the JSON object in `value` (also inside Kafka Connect's
schema/payload wrapper; the conversion rules are in `cells`). It deletes when `delete_when` is true for it; null is not true.
From Kafka a null value deletes, too, by the key's JSON: an object with the key columns, or the bare value of a single one.
`delete_when` and `order_by` may name fields of the JSON that are not declared; in `delete_when` those are texts.

A bad row is one whose value does not convert to the declared type, that lacks a NOT NULL or key column (a delete: only a key
column), or that has no value to be ordered by, which is always so for a null value under `order_by`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from calve.errors import InvalidInput
from calve.model.spec import NoEnvelope, Upsert
from calve.source import frames, order
from calve.source.cells import check_type
from calve.source.columns import declared_names, declared_schema, table_fields, table_of
from calve.source.condition import Path, check_condition, undeclared_fields
from calve.source.finish import Row, applied, named, order_problem, required_misfits, unfolded
from calve.source.frames import STEP
from calve.source.problem import MISFIT, first_problem, misfit_problem, problem
from calve.source.records import KEY, ORIGINAL, VALUE, Image, arrival_names, field_text, is_object, reading_steps
from calve.source.retype import Retyped
from calve.source.sqltext import coalesce, ident, literal

_DELETED = f"{STEP}deleted"
_UNORDERED = f"{STEP}unordered"
_MISFIT = f"{STEP}misfit"
_PROBLEM = f"{STEP}problem"


@dataclass(frozen=True)
class UpsertPlan:
    """An upsert envelope on frames of one schema, checked."""

    envelope: Upsert
    schema: T.StructType
    table: T.StructType
    key: tuple[str, ...]
    json: bool
    """Records are JSON in `value`."""
    texts: tuple[Path, ...] = field(default=())
    """Fields of the JSON that only the condition names."""


def plan(schema: T.StructType, envelope: Upsert | NoEnvelope, key: Sequence[str]) -> UpsertPlan:
    """Check the envelope against the frame's schema."""
    if isinstance(envelope, NoEnvelope):
        fields = frames.record_fields(schema)
        return UpsertPlan(Upsert(), schema, table_of(fields, key), tuple(key), json=False)
    if not key:
        raise InvalidInput("an upsert needs a key", hint="Name the columns that identify a row.")
    if frames.is_kafka(schema):
        return _plan_json(schema, envelope, key)
    if not envelope.order_by:
        raise InvalidInput(
            "an upsert needs an order",
            detail="The frame does not come from Kafka, whose offsets order changes of one key.",
            hint="Say order_by with a field that grows from change to change.",
        )
    record = T.StructType(frames.record_fields(schema))
    order.of_columns(record, envelope.order_by)
    if envelope.delete_when is not None:
        check_condition(envelope.delete_when, record)
    table = table_of(table_fields(envelope.columns, record.fields), key)
    return UpsertPlan(envelope, schema, table, tuple(key), json=False)


def _plan_json(schema: T.StructType, envelope: Upsert, key: Sequence[str]) -> UpsertPlan:
    if envelope.columns is None or declared_names(envelope.columns) is not None:
        raise InvalidInput(
            "the columns are not declared",
            detail="The frame comes from Kafka: its records are JSON text.",
            hint="Declare the table's columns: columns='id BIGINT NOT NULL, amount DECIMAL(12,2)'.",
        )
    fields = declared_schema(envelope.columns).fields
    for f in fields:
        check_type(f.dataType, f.name)
    paths = undeclared_fields(envelope.delete_when, fields) if envelope.delete_when is not None else []
    return UpsertPlan(envelope, schema, table_of(fields, key), tuple(key), json=True, texts=tuple(paths))


def changes_of_upserts(frame: DataFrame, checked: UpsertPlan) -> DataFrame:
    """The changes in a frame of upserts."""
    return _from_json(frame, checked) if checked.json else _from_columns(frame, checked)


def _from_columns(frame: DataFrame, checked: UpsertPlan) -> DataFrame:
    envelope, schema, table = checked.envelope, checked.schema, checked.table
    by_field = order.of_columns(T.StructType(frames.record_fields(schema)), envelope.order_by)
    ordered = [*by_field.columns, *frames.arrival(schema, streaming=frame.isStreaming)]
    orders = {f"{STEP}order_{i}": sql for i, sql in enumerate(ordered)}
    condition = "false" if envelope.delete_when is None else f"coalesce({envelope.delete_when}, false)"
    types = {f.name: f.dataType for f in schema.fields}
    cells = [Retyped(f.name, ident(f.name), types[f.name], f.dataType) for f in table.fields]
    converted = {c.name: f"{STEP}value_{i}" for i, c in enumerate(cells) if not c.same}
    values = {c.name: converted.get(c.name, ident(c.name)) for c in cells}
    misfits = {c.name: [] if c.same else [c.misfit(converted[c.name])] for c in cells}
    unread = [frames.SOURCE_PROBLEM] if frames.SOURCE_PROBLEM in schema.names else []
    row = Row(values, _DELETED, list(orders), _PROBLEM, frames.where(schema), frames.sample(schema))
    typed = {converted[c.name]: c.converted for c in cells if not c.same}
    return applied(
        frame,
        [
            ["*", *named({**orders, **typed, _DELETED: condition, _UNORDERED: by_field.missing})],
            ["*", f"{_misfit(checked, values, misfits)} as {_MISFIT}"],
            ["*", f"{_problem(unread)} as {_PROBLEM}"],
            named(row.columns(table, checked.key)),
        ],
    )


def _misfit(checked: UpsertPlan, values: dict[str, str], misfits: dict[str, list[str]]) -> str:
    """The first misfit; of a delete only the key's count."""
    table, key = checked.table, checked.key
    of_key = [*(m for k in key for m in misfits[k]), *required_misfits(table, values, only=key)]
    rest = [f.name for f in table.fields if f.name not in key]
    others = [*(m for n in rest for m in misfits[n]), *required_misfits(table, values, only=rest)]
    return coalesce([*of_key, *([f"if({_DELETED}, null, {coalesce(others, MISFIT)})"] if others else [])], MISFIT)


def _problem(before: list[str]) -> str:
    return first_problem([*before, misfit_problem(_MISFIT), order_problem(_UNORDERED)])


def _from_json(frame: DataFrame, checked: UpsertPlan) -> DataFrame:
    schema, table, envelope = checked.schema, checked.table, checked.envelope
    of_key = tuple(f for f in table.fields if f.name in checked.key)
    others = tuple(f for f in table.fields if f.name not in checked.key)
    unit = envelope.epoch_unit
    found = _JsonFound(
        checked,
        Image("id", VALUE.payload, of_key, VALUE.schema, None, unit),
        Image("rest", VALUE.payload, others, VALUE.schema, None, unit),
        Image("key", KEY.payload, of_key, KEY.schema, None, unit, bare=True),
    )
    where, sample = frames.where(schema, ORIGINAL), frames.sample(schema, ORIGINAL)
    row = Row(found.values, _DELETED, found.order(), _PROBLEM, where, sample)
    images = (found.id, found.rest, found.key)
    return applied(
        frame,
        [
            *reading_steps(schema, [VALUE, KEY], streaming=frame.isStreaming),
            ["*", *(sql for image in images for sql in image.taking()), *named(found.order_texts())],
            ["*", *(sql for image in images for sql in image.converting())],
            ["*", *found.named()],
            ["*", *named({_DELETED: found.deleted, _UNORDERED: found.unordered})],
            ["*", f"{found.misfit} as {_MISFIT}"],
            ["*", f"{_problem([found.malformed])} as {_PROBLEM}"],
            *unfolded([("true", row.columns(table, checked.key))]),
        ],
    )


@dataclass(frozen=True)
class _JsonFound:
    """SQL over a frame whose record and key were converted."""

    checked: UpsertPlan
    id: Image
    """Key columns in the record."""
    rest: Image
    """The other columns of the record."""
    key: Image
    """Key columns in the record's key."""

    def _record(self, name: str) -> str:
        return (self.id if name in self.checked.key else self.rest).value(name)

    def named(self) -> list[str]:
        """The record's fields under their own names: declared ones typed, those that the condition needs as texts."""
        declared = {name: self._record(name) for name in self.checked.table.names}
        tops = dict.fromkeys(path[0] for path in self.checked.texts)
        return named(declared | {top: _texts_below((top,), self.checked.texts) for top in tops})

    @property
    def values(self) -> dict[str, str]:
        by_key = {k: f"if({VALUE.gone}, {self.key.value(k)}, {ident(k)})" for k in self.checked.key}
        return {name: by_key.get(name, ident(name)) for name in self.checked.table.names}

    @property
    def deleted(self) -> str:
        condition = self.checked.envelope.delete_when
        return VALUE.gone if condition is None else f"({VALUE.gone} or coalesce({condition}, false))"

    def order_texts(self) -> dict[str, str]:
        """Texts of the order fields that are not declared, by the name of their column."""
        paths = [p for p in self.checked.envelope.order_by if not self._is_declared(p)]
        return {_order_name(p): order.usable(field_text(VALUE.payload, *p.split("."))) for p in paths}

    def order(self) -> list[str]:
        columns: list[str] = []
        for path in self.checked.envelope.order_by:
            declared = self._is_declared(path)
            columns += [ident(*path.split("."))] if declared else order.of_text(ident(_order_name(path)))
        return [*columns, *arrival_names(self.checked.schema)]

    @property
    def unordered(self) -> str:
        paths = self.checked.envelope.order_by
        return order.missing_of(
            {p: ident(*p.split(".")) if self._is_declared(p) else ident(_order_name(p)) for p in paths}
        )

    def _is_declared(self, path: str) -> bool:
        return path.split(".")[0] in self.checked.table.names

    @property
    def malformed(self) -> str:
        no_json = problem("'the value is not JSON'")
        no_object = problem("'the value is not a JSON object'")
        return (
            f"case when {VALUE.malformed} then {no_json} "
            f"when not {VALUE.gone} and not {is_object(VALUE.payload)} then {no_object} end"
        )

    @property
    def misfit(self) -> str:
        """The first misfit. Of a delete only the key's count, and of a null value those of the record's key."""
        table, key = self.checked.table, self.checked.key
        in_key = {k: self.key.value(k) for k in key}
        by_key = coalesce([*self.key.misfits(), *required_misfits(table, in_key, only=key)], MISFIT)
        own = {name: ident(name) for name in table.names}
        of_key = coalesce([*self.id.misfits(), *required_misfits(table, own, only=key)], MISFIT)
        rest = [f.name for f in self.rest.fields]
        others = coalesce([*self.rest.misfits(), *required_misfits(table, own, only=rest)], MISFIT)
        return f"case when {VALUE.gone} then {by_key} when {_DELETED} then {of_key} else coalesce({of_key}, {others}) end"


def _order_name(path: str) -> str:
    return f"{STEP}order_{path}"


def _texts_below(here: Path, paths: Sequence[Path]) -> str:
    deeper = list(dict.fromkeys(p[: len(here) + 1] for p in paths if p[: len(here)] == here and len(p) > len(here)))
    if not deeper:
        return field_text(VALUE.payload, *here)
    return f"named_struct({', '.join(f'{literal(p[-1])}, {_texts_below(p, paths)}' for p in deeper)})"
