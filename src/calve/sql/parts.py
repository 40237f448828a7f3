# ruff: noqa: ARG002 - all parts of one kind have one signature to print, also those without secrets
"""Parts of statements: origins of secrets, columns, inputs, envelopes, partition fields."""

from enum import StrEnum

from calve.sql.names import Clause, FieldPath, Identifier, Listed, quoted_name, quoted_text
from calve.sql.options import NO_OPTIONS, Options, SecretLiteral
from calve.values import value

# ---- secrets


@value
class FromEnvironment:
    """The value of an environment variable, read when it is used."""

    variable: str

    def to_sql(self, *, reveal: bool = False) -> str:
        return f"FROM ENV {quoted_text(self.variable)}"


@value
class FromFile:
    """The contents of a file, read when it is used."""

    path: str

    def to_sql(self, *, reveal: bool = False) -> str:
        return f"FROM FILE {quoted_text(self.path)}"


@value
class FromLiteral:
    """The value itself."""

    value: SecretLiteral

    def to_sql(self, *, reveal: bool = False) -> str:
        return f"AS {self.value.to_sql(reveal=reveal)}"


SecretOrigin = FromEnvironment | FromFile | FromLiteral

# ---- sources


@value
class ColumnClause:
    """A column of a source. `type` is in Spark's notation, in canonical form (see `grammar/types.py`)."""

    name: Identifier
    type: str
    not_null: bool = False

    def to_sql(self) -> str:
        return f"{self.name.to_sql()} {self.type}" + (" NOT NULL" if self.not_null else "")


@value
class JsonFormat:
    """Records are JSON text."""

    def to_sql(self, *, reveal: bool = False) -> str:
        return "FORMAT JSON"


@value
class AvroFormat:
    """Records are Avro: with the writer's schema, with a schema registry, or neither (the columns are the schema)."""

    schema: str | None = None
    registry: Options | None = None

    def to_sql(self, *, reveal: bool = False) -> str:
        if self.schema is not None:
            return f"FORMAT AVRO USING SCHEMA {quoted_text(self.schema)}"
        if self.registry is not None:
            return f"FORMAT AVRO USING SCHEMA REGISTRY {self.registry.to_sql(reveal=reveal)}"
        return "FORMAT AVRO"


@value
class ProtobufFormat:
    """Records are Protobuf, with their schemas in a registry."""

    registry: Options

    def to_sql(self, *, reveal: bool = False) -> str:
        return f"FORMAT PROTOBUF USING SCHEMA REGISTRY {self.registry.to_sql(reveal=reveal)}"


Format = JsonFormat | AvroFormat | ProtobufFormat


class Metadata(StrEnum):
    """Metadata of a Kafka record."""

    KEY = "KEY"
    TOPIC = "TOPIC"
    PARTITION = "PARTITION"
    OFFSET = "OFFSET"
    TIMESTAMP = "TIMESTAMP"
    HEADERS = "HEADERS"


@value
class Include:
    """A column filled from a record's metadata; its default name is that of the metadata in lower case."""

    metadata: Metadata
    name: Identifier | None = None

    def to_sql(self) -> str:
        return self.metadata.value + (f" AS {self.name.to_sql()}" if self.name else "")


@value
class KafkaClause:
    """Records of a topic."""

    connection: Identifier
    options: Options
    format: Format
    include: tuple[Include, ...] = ()

    def clauses(self, *, reveal: bool) -> list[Clause]:
        head = f"FROM KAFKA CONNECTION {self.connection.to_sql()}"
        found: list[Clause] = [Listed(head, self.options.items(reveal=reveal))]
        found.append(self.format.to_sql(reveal=reveal))
        if self.include:
            found.append("INCLUDE " + ", ".join(item.to_sql() for item in self.include))
        return found


@value
class FilesClause:
    """Files of a folder."""

    options: Options

    def clauses(self, *, reveal: bool) -> list[Clause]:
        return [Listed("FROM FILES", self.options.items(reveal=reveal))]


@value
class GeneratorClause:
    """Rows that calve generates, deterministic for the same options."""

    generator: Identifier
    options: Options = NO_OPTIONS

    def clauses(self, *, reveal: bool) -> list[Clause]:
        head = f"FROM LOAD GENERATOR {self.generator.to_sql()}"
        return [Listed(head, self.options.items(reveal=reveal)) if self.options else head]


