"""Planned sources, and the columns that are known before anything runs."""

from calve.model.connection import CatalogConnection, KafkaConnection, SchemaRegistry
from calve.model.spec import Envelope, TableName
from calve.values import value


@value
class KnownColumn:
    """A column and its type in Spark's notation."""

    name: str
    type: str
    not_null: bool = False


@value
class Relation:
    """A source or a view. `columns` is None if only the data reveals them."""

    name: str
    columns: tuple[KnownColumn, ...] | None
    key: tuple[str, ...]
    """Its declared key; empty if there is none."""


def folder_of(location: str) -> str:
    """The folder that is listed for a location: its own path, or what stands before the first `*` of a pattern."""
    before, star, _ = location.partition("*")
    return before.rpartition("/")[0] if star else location


@value
class FilesInput:
    """Files of a folder. `schema` is None if the envelope, or the files, determine the columns."""

    path: str
    format: str
    schema: str | None
    max_files: int
    options: tuple[tuple[str, str], ...]
    epoch_unit: str | None


@value
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
"""Metadata of a Kafka record that can become columns."""


@value
class KafkaInput:
    """Records of a topic. `schema` is None if the envelope determines the columns."""

    connection: KafkaConnection
    topic: str
    start: str
    max_offsets: int | None
    format: str
    schema: str | None = None
    epoch_unit: str | None = None
    included: tuple[tuple[str, str], ...] = ()
    """Metadata of records that become columns, each with the column's name."""
    avro_schema: str | None = None
    registry: SchemaRegistry | None = None
    unchecked: bool = False
    """Do not test the connection."""


@value
class TableInput:
    """The changes of an Iceberg table. Its columns are those of the table, its key, too, unless one is declared."""

    connection: str
    """The name of the catalog connection."""
    catalog: CatalogConnection
    table: TableName
    start: str
    consumer: str | None
    max_hold_ms: int
    max_rows: int


Input = FilesInput | GeneratorInput | KafkaInput | TableInput


@value
class SourcePlan:
    """A checked source. Without an envelope the input has its own."""

    relation: Relation
    input: Input
    envelope: Envelope | None
