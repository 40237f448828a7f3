"""Compares the columns of an input with those of a table, and derives the schema that the table needs.

Columns are matched by name: exactly, else ignoring case if that is unambiguous; a column that was renamed in the table
is also found by its former name. Changes that Iceberg allows (a new column, a wider type, a column that is no longer
required) resolve a difference; all other differences need a person. Nothing is ever dropped: a column that the input
lacks has its write default in new rows, else null; a nested field with a default must be in the input. Keys are never
widened: DuckDB fails on equality deletes that were written with the narrower type.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import count

from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

from calve.errors import InvalidInput
from calve.model.files import ColumnNeeds


class FieldsByName:
    """Fields that are found by their names; tables may have thousands."""

    def __init__(self, fields: Iterable[NestedField]) -> None:
        self._exact: dict[str, NestedField] = {}
        self._ignoring_case: dict[str, list[NestedField]] = {}
        for field in fields:
            self._exact.setdefault(field.name, field)
            self._ignoring_case.setdefault(field.name.lower(), []).append(field)

    def find(self, name: str) -> NestedField | None:
        """The exact match, else the only one that matches ignoring case; None if there is none."""
        found = self._ignoring_case.get(name.lower(), [])
        return self._exact.get(name) or (found[0] if len(found) == 1 else None)

    def named(self, name: str) -> NestedField:
        """As `find`, but raises InvalidInput if there is none."""
        found = self.find(name)
        if found is None:
            names = [field.name for fields in self._ignoring_case.values() for field in fields]
            raise InvalidInput(f'the table has no column "{name}"', detail=f"Its columns are {', '.join(names)}.")
        return found


def field_named(fields: Sequence[NestedField], name: str) -> NestedField:
    """The field of this name, as `FieldsByName` finds it. Raises InvalidInput if there is none."""
    return FieldsByName(fields).named(name)


@dataclass(frozen=True)
class ColumnMismatch:
    """One column that does not fit, described; `mendable` if a change of the table resolves it."""

    text: str
    mendable: bool


@dataclass(frozen=True)
class Fit:
    """The outcome of a comparison. `schema` is the table's schema with all mendable differences resolved."""

    schema: Schema
    differences: tuple[ColumnMismatch, ...]

    @property
    def mendable(self) -> bool:
        """Whether a change of the table resolves all differences."""
        return all(difference.mendable for difference in self.differences)

    @property
    def text(self) -> str:
        """All differences, as the detail of an error."""
        return "; ".join(difference.text for difference in self.differences) + "."


def fit(metadata: TableMetadata, given: Schema) -> Fit:
    """Compare the columns of an input with the table's."""
    current = metadata.schema()
    key = {given.find_field(number).name for number in given.identifier_field_ids}
    walk = _Walk(metadata.last_column_id, key)
    found = walk.struct(as_known(metadata, given).as_struct(), given.as_struct(), "")
    names = {field.field_id: field.name for field in current.fields}
    fields = [field.model_copy(update={"name": names.get(field.field_id, field.name)}) for field in found.fields]
    mended = Schema(*fields, schema_id=current.schema_id, identifier_field_ids=current.identifier_field_ids)
    return Fit(mended, tuple(walk.differences))


def as_known(metadata: TableMetadata, given: Schema) -> Schema:
    """The table's schema, where renamed columns have the names that the input still uses for them."""
    current = metadata.schema()
    by_id = {field.field_id: field for field in current.fields}
    older = sorted((s for s in metadata.schemas if s.schema_id != current.schema_id), key=lambda s: -s.schema_id)
    known, formerly = FieldsByName(current.fields), [FieldsByName(schema.fields) for schema in older]
    taken = {match.field_id for ours in given.fields if (match := known.find(ours.name))}
    names: dict[int, str] = {}
    for ours in given.fields:
        if known.find(ours.name) is not None:
            continue
        former = _ids(fields.find(ours.name) for fields in formerly)
        found = next((i for i in former if i in by_id and i not in taken), None)
        if found is not None:
            taken.add(found)
            names[found] = ours.name
    fields = [f.model_copy(update={"name": names.get(f.field_id, f.name)}) for f in current.fields]
    return Schema(*fields, schema_id=current.schema_id, identifier_field_ids=current.identifier_field_ids)


