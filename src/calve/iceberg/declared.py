"""Tables whose columns are declared by name and kind, partitioned by the values of some of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
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
    """Plain values by text."""

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
    """The schema with fresh field ids in the order in which a catalog assigns them."""
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
