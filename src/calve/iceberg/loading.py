"""Loads the table of a sink, or creates it; inspects a table before a new sink writes to it.

calve needs format version 2 or 3 and an unpartitioned spec: equality deletes in that spec apply to every partition. An
existing table keeps its schema, its properties and its default spec.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortDirection, SortField, SortOrder
from pyiceberg.table.update import AddPartitionSpecUpdate, AssertTableUUID
from pyiceberg.transforms import IdentityTransform, UnknownTransform, VoidTransform
from pyiceberg.types import UUIDType
from sqlalchemy.exc import IntegrityError

from calve.catalog.failures import loading
from calve.catalog.guarded import new_location
from calve.catalog.outcome import TableChange, send
from calve.errors import InvalidInput
from calve.iceberg.schema.fitting import as_known, field_named, fit
from calve.iceberg.schema.readable import schema_with
from calve.iceberg.snapshot.history import has_data, head_of
from calve.model.progress import Progress, property_key, sinks_named
from calve.model.spec import LATEST_FORMAT, TableName
from calve.suggest import suggestion

FORMAT_VERSIONS = (2, 3)
NEW_VERSION = FORMAT_VERSIONS[0]
"""The format version of a new table."""

_LINEAGE_COLUMNS = ("_row_id", "_last_updated_sequence_number")

PROPERTIES: Mapping[str, str] = {
    "format-version": str(NEW_VERSION),
    "write.format.default": "parquet",
    "write.parquet.compression-codec": "zstd",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Properties of a new table; the caller's properties take precedence."""


def load_or_create_table(  # noqa: PLR0913 - all but the first four are options by name
    catalog: Catalog,
    name: TableName,
    schema: Schema,
    key: Sequence[str],
    properties: Mapping[str, str] | None = None,
    *,
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    known_to: str | None = None,
    evolves: bool = False,
    format_version: int | None = None,
    upgrades: bool = False,
) -> Table:
    """Load the table `name`, or create it with `schema`. Safe while other processes do the same.

    With `format_version`, the table must have it. With `upgrades`, a table that holds the progress of the sink
    `known_to` may also have an older one. Without a version, a new table gets `NEW_VERSION`.

    Raises InvalidInput when the table exists and cannot take rows of `schema` identified by `key`, or when its
    partitions differ from those of `spec`, if `spec` has any. A table that holds the progress of the sink `known_to`
    may have different partitions and, if it `evolves`, different columns, as long as the table can be changed to match
    (`iceberg/schema/evolution.py`).
    """
    with loading(f'loading table "{name}"'):
        try:
            table = catalog.load_table(name.identifier)
        except NoSuchTableError:
            _check_lineage_columns(schema, name, format_version or NEW_VERSION)
            version = {} if format_version is None else {"format-version": str(format_version)}
            table = _create(catalog, name, schema, spec, {**PROPERTIES, **(properties or {}), **version})
    known = known_to is not None and property_key(known_to) in table.properties
    check_format(table, format_version, name, known_to if upgrades else None)
    _check_lineage_columns(schema, name, max(table.format_version, format_version or NEW_VERSION))
    _check(table, name, schema, key, evolves=evolves and known)
    _check_partitions(table, name, schema, spec, evolves=known)
    return _with_unpartitioned_spec(table, name)


LoadedTable = Table
"""A loaded table, for those that pass it on without looking inside."""


def load_table_or_none(catalog: Catalog, name: TableName) -> Table | None:
    """Load the table `name`; None if it does not exist."""
    with loading(f'loading table "{name}"'):
        try:
            return catalog.load_table(name.identifier)
        except NoSuchTableError:
            return None


def load_table(catalog: Catalog, name: TableName) -> Table:
    """Load the table `name`. Raises InvalidInput, which suggests a similar name, if it does not exist."""
    with loading(f'loading table "{name}"'):
        try:
            return catalog.load_table(name.identifier)
        except NoSuchTableError as error:
            raise InvalidInput(
                f'table "{name}" does not exist',
                hint=suggestion(str(name), _similar(catalog, name)) or "A sink creates the table that it writes to.",
            ) from error


def planned_location(catalog: Catalog, name: TableName) -> str | None:
    """The location of a table, or where it would be created; None if only the catalog decides that."""
    with loading(f'loading table "{name}"'):
        try:
            return catalog.load_table(name.identifier).location()
        except NoSuchTableError:
            return new_location(catalog, name.identifier)


