"""Evolves a table to the columns and partitions that its sink needs, and derives the schema that files have.

The columns come from the input, the partitions from the sink's definition. A table property records the last applied
PARTITION BY: a changed definition changes the table, and partitions that others changed meanwhile are left alone.
Another one records the fields whose values the column `_calve_order` has: rows cannot be compared by other fields.

Files are written with the columns of the input, with the ids and types of the table. Columns have the table's names;
nested fields have the input's names, so that values are found when rows are converted to the table's types. Readers use
the ids.
"""

import json
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

from calve.errors import InvalidInput
from calve.iceberg.loading import misfit
from calve.iceberg.schema.creation import partition_spec
from calve.iceberg.schema.fitting import FieldsByName, fit, has_default
from calve.model.spec import PartitionBy

_NEWEST = -1
"""Refers to the schema or spec that the same commit adds."""
_PARTITION_BY, _ORDER_BY = "calve.partition-by.", "calve.order-by."


@dataclass(frozen=True)
class Shape:
    """The columns, partitions and branch that a sink needs."""

    given: Schema
    """The columns of its input, in their order."""
    partition_by: tuple[PartitionBy, ...] | None = None
    """None keeps the table's partitions."""
    evolves: bool = True
    """Whether the table's columns may be changed."""
    branch: str = MAIN_BRANCH
    """The branch it commits to."""
    order: "StoredOrder | None" = None
    """The order that the table stores for each row, if any."""
    format_version: int | None = None
    """The format version of the table; an older one is upgraded. None keeps the table's."""


@dataclass(frozen=True)
class StoredOrder:
    """What the values in the column `_calve_order` are. A new generation replaces all of them."""

    fields: tuple[str, ...]
    generation: int = 0

    def __str__(self) -> str:
        return json.dumps({"generation": self.generation, "fields": self.fields})

    def updates(self, metadata: TableMetadata, sink_id: str) -> tuple[TableUpdate, ...]:
        """The update that records it, if the table does not yet. Raises InvalidInput if it has another order."""
        name = f"{_ORDER_BY}{sink_id}"
        stored = _stored_order(metadata.properties.get(name))
        if stored == self:
            return ()
        if stored is not None and stored.generation >= self.generation:
            raise InvalidInput(
                f"the rows of the table are ordered by {', '.join(stored.fields)}",
                detail=f"The sink now orders by {', '.join(self.fields)}; their values cannot be compared.",
                hint=f"Restore ORDER BY {', '.join(stored.fields)} GLOBAL, or rebuild the table: "
                "ALTER SINK ... SET FROM ... WITH (SNAPSHOT = true).",
            )
        return (SetPropertiesUpdate(updates={name: str(self)}),)


def _stored_order(text: str | None) -> StoredOrder | None:
    """The order that a property records; None if there is none, or it was damaged from outside."""
    try:
        body = json.loads(text or "")
        return StoredOrder(tuple(map(str, body["fields"])), int(body["generation"]))
    except (ValueError, TypeError, KeyError):
        return None


def creation_properties(
    sink_id: str, partition_by: Sequence[PartitionBy], order: StoredOrder | None = None
) -> dict[str, str]:
    """Properties of a table that is created for a sink."""
    partitions = {f"{_PARTITION_BY}{sink_id}": _text(partition_by)} if partition_by else {}
    return partitions | ({f"{_ORDER_BY}{sink_id}": str(order)} if order else {})


def evolution(metadata: TableMetadata, shape: Shape, sink_id: str) -> tuple[TableUpdate, ...]:
    """The updates that the table needs; empty if it needs none. Raises InvalidInput if no update helps."""
    noted = shape.order.updates(metadata, sink_id) if shape.order else ()
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
    return updates + _partition_updates(metadata, found.schema, shape, sink_id) + noted


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
    """A field that an older spec had keeps its id; new fields get unused ids."""
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
    """The table's schema, reduced to the columns of `given`, in their order."""
    fields, known = [], FieldsByName(theirs.fields)
    for ours in given.fields:
        field = known.named(ours.name)
        fields.append(field.model_copy(update={"field_type": _renamed(field.field_type, ours.field_type)}))
    return Schema(*fields, schema_id=theirs.schema_id)


def with_defaults(theirs: Schema, written: Schema) -> Schema:
    """The columns of files: those of rows, and the table's columns with defaults that rows lack.

    Files have these with the write default, or null. In a file without the column, readers see the initial default.
    """
    missing = [field for field in theirs.fields if has_default(field) and field.field_id not in written.field_ids]
    return Schema(*written.fields, *missing, schema_id=written.schema_id) if missing else written


def _renamed(theirs: IcebergType, ours: IcebergType) -> IcebergType:
    match theirs, ours:
        case StructType(), StructType():
            fields, known = [], FieldsByName(theirs.fields)
            for given in ours.fields:
                field = known.named(given.name)
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
