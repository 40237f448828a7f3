"""`calve init`: writes a pipeline for a folder or a topic, with everything that had to be guessed marked.

The file is a proposal. Nothing is created, and no sink is started: `calve run` does that, after somebody has looked.
"""

import os
import re
import shlex
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Self

from pyspark.sql import types as T  # noqa: N812

from calve.definitions.store import Definitions
from calve.definitions.workplace import workplace
from calve.errors import InvalidInput
from calve.infer.columns import Inferred, columns_of_sample, fields_of, inferred
from calve.infer.folders import FolderReader, detect_format
from calve.infer.guesses import Guesses, guess, is_debezium
from calve.infer.sample import Sample, counted
from calve.infer.schemas import avro_fields, avro_image, protobuf_fields, protobuf_image
from calve.infer.topics import described_schema, sample_topic, schema_of_keys, schema_of_records, schema_of_values
from calve.infer.value_types import InferenceNotes
from calve.model.connection import KafkaConnection
from calve.model.relation import KnownColumn
from calve.model.spec import Debezium, NoEnvelope
from calve.pipeline.lakes import revealing
from calve.plan.catalogue import KafkaOptions
from calve.plan.connections import plan_connection
from calve.plan.lookup import required_connection
from calve.source.kafka.access import access_of
from calve.source.kafka.avro import Avro
from calve.source.kafka.brokers import BrokerAccess
from calve.source.kafka.protobuf import Protobuf
from calve.source.kafka.reader import Encoding
from calve.source.kafka.registry import AVRO, PROTOBUF, RegisteredSchema, RegistryClient
from calve.spark.on_demand import spark_on_demand
from calve.sql.names import Identifier, quoted_name, quoted_text
from calve.sql.statements import ConnectionKind, Create, CreateConnection, ObjectKind
from calve.storage.listing import absolute, require_there

PIPELINE = "pipeline.sql"
"""File of a proposal, unless the user names another one."""
NAMESPACE = "raw"
"""Namespace of proposed tables."""
_CONNECTION = "kafka"
_GUESS = "-- guess: "


@dataclass(frozen=True)
class RegistryLogin:
    """A user of a schema registry; the password is in an environment variable."""

    user: str
    variable: str


@dataclass(frozen=True)
class TopicPlace:
    """Where a topic is, and how the pipeline refers to it."""

    topic: str
    access: BrokerAccess
    connection: str
    """The name of the connection in the pipeline."""
    created: bool
    """Whether the pipeline creates that connection."""
    registry: RegistryClient | None = None
    login: RegistryLogin | None = None

    def with_registry(self, registry: RegistryClient | None, login: RegistryLogin | None) -> Self:
        """The same topic, whose schemas are in a registry."""
        return replace(self, registry=registry, login=login)


@dataclass(frozen=True)
class PipelineProposal:
    """A pipeline, and what it is based on."""

    text: str
    looked: str
    guesses: int
    """Lines that are marked."""


def propose_for_folder(location: str, file: str = PIPELINE) -> PipelineProposal:
    """Propose a pipeline for the files of a folder, to be written to `file`. Raises InvalidInput and TransientError."""
    check_folder(location)
    form, options = detect_format(absolute(location))
    notes = InferenceNotes()
    sample = FolderReader(absolute(location), form, options).sample(notes)
    envelope = Debezium() if is_debezium(sample) else NoEnvelope()
    fields = columns_of_sample(sample, envelope, (), notes)
    name = _name_of(location)
    guesses = guess(sample, fields, name, topic=False)
    # Fields of conditions need not be columns, except in CSV files, whose columns are all declared.
    left_out = guesses.delete_field if form != "csv" else None
    found = inferred(sample, {n: kind for n, kind in fields.items() if n != left_out}, (), envelope, notes)
    settings = {"PATH": location, "FORMAT": form}
    if form == "csv":
        settings |= {"HEADER": options["header"], **({"DELIMITER": options["sep"]} if "sep" in options else {})}
    listed = ", ".join(f"{word} = {_option(word, value)}" for word, value in settings.items())
    return _Writer(name, found, guesses, f"calve init {location}", file).proposal([f"FROM FILES ({listed})"])