def _similar(catalog: Catalog, name: TableName) -> list[str]:
    """Tables of the namespace, or of all namespaces if it does not exist."""
    try:
        return [".".join(found) for found in catalog.list_tables(name.namespace)]
    except NoSuchNamespaceError:
        return [".".join(found) for level in catalog.list_namespaces() for found in catalog.list_tables(level)]


def unpartitioned_spec_id(table: Table) -> int | None:
    """The id of the spec without fields, which equality deletes use."""
    return next((spec_id for spec_id, spec in table.specs().items() if spec.is_unpartitioned()), None)


def _create(
    catalog: Catalog, name: TableName, schema: Schema, spec: PartitionSpec, properties: Mapping[str, str]
) -> Table:
    for level in range(1, len(name.namespace) + 1):
        try:
            catalog.create_namespace(name.namespace[:level])
        except (NamespaceAlreadyExistsError, IntegrityError):  # IntegrityError: another process was faster
            continue
    try:
        return catalog.create_table(
            name.identifier, schema, partition_spec=spec, sort_order=_sorted_by_key(schema), properties=dict(properties)
        )
    except TableAlreadyExistsError:
        return catalog.load_table(name.identifier)


def _sorted_by_key(schema: Schema) -> SortOrder:
    """Rows within a file are sorted by key; this tells other writers to do the same."""
    fields = [SortField(number, IdentityTransform(), SortDirection.ASC) for number in schema.identifier_field_ids]
    return SortOrder(*fields) if fields else UNSORTED_SORT_ORDER


def _with_unpartitioned_spec(table: Table, name: TableName) -> Table:
    if unpartitioned_spec_id(table) is not None:
        return table
    spec = PartitionSpec(spec_id=max(table.specs()) + 1)
    requirements = (AssertTableUUID(uuid=table.metadata.table_uuid),)
    updates = (AddPartitionSpecUpdate(spec=spec),)
    change = TableChange(table, requirements, updates, done=lambda now: unpartitioned_spec_id(now) is not None)
    send(change, f'adding a spec for deletes to "{name}"')
    with loading(f'loading table "{name}"'):
        return table.catalog.load_table(name.identifier)


def check_format(table: Table, wanted: int | None, name: TableName, sink_id: str | None) -> None:
    """Check that a table has the format version that a sink needs, or can be upgraded to it. Raises InvalidInput.

    Only the sink `sink_id` upgrades a table, and only if it has written to it.
    """
    version = table.format_version
    if version not in FORMAT_VERSIONS:
        raise InvalidInput(
            f'table "{name}" has an unsupported format version', detail=f"Got {version}, expected 2 or 3."
        )
    if wanted is None or version == wanted:
        return
    if version > wanted:
        raise InvalidInput(
            f'table "{name}" has a later format version',
            detail=f"It has version {version}, the sink needs {wanted}; tables cannot be downgraded.",
            hint="Leave out FORMAT VERSION and READERS to write to the table as it is, or write to another table.",
        )
    if sink_id is None or property_key(sink_id) not in table.properties:
        raise InvalidInput(
            f'table "{name}" has another format version',
            detail=f"It has version {version}, the sink needs {wanted}.",
            hint="Leave out FORMAT VERSION and READERS to write to the table as it is. A sink that has written to it "
            f"upgrades it: ALTER SINK ... SET (FORMAT VERSION = {wanted}).",
        )
    check_upgradable(table.metadata, str(name))


def check_upgradable(metadata: TableMetadata, name: str) -> None:
    """Check that the columns of a table allow format version 3. Raises InvalidInput."""
    taken = reserved_columns(metadata)
    if taken:
        raise InvalidInput(
            f'table "{name}" cannot be upgraded to format version 3',
            detail=f'Its column "{taken[0]}" has a name that version 3 uses for the ids of rows.',
            hint="Rename or drop the column first.",
        )


def check_adoptable(table: Table, name: TableName, sink_id: str) -> None:
    """Check whether a sink that has not claimed the table yet can adopt its rows. Raises InvalidInput."""
    taken = reserved_columns(table.metadata) if table.format_version >= LATEST_FORMAT else []
    if taken and property_key(sink_id) not in table.properties:
        raise InvalidInput(
            f'table "{name}" cannot be adopted',
            detail=f'It has format version 3, which uses the name of its column "{taken[0]}" for the ids of rows.',
            hint="Rename or drop the column first.",
        )


