"""What sinks read from: sources as they were planned, and what is known of columns before anything runs."""

from dataclasses import dataclass

from calve.model.connection import KafkaConnection, SchemaRegistry
from calve.model.spec import Envelope


@dataclass(frozen=True)
class KnownColumn:
    """A column and its type in Spark's notation."""

    name: str
    type: str
    not_null: bool = False


@dataclass(frozen=True)
class Relation:
    """A source or a view. `columns` is None where only the data itself says what they are."""

    name: str
    columns: tuple[KnownColumn, ...] | None
    key: tuple[str, ...]
    """The key it has by itself; empty when it has none."""


@dataclass(frozen=True)
class FilesInput:
    """Files of a folder. `schema` is None when the envelope, or the files, say what the columns are."""

    path: str
    format: str
    schema: str | None
    max_files: int
    options: tuple[tuple[str, str], ...]
    epoch_unit: str | None


@dataclass(frozen=True)
class GeneratorInput:
    """The load generator of orders."""

    rows: int
    changes: int | None
    seed: int
    per_checkpoint: int
    per_second: float | None


METADATA_TYPES = {
    "key": "STRING",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
"""Columns that a record of Kafka may have beside its own."""


@dataclass(frozen=True)
class KafkaInput:
    """Records of a topic. `schema` is None when the envelope says what the columns are."""

    connection: KafkaConnection
    topic: str
    start: str
    max_offsets: int | None
    format: str
    schema: str | None = None
    epoch_unit: str | None = None
    included: tuple[tuple[str, str], ...] = ()
    """What of a record becomes a column, and under which name."""
    avro_schema: str | None = None
    registry: SchemaRegistry | None = None
    unchecked: bool = False
    """The connection is not to be tried."""


Input = FilesInput | GeneratorInput | KafkaInput


@dataclass(frozen=True)
class SourcePlan:
    """A source, checked. Without an envelope the input brings its own."""

    relation: Relation
    input: Input
    envelope: Envelope | None
