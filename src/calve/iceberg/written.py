"""The schema that files are written with: the columns of the input with ids and types of the table.

Columns have the table's names. Fields inside of them have the input's, so that values are found when rows are turned
into the table's types; readers go by the ids.
"""

from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from calve.catalog.fields import field_named


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
