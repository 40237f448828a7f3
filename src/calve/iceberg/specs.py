"""What a sink says of partitions -> a partition spec of a schema. Mistakes are told before a table is made."""

from collections.abc import Sequence

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import Transform, parse_transform
from pyiceberg.types import NestedField, StructType

from calve.errors import InvalidInput
from calve.model.partitioning import PartitionBy

_SUFFIXES = {"bucket": "_bucket", "truncate": "_trunc", "void": "_null", "identity": ""}
_TIMES = frozenset({"year", "month", "day", "hour"})


def partition_spec(schema: Schema, fields: Sequence[PartitionBy]) -> PartitionSpec:
    """The spec of a new table. Raises InvalidInput that names the field and the column's type."""
    found: list[PartitionField] = []
    units: dict[int, PartitionBy] = {}
    for wanted in fields:
        source, name = _source(schema, wanted)
        transform = _transform(wanted, source)
        if any(f.source_id == source.field_id and f.transform == transform for f in found):
            raise InvalidInput(f"partition field {wanted} is there twice", hint="Leave one of them out.")
        if wanted.transform in _TIMES and (other := units.setdefault(source.field_id, wanted)) is not wanted:
            raise InvalidInput(
                f"partition fields {other} and {wanted} are redundant",
                detail="Each hour is in one day, each day in one month, each month in one year.",
                hint="Keep the finer one.",
            )
        field_id = PARTITION_FIELD_ID_START + len(found)
        found.append(PartitionField(source.field_id, field_id, transform, _name(schema, found, wanted, name)))
    return PartitionSpec(*found)


def _source(schema: Schema, wanted: PartitionBy) -> tuple[NestedField, str]:
    """The field, and its name with all levels."""
    fields, path = schema.fields, ""
    for depth, part in enumerate(wanted.column, 1):
        field = next((f for f in fields if f.name == part), None) or _without_case(fields, part)
        if field is None:
            raise InvalidInput(
                f'there is no column "{path}{part}" to partition by',
                detail=f"Columns are {', '.join(f'{path}{f.name}' for f in fields)}." if fields else "",
            )
        path += field.name
        if depth == len(wanted.column):
            return field, path
        fields = field.field_type.fields if isinstance(field.field_type, StructType) else ()
        path += "."
    raise InvalidInput("a partition field names no column")


def _without_case(fields: Sequence[NestedField], name: str) -> NestedField | None:
    found = [f for f in fields if f.name.lower() == name.lower()]
    return found[0] if len(found) == 1 else None


def _transform(wanted: PartitionBy, source: NestedField) -> Transform[object, object]:
    width = "" if wanted.width is None else f"[{wanted.width}]"
    transform = parse_transform(f"{wanted.transform}{width}")
    if not source.field_type.is_primitive or not transform.can_transform(source.field_type):
        raise InvalidInput(
            f"the table cannot be partitioned by {wanted}",
            detail=f'Column "{".".join(wanted.column)}" has type {source.field_type}.',
        )
    return transform


def _name(schema: Schema, before: Sequence[PartitionField], wanted: PartitionBy, column: str) -> str:
    """As other engines name it, unless a column or another field has that name."""
    if wanted.transform == "identity":
        return column
    plain = column + _SUFFIXES.get(wanted.transform, f"_{wanted.transform}")
    taken = {name.lower() for name in schema.column_names} | {field.name.lower() for field in before}
    names = [plain, f"{plain}_{wanted.width}" if wanted.width else plain]
    numbered = (f"{plain}_{number}" for number in range(2, len(taken) + 4))
    return next(name for name in (*names, *numbered) if name.lower() not in taken)