def check_folder(location: str) -> None:
    """Raise InvalidInput if a folder is not there."""
    try:
        require_there(absolute(location))
    except InvalidInput as error:
        topic = "" if "/" in location else " A topic needs --broker host:port, or --connection name."
        raise InvalidInput(error.primary, detail=error.detail, hint=f"{error.hint}{topic}") from error


def propose_for_topic(place: TopicPlace, file: str = PIPELINE) -> PipelineProposal:
    """Propose a pipeline for a topic, to be written to `file`. Raises InvalidInput and TransientError."""
    registered = schema_of_values(place.registry, place.topic) if place.registry else None
    encoding = _encoding_of(registered, place)
    notes = InferenceNotes()
    sample = sample_topic(place.access, place.topic, encoding)
    registered = registered and schema_of_records(registered, sample.records)
    changes = is_debezium(sample) or (registered is not None and _describes_changes(registered))
    envelope = Debezium() if changes else NoEnvelope()
    if registered is not None:
        fields = fields_of(registered, envelope, notes)
        sample = replace(sample, looked=f"{described_schema(registered)}, {sample.looked}")
    else:
        _check_readable(sample, place)
        fields = columns_of_sample(sample, envelope, (), notes)
    name = _name_of(place.topic)
    key_fields = _fields_of_keys(place)
    guesses = guess(sample, fields, name, topic=True)
    if changes and guesses.envelope != "DEBEZIUM":
        guesses = replace(guesses, envelope="DEBEZIUM", envelope_reason="the schema has before, after and op")
    if key_fields and not guesses.key:
        guesses = replace(guesses, key=tuple(key_fields), key_reason="the schema of the topic's keys")
    fields = {**{n: kind for n, kind in key_fields.items() if n in guesses.key}, **fields}
    fields = {n: kind for n, kind in fields.items() if n != guesses.delete_field}
    found = inferred(sample, fields, (), envelope, notes)
    writer = _Writer(name, found, guesses, f"calve init {place.topic}", file)
    form = "FORMAT JSON"
    if encoding is not None and registered is not None:
        form = f"FORMAT {registered.kind} USING SCHEMA REGISTRY ({_registry_options(place)})"
    source = [f"FROM KAFKA CONNECTION {_name(place.connection)} (TOPIC = {quoted_text(place.topic)})", form]
    return writer.proposal(source, _kafka_connection(place, uses_registry=encoding is not None))


def defined_access(home: Path, connection: str) -> BrokerAccess:
    """How to reach the brokers of a defined connection. Raises InvalidInput."""
    place = workplace(home, spark_on_demand(home))
    definitions = place.definitions()
    found = required_connection(definitions, Identifier.exact(connection), ConnectionKind.KAFKA)
    planned = plan_connection(found.statement, definitions) if isinstance(found.statement, CreateConnection) else None
    if not isinstance(planned, KafkaConnection):
        raise TypeError("not a connection to Kafka")
    return access_of(planned, revealing(definitions, place.vault))


def connection_to_create(home: Path, brokers: str) -> str:
    """A name for a connection to these brokers: `calve run` would change an object that has the name already."""
    definitions = workplace(home, spark_on_demand(home)).definitions() if home.exists() else Definitions(())
    taken = {found.name.lower(): found.statement for found in definitions.of(ObjectKind.CONNECTION)}
    names = chain((_CONNECTION,), (f"{_CONNECTION}_{number}" for number in count(2)))
    return next(name for name in names if name not in taken or _leads_to(taken[name], brokers))


