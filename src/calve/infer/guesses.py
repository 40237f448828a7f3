"""Guesses at what a sample means: envelope, key, order, deletes, partitions. Each says what it is based on.

A guess is never applied in silence: `calve init` writes it into a file, for somebody to look at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as T  # noqa: N812

from calve.infer.columns import rows_of
from calve.infer.sample import Sample, Sampled
from calve.sql.names import quoted_text

_KEY_NAMES = ("id", "_id", "uuid", "guid", "key", "pk")
_ORDER_NAMES = (
    *("seq", "sequence", "sequence_number", "_seq", "lsn", "__lsn", "__source_lsn", "scn", "version", "_version"),
    *("updated_at", "modified_at", "last_modified", "last_updated", "changed_at", "updated", "modified"),
    *("__source_ts_ms", "__ts_ms", "ts_ms", "ts", "_ts", "event_time", "event_ts", "timestamp"),
)
_DEBEZIUM_ORDERS = ("source.lsn", "source.scn", "source.pos", "source.sequence", "ts_us", "ts_ms", "source.ts_ms")
_OP_NAMES = ("op", "__op", "_op", "operation", "change_type", "_change_type", "op_type")
_DELETE_MARKS = ("_deleted", "__deleted", "is_deleted", "deleted", "_is_deleted")
_DELETE_WORDS = ("d", "delete", "del", "deleted", "remove", "removed")
_OTHER_WORDS = frozenset(
    {*("c", "r", "u", "i", "insert", "update", "upsert", "create", "read", "created", "updated"), *_DELETE_WORDS}
)
_DAYS = ("created_at", "ordered_at", "created", "event_time", "event_date", "occurred_at", "date")
_KEY_TYPES = (T.IntegralType, T.StringType, T.DecimalType, T.DateType, T.TimestampType, T.TimestampNTZType)
_ORDER_TYPES = (T.IntegralType, T.DecimalType, T.DateType, T.TimestampType, T.TimestampNTZType)


@dataclass(frozen=True)
class Guess:
    """A guess, and what it is based on."""

    value: str
    reason: str


@dataclass(frozen=True)
class Guesses:
    """Everything that a pipeline needs besides columns."""

    envelope: str
    """NONE, UPSERT or DEBEZIUM."""
    envelope_reason: str
    key: tuple[str, ...] = ()
    key_reason: str = ""
    order: Guess | None = None
    delete_when: Guess | None = None
    delete_field: str | None = None
    """The field of `delete_when`, which says nothing in a table."""
    partition: Guess | None = None


def is_debezium(sample: Sample) -> bool:
    """Whether all records are change records of Debezium, or tombstones."""
    if sample.typed is not None:
        return {"op", "after"} <= set(sample.typed) and isinstance(sample.typed["after"], T.StructType)
    values = [record for record in sample.records if record.value is not None]
    return bool(values) and all(record.is_change for record in values)


def guess(sample: Sample, fields: Mapping[str, T.DataType], name: str, *, topic: bool) -> Guesses:
    """Guess everything. `name` is that of the folder or topic."""
    if is_debezium(sample):
        return _debezium(sample, fields, name, topic=topic)
    rows = _rows(sample)
    order = _order(rows, fields)
    delete, marker = _delete_when(rows, fields)
    tombstones = any(record.value is None for record in sample.records)
    columns = {field: kind for field, kind in fields.items() if field != marker}
    key, reason = _key(sample.records, rows, columns, name, repeats=order is not None or delete is not None or topic)
    partition = _partition(columns)
    keyed = any(record.key is not None for record in sample.records)
    if key and (order or topic) and (order or delete or tombstones or keyed):
        found = [
            f"{order.value} orders changes" if order else "offsets order changes",
            "records with a null value delete" if tombstones else "",
            f"{delete.value} marks deletes" if delete else "",
        ]
        because = "; ".join(text for text in found if text)
        return Guesses("UPSERT", because, key, reason, order, delete, marker, partition)
    because = "no field was found that orders the changes of a key" if key else "no key was found"
    return Guesses("NONE", because, key, reason, partition=partition)


def _rows(sample: Sample) -> list[dict[str, Any]]:
    if sample.texts is not None:
        names = list(sample.texts)
        return [dict(zip(names, values, strict=True)) for values in zip(*sample.texts.values(), strict=True)]
    return list(sample.rows) or rows_of(sample.records, changes=False)


# ---- Debezium


def _debezium(sample: Sample, fields: Mapping[str, T.DataType], name: str, *, topic: bool) -> Guesses:
    wrapped = any(record.schema is not None for record in sample.records)
    reason = f"records have before, after and op{', with a schema part' if wrapped else ''}"
    records = sample.records or tuple(Sampled(row) for row in sample.rows)
    rows = rows_of(records, changes=True)
    key, key_reason = _key(sample.records, rows, fields, name, repeats=True)
    order = None if topic else _debezium_order(sample)
    return Guesses("DEBEZIUM", reason, key, key_reason, order, partition=_partition(fields))


def _debezium_order(sample: Sample) -> Guess | None:
    values = [record.value for record in sample.records if record.value is not None] or list(sample.rows)
    for path in _DEBEZIUM_ORDERS:
        found = [_at(value, path) for value in values]
        if found and all(type(value) is int for value in found):
            return Guess(path, "in every record, a number")
    return None


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _values(rows: Sequence[Mapping[str, Any]], column: str) -> set[Any]:
    """The different values of a column that are not null; objects and arrays by their text."""
    found = (row.get(column) for row in rows)
    return {repr(value) if isinstance(value, dict | list) else value for value in found if value is not None}


# ---- keys


def _key(
    records: Sequence[Sampled],
    rows: Sequence[Mapping[str, Any]],
    fields: Mapping[str, T.DataType],
    name: str,
    *,
    repeats: bool,
) -> tuple[tuple[str, ...], str]:
    """The columns of the key, and why. `repeats` says that several records may have one key."""
    by_message = _key_of_messages(records, fields)
    if by_message:
        return by_message, "the keys of the topic's records"
    usable = [
        column
        for column, kind in fields.items()
        if isinstance(kind, _KEY_TYPES) and rows and all(row.get(column) is not None for row in rows)
    ]
    unique = {column for column in usable if len(_values(rows, column)) == len(rows)}
    stem = name.lower().removesuffix("s")
    named = [*_KEY_NAMES, f"{stem}_id", f"{name.lower()}_id", f"{stem}id", f"{stem}_uuid", f"{stem}_no"]
    by_name = next((column for word in named for column in usable if column.lower() == word), None)
    if by_name is not None and (repeats or by_name in unique):
        return (by_name,), f"its name, never null, {_uniqueness(by_name, rows)}"
    others = [column for column in usable if column in unique and column.lower().endswith(("_id", "id", "uuid", "key"))]
    if len(rows) > 1 and others:
        return (others[0],), f"its name, never null, {_uniqueness(others[0], rows)}"
    return (), ""


def _uniqueness(column: str, rows: Sequence[Mapping[str, Any]]) -> str:
    values = len(_values(rows, column))
    return "unique in the sample" if values == len(rows) else f"{values:,} values in {len(rows):,} records"


def _key_of_messages(records: Sequence[Sampled], fields: Mapping[str, T.DataType]) -> tuple[str, ...]:
    """The columns that Kafka's keys name: fields of objects, or the column that has the bare value of every key."""
    keys = [record for record in records if record.key is not None]
    if not keys or len(keys) < len(records):
        return ()
    if all(isinstance(record.key, dict) for record in keys):
        names = list(dict.fromkeys(name for record in keys for name in record.key))
        return tuple(names) if names and all(name in fields for name in names) else ()
    valued = [(record.key, images[-1]) for record in keys if (images := _images(record))]
    for name in fields:
        if valued and all(not isinstance(key, dict | list) and row.get(name) == key for key, row in valued):
            return (name,)
    return ()


