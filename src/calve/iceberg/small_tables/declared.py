"""Tables whose columns are declared by name and kind, partitioned by the values of some of them.

A declared table is created if it is missing, and altered to match its declaration and configuration.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DoubleType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
)
from sqlalchemy.exc import IntegrityError

from calve.catalog.embedded import EmbeddedCatalog
from calve.catalog.failures import trying
from calve.catalog.outcome import TableChange, send
from calve.errors import CommitConflict, CommitUnknown, InvalidInput, TransientError
from calve.retry import retry_on


class Plain(StrEnum):
    """Kinds of single values."""

    TEXT = "string"
    WHOLE = "long"
    FRACTION = "double"
    BOOLEAN = "boolean"


@dataclass(frozen=True)
class ListOf:
    """A list of plain values."""

    element: Plain

    def __str__(self) -> str:
        return f"list<{self.element}>"


@dataclass(frozen=True)
class MapOf:
    """Plain values by string key."""

    value: Plain

    def __str__(self) -> str:
        return f"map<{Plain.TEXT}, {self.value}>"


Kind = Plain | ListOf | MapOf

_TYPES: dict[Plain, PrimitiveType] = {
    Plain.TEXT: StringType(),
    Plain.WHOLE: LongType(),
    Plain.FRACTION: DoubleType(),
    Plain.BOOLEAN: BooleanType(),
}


@dataclass(frozen=True)
class DeclaredColumn:
    """A column. Partition keys have a value in every row."""

    name: str
    kind: Kind
    partition_key: bool = False


def declared_schema(columns: Sequence[DeclaredColumn]) -> Schema:
    """The schema, with fresh field ids in the order in which catalogs assign them."""
    ids = count(1)
    fields = []
    for column in columns:
        field_id, kind = next(ids), column.kind
        iceberg: IcebergType
        if isinstance(kind, ListOf):
            iceberg = ListType(next(ids), _TYPES[kind.element], element_required=False)
        elif isinstance(kind, MapOf):
            iceberg = MapType(next(ids), StringType(), next(ids), _TYPES[kind.value], value_required=False)
        else:
            iceberg = _TYPES[kind]
        fields.append(NestedField(field_id, column.name, iceberg, required=column.partition_key))
    return assign_fresh_schema_ids(Schema(*fields))


def declared_spec(schema: Schema, columns: Sequence[DeclaredColumn]) -> PartitionSpec:
    """Partitions by the values of the partition keys, in their order."""
    keys = [column.name for column in columns if column.partition_key]
    return PartitionSpec(
        *[
            PartitionField(
                source_id=schema.find_field(name).field_id,
                field_id=PARTITION_FIELD_ID_START + number,
                transform=IdentityTransform(),
                name=name,
            )
            for number, name in enumerate(keys)
        ]
    )


ATTEMPTS = 10
LOADS = 50
"""The number of attempts to load a table; one fails if the metadata file was replaced and removed meanwhile."""
FORMAT_VERSION = "2"
_FORMAT = "format-version"


@dataclass(frozen=True)
class Declaration:
    """What a table must look like."""

    identifier: tuple[str, ...]
    location: str
    columns: tuple[DeclaredColumn, ...]
    properties: Mapping[str, str]

    @property
    def label(self) -> str:
        """The name of the table in messages."""
        return ".".join(self.identifier)


def open_declared(catalog: Catalog, declaration: Declaration) -> Table:
    """Load, create or alter the table of a declaration. Safe while other processes do the same.

    Raises InvalidInput if the existing table is a different one, or was created by a newer calve.
    """

    def attempt() -> Table:
        table = load_or_create(catalog, declaration)
        _check(table, declaration)
        updates = _updates(table, declaration)
        if not updates:
            return table
        needed: tuple[TableRequirement, ...] = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertCurrentSchemaId.model_validate({"current-schema-id": table.metadata.current_schema_id}),
        )
        change = TableChange(table, needed, updates, done=lambda now: not _updates(now, declaration))
        send(change, f'the change of properties of "{declaration.label}"')
        return load_or_create(catalog, declaration)

    # the reloaded table shows what remains to do
    return retry_on((CommitConflict, CommitUnknown), ATTEMPTS, attempt)


def load_or_create(catalog: Catalog, declaration: Declaration) -> Table:
    """Load the table, or create it. Raises TransientError."""
    with trying(f'loading table "{declaration.label}"'):
        try:  # a newer metadata file may have replaced the one that is missing
            return retry_on(FileNotFoundError, LOADS, lambda: catalog.load_table(declaration.identifier))
        except NoSuchTableError:
            return _create(catalog, declaration)


def load_declared(catalog: Catalog, declarations: Sequence[Declaration]) -> list[Table]:
    """Load the tables, all at one moment if the catalog can do that. Raises TransientError."""
    if not isinstance(catalog, EmbeddedCatalog):
        return [load_or_create(catalog, one) for one in declarations]
    with trying(f"loading tables {', '.join(one.label for one in declarations)}"):
        for _ in range(LOADS):
            try:
                return catalog.load_tables([one.identifier for one in declarations])
            except (FileNotFoundError, NoSuchTableError):
                for one in declarations:
                    load_or_create(catalog, one)
    raise TransientError(
        f"loading table {declarations[0].label} failed", detail="Other writers kept changing it.", hint="Try again."
    )


def _create(catalog: Catalog, declaration: Declaration) -> Table:
    namespace = declaration.identifier[:-1]
    for level in range(1, len(namespace) + 1):
        try:
            catalog.create_namespace(namespace[:level])
        except (NamespaceAlreadyExistsError, IntegrityError):  # IntegrityError: another process was faster
            continue
    schema = declared_schema(declaration.columns)
    try:
        return catalog.create_table(
            declaration.identifier,
            schema,
            location=declaration.location,
            partition_spec=declared_spec(schema, declaration.columns),
            properties={_FORMAT: FORMAT_VERSION, **declaration.properties},
        )
    except TableAlreadyExistsError:
        return catalog.load_table(declaration.identifier)


def _check(table: Table, declaration: Declaration) -> None:
    if _plain(table.location()) != _plain(declaration.location):
        raise InvalidInput(
            f'table "{declaration.label}" is at another location',
            detail=f"Got {table.location()}; the configuration says {declaration.location}.",
            hint="Restore the configured location, or use another catalog or namespace.",
        )
    wanted = declared_schema(declaration.columns)
    there = {field.name: field for field in table.schema().fields}
    unknown = sorted(set(there) - set(wanted.column_names))
    if unknown:
        raise InvalidInput(
            f'table "{declaration.label}" was written by a newer calve',
            detail=f"This calve does not know its columns {', '.join(unknown)}.",
            hint="Upgrade calve.",
        )
    keys = [c.name for c in declaration.columns if c.partition_key]
    fields = [table.schema().find_column_name(field.source_id) for field in table.spec().fields]
    kinds = [f.name for f in wanted.fields if f.name in there and str(there[f.name].field_type) != str(f.field_type)]
    if keys != fields or kinds:
        raise InvalidInput(
            f'table "{declaration.label}" has a different schema',
            detail=f"It is partitioned by {', '.join(map(str, fields))}, expected {', '.join(keys)}; "
            f"columns with a different type: {', '.join(kinds) or 'none'}.",
        )


def _updates(table: Table, declaration: Declaration) -> tuple[TableUpdate, ...]:
    current, wanted = table.metadata.properties, declaration.properties
    updates: list[TableUpdate] = []
    changed = {name: value for name, value in wanted.items() if current.get(name) != value and name != _FORMAT}
    if changed:
        updates.append(SetPropertiesUpdate(updates=changed))
    removed = sorted(set(current) - set(wanted))
    if removed:
        updates.append(RemovePropertiesUpdate(removals=removed))
    return (*updates, *_new_columns(table, declaration.columns))


def _new_columns(table: Table, columns: Sequence[DeclaredColumn]) -> tuple[TableUpdate, ...]:
    """Add columns that an older calve did not have; existing rows are null there."""
    schema = table.schema()
    missing = [column for column in columns if column.name not in schema.column_names]
    if not missing:
        return ()
    last = table.metadata.last_column_id
    fresh = declared_schema(missing)
    fields = [_shift(field, last) for field in json.loads(fresh.model_dump_json())["fields"]]
    grown = Schema.model_validate(
        {
            "type": "struct",
            "schema-id": max(one.schema_id for one in table.metadata.schemas) + 1,
            "fields": [*json.loads(schema.model_dump_json())["fields"], *fields],
        }
    )
    return (
        AddSchemaUpdate.model_validate({"schema": grown}),
        SetCurrentSchemaUpdate.model_validate({"schema-id": -1}),
    )


def _shift(value: object, by: int) -> object:
    """A type as JSON, with all its ids shifted."""
    if isinstance(value, dict):
        ids = {"id", "element-id", "key-id", "value-id"}
        return {k: v + by if k in ids and isinstance(v, int) else _shift(v, by) for k, v in value.items()}
    return [_shift(one, by) for one in value] if isinstance(value, list) else value


def _plain(location: str) -> str:
    return location.removeprefix("file://").rstrip("/")