def _leads_to(connection: Create, brokers: str) -> bool:
    """Whether a connection is as the pipeline would create it."""
    if not isinstance(connection, CreateConnection):
        return False
    said = [(option.name, option.value) for option in connection.options]
    return connection.kind is ConnectionKind.KAFKA and said == [(KafkaOptions.BROKER.name, brokers)]


def _describes_changes(registered: RegisteredSchema) -> bool:
    if registered.kind == PROTOBUF:
        return protobuf_image(registered.schema) is not None
    return registered.kind == AVRO and avro_image(registered.schema) is not None


def _encoding_of(registered: RegisteredSchema | None, place: TopicPlace) -> Encoding | None:
    if registered is None or place.registry is None:
        return None
    if registered.kind == PROTOBUF:
        return Protobuf(place.registry)
    return Avro(registry=place.registry) if registered.kind == AVRO else None


def _check_readable(sample: Sample, place: TopicPlace) -> None:
    if any(record.value is not None for record in sample.records):
        return
    registry = f"--registry is the URL of the registry that knows {place.topic}-value."
    raise InvalidInput(
        f'topic "{place.topic}" has no records to infer columns from',
        detail=sample.problems[0] if sample.problems else f"The sample is {sample.looked}.",
        hint="The records are not JSON. If they are Avro or Protobuf: " + registry if sample.problems else registry,
    )


def _fields_of_keys(place: TopicPlace) -> dict[str, T.DataType]:
    registered = schema_of_keys(place.registry, place.topic) if place.registry else None
    if registered is not None and registered.kind == PROTOBUF:
        return protobuf_fields(registered.schema, InferenceNotes())
    if registered is None or registered.kind != AVRO or not isinstance(registered.schema, dict):
        return {}
    return avro_fields(registered.schema, InferenceNotes()) if "fields" in registered.schema else {}


def _kafka_connection(place: TopicPlace, *, uses_registry: bool) -> list[str]:
    lines = []
    if place.created:
        broker = quoted_text(place.access.brokers)
        lines.append(f"CREATE CONNECTION {_name(place.connection)} TO KAFKA (BROKER = {broker});")
    if uses_registry and place.login is not None:
        lines.append(f"CREATE SECRET registry_password FROM ENV {quoted_text(place.login.variable)};")
    return lines


def _registry_options(place: TopicPlace) -> str:
    url = place.registry.url if place.registry else ""
    login = f", USER = {quoted_text(place.login.user)}, PASSWORD = SECRET registry_password" if place.login else ""
    return f"URL = {quoted_text(url)}{login}"


def _option(word: str, value: str) -> str:
    return value if word == "HEADER" else quoted_text(value)


def _name(name: str) -> str:
    return Identifier.shortest(name).to_sql()


def _name_of(location: str) -> str:
    """A name for the source: of the folder or file, or of the topic, without what stands before its last dot."""
    parts = [part for part in location.split("/") if part and "*" not in part]
    last = parts[-1] if parts else "source"
    base = last.split(".")[0] if "/" in location or Path(location).exists() else last.rpartition(".")[2]
    return re.sub(r"\W+", "_", base).strip("_").lower() or "source"