@value
class TableClause:
    """The changes of an Iceberg table: `connection.namespace.table`."""

    table: FieldPath
    options: Options = NO_OPTIONS

    def clauses(self, *, reveal: bool) -> list[Clause]:
        head = f"FROM ICEBERG TABLE {self.table.to_sql()}"
        return [Listed(head, self.options.items(reveal=reveal)) if self.options else head]


Input = KafkaClause | FilesClause | GeneratorClause | TableClause

# ---- envelopes


@value
class OrderClause:
    """Determines the latest change of a key: the greatest wins.

    With `across_checkpoints` (GLOBAL) this also detects an older change that arrives in a later checkpoint.
    """

    fields: tuple[FieldPath, ...]
    across_checkpoints: bool = False

    def to_sql(self) -> str:
        return "ORDER BY " + ", ".join(path.to_sql() for path in self.fields) + (" GLOBAL" * self.across_checkpoints)


@value
class NoneEnvelope:
    """Every record is an insert."""

    def to_sql(self) -> str:
        return "ENVELOPE NONE"


@value
class UpsertEnvelope:
    """A record replaces the row with its key. `delete_when` is a verbatim condition in Spark's language."""

    order: OrderClause | None = None
    delete_when: str | None = None

    def to_sql(self) -> str:
        found = [self.order.to_sql()] if self.order else []
        found += [f"DELETE WHEN {self.delete_when}"] if self.delete_when is not None else []
        return "ENVELOPE UPSERT" + (f" ({', '.join(found)})" if found else "")


@value
class DebeziumEnvelope:
    """Records with before, after and op."""

    order: OrderClause | None = None

    def to_sql(self) -> str:
        return "ENVELOPE DEBEZIUM" + (f" ({self.order.to_sql()})" if self.order else "")


@value
class DiffEnvelope:
    """Records with a time and a multiplicity; a record with a progress mark advances the frontier."""

    time: FieldPath
    diff: FieldPath
    progress: FieldPath | None = None

    def to_sql(self) -> str:
        progress = f", PROGRESS {self.progress.to_sql()}" if self.progress else ""
        return f"ENVELOPE DIFF (TIME {self.time.to_sql()}, DIFF {self.diff.to_sql()}{progress})"


Envelope = NoneEnvelope | UpsertEnvelope | DebeziumEnvelope | DiffEnvelope

# ---- sinks


class SinkMode(StrEnum):
    """What a sink does with a change."""

    UPSERT = "UPSERT"
    APPEND = "APPEND"


class Transform(StrEnum):
    """How a partition value is derived from a column."""

    IDENTITY = "identity"
    BUCKET = "bucket"
    TRUNCATE = "truncate"
    YEAR = "year"
    MONTH = "month"
    DAY = "day"
    HOUR = "hour"
    VOID = "void"


@value
class PartitionField:
    """A field of the partition spec. `width` is the number of buckets, or the truncation width."""

    transform: Transform
    column: FieldPath
    width: int | None = None

    def to_sql(self) -> str:
        if self.transform is Transform.IDENTITY:
            return self.column.to_sql()
        width = "" if self.width is None else f"{self.width}, "
        return f"{self.transform.value}({width}{self.column.to_sql()})"


def partition_by(fields: tuple[PartitionField, ...]) -> str:
    """The clause PARTITION BY."""
    return "PARTITION BY (" + ", ".join(item.to_sql() for item in fields) + ")"


@value
class IcebergTarget:
    """The table that a sink writes; `aws` has the credentials of its store if they differ from the catalog's."""

    catalog: Identifier
    namespace: tuple[str, ...]
    table: str
    aws: Identifier | None = None

    def clauses(self) -> list[str]:
        # The word CONNECTION is optional, unless the connection itself is named so.
        word = "CONNECTION " if self.catalog.to_sql().upper() == "CONNECTION" else ""
        found = [f"TO ICEBERG CATALOG {word}{self.catalog.to_sql()}"]
        if self.aws:
            found.append(f"USING AWS CONNECTION {self.aws.to_sql()}")
        found.append(f"NAMESPACE {quoted_name('.'.join(self.namespace))} TABLE {quoted_name(self.table)}")
        return found
