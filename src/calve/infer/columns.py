"""The columns of a planned source, from a sample and from schemas.

Fields of a record become columns. The columns of Debezium records are those of `after` and `before`; key columns that
only Kafka's key has are added; the fields that ENVELOPE DIFF names are not part of the table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import types as T  # noqa: N812

from calve.analyze.column_types import common_type
from calve.catalog.properties import Reveal
from calve.errors import InvalidInput
from calve.infer.folders import FolderReader
from calve.infer.sample import Sample, Sampled, counted
from calve.infer.schemas import (
    avro_fields,
    avro_image,
    connect_fields,
    image_fields,
    json_schema_fields,
    protobuf_fields,
    protobuf_image,
)
from calve.infer.topics import described_schema, sample_topic, schema_of_records, schema_of_values
from calve.infer.value_types import InferenceNotes, declared, type_of_json, type_of_texts
from calve.model.change import RESERVED_PREFIX
from calve.model.relation import FilesInput, KafkaInput, KnownColumn, SourcePlan
from calve.model.spec import Debezium, Diff, Envelope
from calve.records.documents import UNREADABLE, malformed
from calve.records.scalars import Settings
from calve.records.strict import Columns as Typed
from calve.source.kafka.access import access_of, encoding_of, registry_of
from calve.source.kafka.avro import parsed_schema
from calve.source.kafka.registry import AVRO, JSON, PROTOBUF, RegisteredSchema, RegistryClient


@dataclass(frozen=True)
class Inferred:
    """The columns of a source, and what somebody should look at."""

    columns: tuple[KnownColumn, ...]
    looked: str
    """At what: `3 files, 120 records`."""
    notes: InferenceNotes = field(default_factory=InferenceNotes)
    problems: tuple[str, ...] = ()
    """Records of the sample that these columns cannot read."""

    def warnings(self) -> list[str]:
        """The notes and problems, a line each."""
        found = [f"{path}: {text}" for path, text in self.notes.by_column.items()]
        if self.problems:
            count = counted(len(self.problems), "record")
            found.append(f"{count} of the sample cannot be read; the first: {self.problems[0]}")
        return found


def infer_columns(plan: SourcePlan, reveal: Reveal) -> Inferred:
    """Determine the columns of a source, in the order of its records. Those that are declared keep their types.

    Raises InvalidInput if there is nothing to infer from, and TransientError.
    """
    notes = InferenceNotes()
    match plan.input:
        case FilesInput() as found:
            sample = FolderReader(found.path, found.format, dict(found.options)).sample(notes)
            fields = columns_of_sample(sample, plan.envelope, plan.relation.key, notes)
        case KafkaInput() as found:
            sample, fields = _of_topic(found, plan, reveal, notes)
        case _:
            raise TypeError("this input has its own columns")
    known = plan.relation.columns or ()
    return inferred(sample, fields, known, plan.envelope, notes)


def inferred(
    sample: Sample,
    fields: Mapping[str, T.DataType],
    known: Sequence[KnownColumn],
    envelope: Envelope | None,
    notes: InferenceNotes,
) -> Inferred:
    """The columns of `fields`, and before them declared ones that are not among these; checked against the sample.

    Raises InvalidInput if there are none, or if a declared one is missing in CSV files, whose columns have an order.
    """
    given = {column.name: column for column in known}
    absent = [column for column in known if column.name not in fields]
    if sample.texts is not None and absent:
        raise InvalidInput(
            f'the files have no column "{absent[0].name}"',
            detail=f"Their columns are {', '.join(fields)}.",
            hint="Columns of CSV files have the names of the header; without one c1, c2, ...",
        )
    taken = {column.name.lower(): column.name for column in known}
    notes.forget(given)
    fresh: dict[str, T.DataType] = {}
    columns = list(absent)
    for name, kind in fields.items():
        other = taken.get(name.lower())
        if name in given:
            columns.append(given[name])
        elif name.lower().startswith(RESERVED_PREFIX) or not name:
            notes.add(name or '""', "left out: the name is reserved" if name else "left out: it has no name")
        elif other is None:
            fresh[name] = kind
            taken[name.lower()] = name
            columns.append(KnownColumn(name, declared(kind)))
        else:
            notes.add(name, f'left out: it differs from "{other}" only in case')
    if not columns:
        raise InvalidInput(
            "there are no columns to infer",
            detail=f"The sample is {sample.looked}.",
            hint="Declare the columns, or wait until there are records.",
        )
    problems = [*sample.problems, *_unreadable(sample, fresh, envelope)]
    return Inferred(tuple(columns), sample.looked, notes, tuple(problems))


def columns_of_sample(
    sample: Sample, envelope: Envelope | None, key: Sequence[str], notes: InferenceNotes
) -> dict[str, T.DataType]:
    """The columns that a sample shows, by name."""
    if sample.typed is not None:
        fields = dict(sample.typed)
        if isinstance(envelope, Debezium):
            fields = _typed_image(fields)
    elif sample.texts is not None:
        fields = {name: type_of_texts(values, name, notes) for name, values in sample.texts.items()}
    else:
        fields = _of_records(sample.records, envelope, key, notes)
    if not isinstance(envelope, Diff):
        return fields
    special = [name for name in (envelope.time, envelope.diff, envelope.progress) if name]
    rest = {name: kind for name, kind in fields.items() if name not in special}
    if sample.texts is not None and [*rest, *(name for name in special if name in fields)] != list(fields):
        raise InvalidInput(
            "the fields of ENVELOPE DIFF are not the last columns of the files",
            detail=f"The columns are {', '.join(fields)}.",
            hint="Declare the columns in the order of the files, with these fields among them.",
        )
    return rest


def _typed_image(fields: Mapping[str, T.DataType]) -> dict[str, T.DataType]:
    image = fields.get("after", fields.get("before"))
    if not isinstance(image, T.StructType):
        raise InvalidInput("the files have no column after with the columns of the table", hint="Leave ENVELOPE out.")
    return {field.name: field.dataType for field in image.fields}


def _of_records(
    records: Sequence[Sampled], envelope: Envelope | None, key: Sequence[str], notes: InferenceNotes
) -> dict[str, T.DataType]:
    changes = isinstance(envelope, Debezium)
    by_schema = _by_schema_parts(records, notes, changes=changes)
    rows = rows_of(records, changes=changes)
    if changes and not rows and not by_schema:
        raise InvalidInput(
            "the records have neither before nor after",
            detail="The sample contains no change records of Debezium.",
            hint="Leave out ENVELOPE DEBEZIUM.",
        )
    names = dict.fromkeys(name for row in rows for name in row)
    fields = {
        name: by_schema[name] if name in by_schema else type_of_json([row.get(name) for row in rows], name, notes)
        for name in dict.fromkeys([*by_schema, *names])
    }
    return {**_only_in_keys(records, fields, key, notes), **fields}


def _only_in_keys(
    records: Sequence[Sampled], fields: Mapping[str, T.DataType], key: Sequence[str], notes: InferenceNotes
) -> dict[str, T.DataType]:
    """The key columns that only Kafka's keys have."""
    known = {name.lower() for name in fields}
    found = {name: _type_in_keys(records, name, key, notes) for name in key if name.lower() not in known}
    return {name: kind for name, kind in found.items() if kind is not None}