class _Writer:
    """Writes the file."""

    def __init__(self, name: str, found: Inferred, guesses: Guesses, command: str, file: str) -> None:
        self._name, self._found, self._guesses, self._command, self._file = name, found, guesses, command, file
        self._marked = 0

    def proposal(self, source: list[str], connections: list[str] | None = None) -> PipelineProposal:
        """The file; `source` are the clauses that say where records are."""
        statements = [*(connections or []), "", *self._source(source), "", *self._sink()]
        found = self._found
        head = [
            f"-- Written by `{_one_line(self._command)}`, which looked at {_one_line(found.looked)}.",
            "-- Look at what is marked as a guess, correct it, and run it:",
            "--",
            f"--     calve run {_one_line(shlex.quote(self._file))} --until-caught-up",
            f"--     calve read {NAMESPACE}.{self._name}",
        ]
        if found.problems:
            count = counted(len(found.problems), "record")
            first = f"{count} of the sample cannot be read; the first: {found.problems[0]}"
            head.append(f"-- {_one_line(first)}")
        left_out = [f"{path}: {text}" for path, text in found.notes.by_column.items() if text.startswith("left out")]
        head += [f"-- {_one_line(text)}" for text in left_out]
        lake = "CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');"
        return PipelineProposal("\n".join([*head, "", lake, *statements]) + "\n", found.looked, self._marked)

    def _source(self, clauses: list[str]) -> list[str]:
        guesses, key = self._guesses, self._guesses.key
        items = [self._column(column) for column in self._found.columns]
        if key:
            listed = ", ".join(_name(name) for name in key)
            items.append((f"PRIMARY KEY ({listed}) NOT ENFORCED", f"the key: {guesses.key_reason}"))
        lines = [f"CREATE SOURCE {_name(self._name)} ("]
        for number, (text, reason) in enumerate(items, 1):
            comma = "," if number < len(items) else ""
            lines.append(f"  {text}{comma}" + (f"  {self._guess(reason)}" if reason else ""))
        lines += [")", *clauses]
        if guesses.envelope != "NONE":
            lines.append(self._guess(guesses.envelope_reason))
        return [*lines, f"{self._envelope()};"]

    def _column(self, column: KnownColumn) -> tuple[str, str]:
        required = " NOT NULL" if column.name in self._guesses.key else ""
        notes = [text for text in self._found.notes.of(column.name) if not text.startswith("left out")]
        return f"{_name(column.name)} {column.type}{required}", "; ".join(notes)

    def _envelope(self) -> str:
        guesses = self._guesses
        clauses = [f"ORDER BY {_path(guesses.order.value)}"] if guesses.order else []
        clauses += [f"DELETE WHEN {guesses.delete_when.value}"] if guesses.delete_when else []
        return f"ENVELOPE {guesses.envelope}" + (f" ({', '.join(clauses)})" if clauses else "")

    def _sink(self) -> list[str]:
        guesses = self._guesses
        lines = [
            f"CREATE SINK {_name(self._name)} FROM {_name(self._name)}",
            f"TO ICEBERG CATALOG lake NAMESPACE {quoted_name(NAMESPACE)} TABLE {quoted_name(self._name)}",
        ]
        if not guesses.key:
            lines += [self._guess("no key was found: every record is kept as a row"), "MODE APPEND"]
        elif guesses.envelope == "NONE":
            lines.append(self._guess(f"{guesses.envelope_reason}: a record replaces the row of its key"))
        if guesses.partition:
            lines.append(f"-- PARTITION BY ({guesses.partition.value})  -- worth it for a large table")
        return [*lines, ";"] if lines[-1].startswith("--") else [*lines[:-1], f"{lines[-1]};"]

    def _guess(self, reason: str) -> str:
        self._marked += 1
        return _GUESS + _one_line(reason)


def _path(path: str) -> str:
    return ".".join(_name(part) for part in path.split("."))


def _one_line(text: str) -> str:
    """A text that cannot end the comment it is in."""
    return " ".join(text.split())


def check_output(output: Path, *, force: bool) -> None:
    """Raise InvalidInput if a pipeline file is there already, unless `force` is set."""
    if not force and os.path.lexists(output):
        raise _output_exists(output)


def _output_exists(output: Path) -> InvalidInput:
    return InvalidInput(f"{output} already exists", hint="Give another --output, or --force to overwrite it.")


def write_proposal(proposal: PipelineProposal, output: Path, *, force: bool) -> None:
    """Write a pipeline file. Raises InvalidInput if it exists, unless `force` is set."""
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(proposal.text)
    except FileExistsError as error:
        raise _output_exists(output) from error
    except OSError as error:
        raise InvalidInput(f"{output} cannot be written", detail=f"{error}.") from error