def _images(record: Sampled) -> list[dict[str, Any]]:
    if record.is_change:
        return record.images()
    return [record.value] if isinstance(record.value, dict) else []


# ---- order, deletes, partitions


def _order(rows: Sequence[Mapping[str, Any]], fields: Mapping[str, T.DataType]) -> Guess | None:
    by_name = {name.lower(): name for name, kind in fields.items() if isinstance(kind, _ORDER_TYPES)}
    for word in _ORDER_NAMES:
        name = by_name.get(word)
        if name is not None and rows and all(row.get(name) is not None for row in rows):
            return Guess(name, "its name, never null")
    return None


def _delete_when(
    rows: Sequence[Mapping[str, Any]], fields: Mapping[str, T.DataType]
) -> tuple[Guess | None, str | None]:
    by_name = {name.lower(): name for name in fields}
    for word in _DELETE_MARKS:
        name = by_name.get(word)
        values = _values(rows, name) if name else set()
        if name and values and values <= {True, False, "true", "false"}:
            return Guess(f"{_shown(name)} = 'true'", "its name and values"), name
    for word in _OP_NAMES:
        name = by_name.get(word)
        values = _values(rows, name) if name else set()
        if name and values and all(isinstance(value, str) and value.lower() in _OTHER_WORDS for value in values):
            deleting = sorted(value for value in values if value.lower() in _DELETE_WORDS)
            reason = f"its values: {', '.join(sorted(values))}"
            if not deleting:
                deleting, reason = [_deletion_like(values)], f"{reason}; none of them deletes"
            return Guess(f"{_shown(name)} = {quoted_text(deleting[0])}", reason), name
    return None, None


def _deletion_like(values: set[str]) -> str:
    one = next(iter(sorted(values)))
    word = "d" if len(one) == 1 else "delete"
    return word.upper() if one.isupper() else word


def _shown(name: str) -> str:
    """The name of a field in a condition, which is in Spark's language."""
    return name if name.isidentifier() and name.isascii() else "`" + name.replace("`", "``") + "`"


def _partition(fields: Mapping[str, T.DataType]) -> Guess | None:
    by_name = {
        name.lower(): name
        for name, kind in fields.items()
        if isinstance(kind, T.DateType | T.TimestampType | T.TimestampNTZType)
    }
    found = next((by_name[word] for word in _DAYS if word in by_name), None)
    return None if found is None else Guess(f"day({found})", "a time that does not change with the row")