def reserved_columns(metadata: TableMetadata) -> list[str]:
    """The columns of a table whose names format version 3 reserves; other tools may upgrade a table that has some."""
    return [field.name for field in metadata.schema().fields if field.name.lower() in _LINEAGE_COLUMNS]


def _check_lineage_columns(schema: Schema, name: TableName, version: int) -> None:
    taken = [f.name for f in schema.fields if f.name.lower() in _LINEAGE_COLUMNS]
    if taken and version >= LATEST_FORMAT:
        raise InvalidInput(
            f'column name "{taken[0]}" is reserved',
            detail=f'Tables of format version 3, like "{name}", have a column of this name for the ids of rows.',
            hint="Rename the column.",
        )


def _check(table: Table, name: TableName, schema: Schema, key: Sequence[str], *, evolves: bool) -> None:
    found = fit(table.metadata, schema)
    if found.differences and not (evolves and found.mendable):
        raise misfit(str(name), found.text)
    schema_with(table.schema())
    theirs = as_known(table.metadata, schema)
    identifiers = theirs.identifier_field_names()
    if identifiers and identifiers != {field_named(theirs.fields, name).name for name in key}:
        raise InvalidInput(
            f'table "{name}" has a different key',
            detail=f"Got key ({', '.join(key)}), expected the identifier fields ({', '.join(sorted(identifiers))}).",
        )


def check_found_by_all(table: Table, key: Sequence[str]) -> None:
    """Check that other engines can apply equality deletes with this key. Raises InvalidInput."""
    for column in key:
        if isinstance(field_named(table.schema().fields, column).field_type, UUIDType):
            raise InvalidInput(
                f'column "{column}" cannot be a key with equality deletes',
                detail="It is a uuid in the table; Spark's Iceberg runtime cannot match uuids in equality deletes.",
                hint="Use DELETES = 'position', or declare it as STRING.",
            )


def misfit(name: str, differences: str) -> InvalidInput:
    """The error for a table that cannot take the rows of an input."""
    return InvalidInput(
        f'table "{name}" does not fit the input',
        detail=differences,
        hint="Change the input's columns, or write to another table.",
    )


def _check_partitions(table: Table, name: TableName, schema: Schema, spec: PartitionSpec, *, evolves: bool) -> None:
    """Check that the table has the partitions that the sink asks for, and only transforms that calve can compute."""
    for field in table.spec().fields:
        if isinstance(field.transform, UnknownTransform):
            raise InvalidInput(
                f'table "{name}" uses an unknown partition transform',
                detail=f'Partition field "{field.name}" has the transform {field.transform}.',
            )
    wanted, found = _fields_of(schema, spec), _fields_of(as_known(table.metadata, schema), table.spec())
    if wanted and not evolves and [text.lower() for text in wanted] != [text.lower() for text in found]:
        raise InvalidInput(
            f'table "{name}" is partitioned differently',
            detail=f"Got {', '.join(wanted)}, expected {', '.join(found) or 'no partitions'}.",
            hint="Leave out PARTITION BY to write to the table as it is, or write to another table.",
        )


def _fields_of(schema: Schema, spec: PartitionSpec) -> list[str]:
    """The fields of a spec, as text, without void fields: format version 1 leaves one for each dropped field."""
    kept = [field for field in spec.fields if not isinstance(field.transform, VoidTransform)]
    return [f"{field.transform} of {schema.find_column_name(field.source_id)}" for field in kept]


def sinks_of_table(catalog: Catalog, name: TableName) -> dict[str, Progress]:
    """The progress of the sinks that are not retired, by their ids; empty if the table does not exist."""
    with loading(f'loading table "{name}"'):
        try:
            properties = catalog.load_table(name.identifier).properties
        except NoSuchTableError:
            return {}
    stated = {sink_id: properties[property_key(sink_id)] for sink_id in sinks_named(properties)}
    found = {sink_id: Progress.from_property(text) for sink_id, text in stated.items()}
    return {sink_id: progress for sink_id, progress in found.items() if not progress.fence.retired}


@dataclass(frozen=True)
class Occupied:
    """An existing table, seen from one of its branches."""

    written: bool
    """Whether the branch has a snapshot, or will start at a snapshot of main."""
    rows: bool
    """False only if the branch certainly has no rows."""

    @classmethod
    def of(cls, table: Table, branch: str) -> Self:
        """Look at a branch of a loaded table."""
        head = head_of(table.metadata, branch)
        return cls(head is not None, has_data(head))
