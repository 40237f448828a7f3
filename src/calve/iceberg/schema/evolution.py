"""What a sink asks of its table beyond rows, columns and partitions, and the changes that give it to the sink.

Columns are those of the input. Partitions are those that the sink's definition names; which of its namings was applied
last stands in a table property. So a definition that changed changes the table, and partitions that others changed
meanwhile stay as they are.

The schema that files are written with: the columns of the input with ids and types of the table.

Columns have the table's names. Fields inside of them have the input's, so that values are found when rows are turned
into the table's types; readers go by the ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from calve.iceberg.loading import misfit
from calve.iceberg.schema.creation import partition_spec
from calve.iceberg.schema.fitting import field_named, fit
from calve.model.spec import PartitionBy

_NEWEST = -1
"""Stands for the schema or the spec that the same commit adds."""
_PARTITION_BY = "calve.partition-by."


@dataclass(frozen=True)
class Shape:
    """What a sink asks for."""

    given: Schema
    """The columns of its input, in their order."""
    partition_by: tuple[PartitionBy, ...] | None = None
    """None: whatever the table has."""
    evolves: bool = True
    """Whether columns of the table may be changed."""
    branch: str = MAIN_BRANCH
    """Where its commits go."""


def creation_properties(sink_id: str, partition_by: Sequence[PartitionBy]) -> dict[str, str]:
    """Properties of a table that is made for a sink."""
    return {f"{_PARTITION_BY}{sink_id}": _text(partition_by)} if partition_by else {}


def evolution(metadata: TableMetadata, shape: Shape, sink_id: str) -> tuple[TableUpdate, ...]:
    """The changes that a table needs; none when it has all. Raises InvalidInput when no change helps."""
    found = fit(metadata, shape.given)
    if found.differences and not (found.mendable and shape.evolves):
        raise misfit("the table", found.text)
    updates: tuple[TableUpdate, ...] = ()
    if found.differences:
        schema = found.schema.model_copy(update={"schema_id": max(s.schema_id for s in metadata.schemas) + 1})
        updates = (
            AddSchemaUpdate.model_validate({"schema": schema}),
            SetCurrentSchemaUpdate.model_validate({"schema-id": _NEWEST}),
        )
    return updates + _partition_updates(metadata, found.schema, shape, sink_id)


def _partition_updates(metadata: TableMetadata, schema: Schema, shape: Shape, sink_id: str) -> tuple[TableUpdate, ...]:
    wanted, name = shape.partition_by, f"{_PARTITION_BY}{sink_id}"
    if wanted is None or metadata.properties.get(name) == _text(wanted):
        return ()
    spec = _with_known_ids(metadata, partition_spec(schema, wanted))
    if spec.fields == tuple(f for f in metadata.spec().fields if not isinstance(f.transform, VoidTransform)):
        return ()
    known = next((s.spec_id for s in metadata.partition_specs if s.fields == spec.fields), None)
    noted = SetPropertiesUpdate(updates={name: _text(wanted)})
    if known is not None:
        return SetDefaultSpecUpdate.model_validate({"spec-id": known}), noted
    return (
        AddPartitionSpecUpdate.model_validate({"spec": spec}),
        SetDefaultSpecUpdate.model_validate({"spec-id": _NEWEST}),
        noted,
    )


def _with_known_ids(metadata: TableMetadata, spec: PartitionSpec) -> PartitionSpec:
    """A field that an older spec had keeps its id; new ones get ids that nobody had."""
    known = {(f.source_id, str(f.transform)): f for s in metadata.partition_specs for f in s.fields}
    last = metadata.last_partition_id or 0
    fields = []
    for field in spec.fields:
        former = known.get((field.source_id, str(field.transform)))
        if former is None:
            last += 1
            former = PartitionField(field.source_id, last, field.transform, field.name)
        fields.append(former)
    return PartitionSpec(*fields, spec_id=max(s.spec_id for s in metadata.partition_specs) + 1)


def _text(fields: Sequence[PartitionBy]) -> str:
    return ", ".join(map(str, fields))


def written_schema(theirs: Schema, given: Schema) -> Schema:
    """The table's schema, of the columns that are given, in their order."""
    fields = []
    for ours in given.fields:
        field = field_named(theirs.fields, ours.name)
        fields.append(field.model_copy(update={"field_type": _renamed(field.field_type, ours.field_type)}))
    return Schema(*fields, schema_id=theirs.schema_id)


def _renamed(theirs: IcebergType, ours: IcebergType) -> IcebergType:
    match theirs, ours:
        case StructType(), StructType():
            fields = []
            for given in ours.fields:
                field = field_named(theirs.fields, given.name)
                kind = _renamed(field.field_type, given.field_type)
                fields.append(field.model_copy(update={"name": given.name, "field_type": kind}))
            return StructType(*fields)
        case ListType(), ListType():
            element = _renamed(theirs.element_type, ours.element_type)
            return ListType(theirs.element_id, element, element_required=theirs.element_required)
        case MapType(), MapType():
            key, value = _renamed(theirs.key_type, ours.key_type), _renamed(theirs.value_type, ours.value_type)
            return MapType(theirs.key_id, key, theirs.value_id, value, value_required=theirs.value_required)
        case _:
            return theirs