def rows_of(records: Sequence[Sampled], *, changes: bool) -> list[dict[str, Any]]:
    """The rows of a table that records contain."""
    if changes:
        return [image for record in records for image in record.images()]
    return [record.value for record in records if isinstance(record.value, dict)]


def _by_schema_parts(records: Sequence[Sampled], notes: InferenceNotes, *, changes: bool) -> dict[str, T.DataType]:
    """The columns in the schema parts of all records."""
    merged: dict[str, T.DataType] = {}
    seen: list[Any] = []
    for schema in (record.schema for record in records if isinstance(record.schema, dict)):
        if schema in seen[-4:]:
            continue
        seen.append(schema)
        fields = image_fields(schema, notes) if changes else connect_fields(schema.get("fields"), notes)
        for name, kind in fields.items():
            common = common_type(merged.get(name, kind), kind)
            if common is None:
                notes.add(name, "its type changes")
            merged[name] = common or T.StringType()
    return merged


def _type_in_keys(
    records: Sequence[Sampled], name: str, key: Sequence[str], notes: InferenceNotes
) -> T.DataType | None:
    """The type of a key column in Kafka's keys; None if these do not have it either."""
    found: list[Any] = []
    for record in records:
        if isinstance(record.key_schema, dict):
            fields = connect_fields(record.key_schema.get("fields"), notes)
            if name in fields:
                return fields[name]
        if isinstance(record.key, dict):
            found.append(record.key.get(name))
        elif len(key) == 1:
            found.append(record.key)
    return type_of_json(found, name, notes) if any(value is not None for value in found) else None