def needs_of(metadata: TableMetadata, given: Schema) -> ColumnNeeds:
    """What the table requires of an input that fits it and that the input does not guarantee."""
    theirs = FieldsByName(as_known(metadata, given).fields)
    pairs = [(ours, match) for ours in given.fields if (match := theirs.find(ours.name))]
    return ColumnNeeds(
        required=frozenset(ours.name for ours, match in pairs if match.required and not ours.required),
        uuids=frozenset(
            ours.name
            for ours, match in pairs
            if isinstance(match.field_type, UUIDType) and isinstance(ours.field_type, StringType)
        ),
    )


def has_default(field: NestedField) -> bool:
    """Whether readers or writers have to fill in a value where this field is missing."""
    return field.initial_default is not None or field.write_default is not None


def _ids(fields: Iterable[NestedField | None]) -> list[int]:
    return [field.field_id for field in fields if field is not None]


class _Walk:
    """Walks both schemas in parallel and collects `differences`."""

    def __init__(self, last_id: int, key: AbstractSet[str]) -> None:
        self.differences: list[ColumnMismatch] = []
        self._key = key
        self._ids = count(last_id + 1)

    def struct(self, theirs: StructType, ours: StructType, path: str) -> StructType:
        kept: dict[int, NestedField] = {}
        added: list[NestedField] = []
        known = FieldsByName(theirs.fields)
        for field in ours.fields:
            column = f"{path}{field.name}"
            match = known.find(field.name)
            if match is None:
                self._differs(f'column "{column}": got {field.field_type}, expected none', mendable=True)
                added.append(self._new(field))
            elif match.field_id in kept:
                self._differs(
                    f'column "{column}": another column also matches column "{path}{match.name}" of the table'
                )
            else:
                kind = self._type(match.field_type, field.field_type, column)
                kept[match.field_id] = match.model_copy(update={"field_type": kind})
        return StructType(*(kept.get(f.field_id) or self._left_out(f, path) for f in theirs.fields), *added)

    def _left_out(self, field: NestedField, path: str) -> NestedField:
        if path and has_default(field):
            self._differs(f'column "{path}{field.name}": got none, expected a value, since the field has a default')
            return field
        if not field.required or field.write_default is not None:
            return field
        self._differs(f'column "{path}{field.name}": got none, expected a value for every row', mendable=True)
        return field.model_copy(update={"required": False})

    def _new(self, field: NestedField) -> NestedField:
        optional = field.model_copy(update={"required": False})
        return assign_fresh_schema_ids(Schema(optional), lambda: next(self._ids)).fields[0]

    def _type(self, theirs: IcebergType, ours: IcebergType, path: str) -> IcebergType:
        match theirs, ours:
            case StructType(), StructType():
                return self.struct(theirs, ours, f"{path}.")
            case ListType(), ListType():
                element = self._type(theirs.element_type, ours.element_type, f"{path}.element")
                return ListType(theirs.element_id, element, element_required=theirs.element_required)
            case MapType(), MapType():
                key = self._type(theirs.key_type, ours.key_type, f"{path}.key")
                value = self._type(theirs.value_type, ours.value_type, f"{path}.value")
                return MapType(theirs.key_id, key, theirs.value_id, value, value_required=theirs.value_required)
        if _holds(theirs, ours) or ("." not in path and _converts(theirs, ours)):
            return theirs
        wider = _widens(theirs, ours)
        narrower = ", which is narrower" if wider or _holds(ours, theirs) else ""
        fixed = narrower and path in self._key
        words = f'column "{path}": got {ours}, expected {theirs}{narrower}{", and a key" if fixed else ""}'
        self._differs(words, mendable=wider and not fixed)
        return ours if wider else theirs

    def _differs(self, text: str, *, mendable: bool = False) -> None:
        self.differences.append(ColumnMismatch(text, mendable))


def _holds(theirs: IcebergType, ours: IcebergType) -> bool:
    """Whether a column of type `theirs` can hold every value of type `ours`."""
    text_of_uuid = isinstance(theirs, StringType) and isinstance(ours, UUIDType)
    return theirs == ours or text_of_uuid or _widens(ours, theirs)


def _widens(narrow: IcebergType, wide: IcebergType) -> bool:
    """Whether Iceberg allows a column of type `narrow` to be widened to `wide`."""
    match narrow, wide:
        case DecimalType(), DecimalType():
            return wide.scale == narrow.scale and wide.precision > narrow.precision
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
    return False


def _converts(theirs: IcebergType, ours: IcebergType) -> bool:
    """Whether values are converted, or rejected as bad rows. Applies to top-level columns only."""
    text_of_uuid = isinstance(ours, StringType) and isinstance(theirs, UUIDType)
    return text_of_uuid or (isinstance(ours, BinaryType) and isinstance(theirs, FixedType))