def _unreadable(sample: Sample, fields: Mapping[str, T.DataType], envelope: Envelope | None) -> list[str]:
    """Problems of records with the inferred columns, by the code that sinks use."""
    changes = isinstance(envelope, Debezium)
    typed = Typed.of([T.StructField(name, kind) for name, kind in fields.items()], Settings())
    problems = []
    for record in sample.records:
        for row in rows_of([record], changes=changes):
            try:
                typed.values(row, record.codings(of_image=changes))
            except UNREADABLE as error:
                problems.append(malformed(error).text)
    return problems


# ---- topics


def _of_topic(
    found: KafkaInput, plan: SourcePlan, reveal: Reveal, notes: InferenceNotes
) -> tuple[Sample, dict[str, T.DataType]]:
    registry = registry_of(found.registry, reveal) if found.registry else None
    sample = sample_topic(access_of(found.connection, reveal), found.topic, encoding_of(found, reveal))
    fields, looked = None, ""
    if found.avro_schema is not None:
        fields, looked = _of_avro(parsed_schema(found.avro_schema), plan.envelope, notes), "the given schema"
    elif registry is not None:
        fields, looked = _of_registry(registry, found.topic, sample.records, plan.envelope, notes)
    if fields is None:
        if not sample.records:
            raise InvalidInput(
                "there are no records to infer columns from",
                detail=sample.problems[0] if sample.problems else f'Topic "{found.topic}" is empty.',
                hint="Declare the columns, or wait until there are records.",
            )
        return sample, columns_of_sample(sample, plan.envelope, plan.relation.key, notes)
    keys = _only_in_keys(sample.records, fields, plan.relation.key, notes)
    return replace(sample, looked=f"{looked}, {sample.looked}"), {**keys, **fields}


def _of_registry(
    registry: RegistryClient,
    topic: str,
    records: Sequence[Sampled],
    envelope: Envelope | None,
    notes: InferenceNotes,
) -> tuple[dict[str, T.DataType] | None, str]:
    """The columns of a topic by the newest schema of its values, and which that is; None if there is none."""
    registered = schema_of_values(registry, topic)
    if registered is None:
        return None, ""
    registered = schema_of_records(registered, records)
    return fields_of(registered, envelope, notes), described_schema(registered)


def fields_of(registered: RegisteredSchema, envelope: Envelope | None, notes: InferenceNotes) -> dict[str, T.DataType]:
    """The columns of a registered schema. Raises InvalidInput for one whose records calve does not read."""
    changes = isinstance(envelope, Debezium)
    if registered.kind == AVRO:
        return _of_avro(registered.schema, envelope, notes)
    if registered.kind == PROTOBUF:
        return _of_protobuf(registered.schema, notes, changes=changes)
    if registered.kind == JSON:
        return json_schema_fields(registered.schema, notes, changes=changes)
    raise InvalidInput(
        f"subject {registered.subject} has a schema of type {registered.kind}",
        detail="Sources read JSON, Avro and Protobuf.",
        hint="Let a connector convert the records to one of these.",
    )


def _of_avro(schema: Any, envelope: Envelope | None, notes: InferenceNotes) -> dict[str, T.DataType]:
    if not isinstance(envelope, Debezium):
        return avro_fields(schema, notes)
    image = avro_image(schema)
    if image is None:
        raise _no_changes()
    return avro_fields(image, notes)


def _of_protobuf(message: Any, notes: InferenceNotes, *, changes: bool) -> dict[str, T.DataType]:
    image = protobuf_image(message) if changes else message
    if image is None:
        raise _no_changes()
    return protobuf_fields(image, notes)


def _no_changes() -> InvalidInput:
    return InvalidInput("the schema is not one of Debezium's change records", hint="Leave out ENVELOPE DEBEZIUM.")
