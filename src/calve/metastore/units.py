"""Units: the rows of a component, declared as a frozen dataclass whose fields have a scope and a role.

    @dataclass(frozen=True, kw_only=True)
    class TableUnit:
        table_name: str | None = unit_field(role=Role.STORAGE_KEY)
        metadata_type: MetadataType | None = unit_field(role=Role.TYPE)
        path: str | None = unit_field(MetadataType.FILE, MetadataType.ROW_GROUP)

The Iceberg schema and partitions of the component are derived from the class. Fields may be strings, enumerations,
classes with `to_text` and `from_text`, integers, floats and booleans; tuples of these; mappings from strings to these.
Every field may be None (except partition keys of a written unit); an empty tuple, mapping or string is not None.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping
from enum import Enum, StrEnum, auto
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from calve.errors import CalveError, InvalidInput, TerminalError
from calve.iceberg.small_tables.declared import DeclaredColumn, Kind, ListOf, MapOf, Plain
from calve.metastore.filters import Filter

U = TypeVar("U")

_DECLARED = "calve.metastore"


class Role(Enum):
    """The role of a field beyond its value."""

    NONE = auto()
    TYPE = auto()
    """Holds the metadata type of a unit."""
    PARTITION_KEY = auto()
    """Units with the same partition keys share a file and are written and deleted together."""
    STORAGE_KEY = auto()
    """A partition key that is also a folder level in the location of that file."""

    @property
    def partitions(self) -> bool:
        """Whether it is a partition key."""
        return self in {Role.PARTITION_KEY, Role.STORAGE_KEY}


def unit_field(*scope: StrEnum, role: Role = Role.NONE) -> Any:
    """Declare a field that units of these metadata types have; units of all types if none is given."""
    return dataclasses.field(default=None, metadata={_DECLARED: (frozenset(scope), role)})


@dataclasses.dataclass(frozen=True)
class _Codec:
    """How values of one Python type are stored."""

    kind: Kind
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class UnitField:
    """A field of a unit."""

    name: str
    scope: frozenset[StrEnum]
    role: Role
    codec: _Codec

    @property
    def kind(self) -> Kind:
        """How its values are stored."""
        return self.codec.kind

    def within(self, metadata_type: StrEnum) -> bool:
        """Whether units of a type have this field."""
        return not self.scope or metadata_type in self.scope


class UnitLayout(Generic[U]):
    """The columns, keys and codecs of a unit class."""

    def __init__(self, unit: type[U]) -> None:
        self.unit = unit
        hints = get_type_hints(unit)
        self.fields = tuple(_field(unit, field, hints[field.name]) for field in dataclasses.fields(unit))  # type: ignore[arg-type]
        self._by_name = {field.name: field for field in self.fields}
        self.partition_keys = tuple(field.name for field in self.fields if field.role.partitions)
        self.storage_keys = tuple(field.name for field in self.fields if field.role is Role.STORAGE_KEY)
        if not self.partition_keys:
            raise InvalidInput(f"{unit.__name__} has no partition key", hint="Give a field the role PARTITION_KEY.")
        self.type_column = next((field.name for field in self.fields if field.role is Role.TYPE), None)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, in order."""
        return tuple(self._by_name)

    def columns(self) -> tuple[DeclaredColumn, ...]:
        """The columns of the Iceberg table."""
        return tuple(DeclaredColumn(f.name, f.kind, partition_key=f.role.partitions) for f in self.fields)

    def columns_of(self, metadata_type: StrEnum) -> tuple[str, ...]:
        """The columns that units of a type have."""
        return tuple(field.name for field in self.fields if field.within(metadata_type))

    def to_row(self, unit: U) -> dict[str, Any]:
        """Encode a unit. Raises InvalidInput for invalid values."""
        if not isinstance(unit, self.unit):
            raise InvalidInput(f"a unit must be a {self.unit.__name__}", detail=f"Got {type(unit).__name__}.")
        row = {field.name: self._encode(field, getattr(unit, field.name)) for field in self.fields}
        for name in self.partition_keys:
            if row[name] is None:
                raise InvalidInput(
                    f'partition key "{name}" has no value',
                    detail=f"The partition keys of {self.unit.__name__} are {', '.join(self.partition_keys)}.",
                    hint="Give every partition key a value.",
                )
        self._check_scope(row, unit)
        return row

    def from_row(self, row: Mapping[str, Any]) -> U:
        """Decode the unit of a row; columns that the row lacks are None. Raises TerminalError."""
        values = {}
        for name, value in row.items():
            try:
                values[name] = None if value is None else self._by_name[name].codec.decode(value)
            except (CalveError, ValueError, KeyError, TypeError) as error:
                raise TerminalError(
                    f'column "{name}" of a {self.unit.__name__} cannot be read',
                    detail=f"It holds {value!r}: {error}",
                    hint="Another program or a newer calve wrote it.",
                ) from error
        return self.unit(**values)

    def partition_of(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """The partition keys of a row."""
        return tuple(row[name] for name in self.partition_keys)

    def check_columns(self, names: tuple[str, ...]) -> None:
        """Raise InvalidInput for an unknown column."""
        for name in names:
            if name not in self._by_name:
                raise InvalidInput(
                    f'{self.unit.__name__} has no column "{name}"', detail=f"Its columns are {', '.join(self.names)}."
                )

    def check_filter(self, condition: Filter) -> None:
        """Raise InvalidInput for a filter with unknown columns or values of a wrong type."""
        for leaf in condition.leaves():
            self.check_columns((leaf.column,))
            kind = self._by_name[leaf.column].kind
            for value in leaf.values():
                if not isinstance(kind, Plain) or not _fits(kind, value):
                    raise InvalidInput(
                        f'column "{leaf.column}" cannot be compared with {value!r}',
                        detail=f"It is of type {kind}.",
                        hint="" if isinstance(kind, Plain) else "For lists and maps, use only is_null and not_null.",
                    )

    def check_delete(self, condition: Filter) -> None:
        """Raise InvalidInput for a filter that uses other columns than partition keys."""
        self.check_filter(condition)
        others = sorted(condition.columns() - set(self.partition_keys))
        if others:
            raise InvalidInput(
                f"a delete cannot filter by {', '.join(others)}",
                detail=f"Partitions are deleted whole, by {', '.join(self.partition_keys)}.",
                hint="Use partition keys only; to change a part of a partition, overwrite it.",
            )

    def _encode(self, field: UnitField, value: Any) -> Any:
        if value is None:
            return None
        try:
            return field.codec.encode(value)
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(
                f'column "{field.name}" of a {self.unit.__name__} cannot hold {value!r}',
                detail=f"It is of type {field.kind}.",
            ) from error

    def _check_scope(self, row: Mapping[str, Any], unit: U) -> None:
        metadata_type = getattr(unit, self.type_column) if self.type_column else None
        if metadata_type is None:
            return
        for field in self.fields:
            if row[field.name] is not None and not field.within(metadata_type):
                scope = ", ".join(sorted(field.scope))
                raise InvalidInput(
                    f'a unit of type {metadata_type} has no "{field.name}"', detail=f"Units of type {scope} have it."
                )


def _field(unit: type[Any], field: dataclasses.Field[Any], hint: Any) -> UnitField:
    if _DECLARED not in field.metadata:
        raise InvalidInput(f'field "{field.name}" of {unit.__name__} is not declared', hint="Use unit_field().")
    scope, role = field.metadata[_DECLARED]
    codec = _codec(_given(hint))
    if codec is None or (role is not Role.NONE and codec.kind is not Plain.TEXT):
        raise InvalidInput(f'field "{field.name}" of {unit.__name__} has an unsupported type', detail=f"Got {hint}.")
    return UnitField(field.name, scope, role, codec)


def _given(hint: Any) -> Any:
    """The type without None."""
    if get_origin(hint) in {Union, types.UnionType}:
        others = [one for one in get_args(hint) if one is not type(None)]
        return others[0] if len(others) == 1 else None
    return hint


def _codec(hint: Any) -> _Codec | None:
    arguments = get_args(hint)
    if get_origin(hint) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        element = _plain(arguments[0])
        return None if element is None else _list_codec(element)
    if get_origin(hint) is not None and issubclass(get_origin(hint), Mapping) and arguments[0] is str:
        value = _plain(arguments[1])
        return None if value is None else _map_codec(value)
    return _plain(hint)


def _list_codec(element: _Codec) -> _Codec:
    def encoded(values: Any) -> list[Any]:
        if isinstance(values, str):
            raise TypeError("a string is not a list")
        return [element.encode(value) for value in values]

    return _Codec(ListOf(_plain_kind(element)), encoded, lambda values: tuple(map(element.decode, values)))


def _map_codec(value: _Codec) -> _Codec:
    return _Codec(
        MapOf(_plain_kind(value)),
        lambda values: [(_text(key), value.encode(one)) for key, one in values.items()],
        lambda values: {key: value.decode(one) for key, one in values},
    )


def _plain_kind(codec: _Codec) -> Plain:
    return Plain(codec.kind)  # type: ignore[arg-type]


def _plain(hint: Any) -> _Codec | None:
    if not isinstance(hint, type):
        return None
    if issubclass(hint, StrEnum):
        return _Codec(Plain.TEXT, lambda v: str(hint(v)), hint)
    if hasattr(hint, "to_text") and hasattr(hint, "from_text"):
        return _Codec(Plain.TEXT, lambda v: v.to_text(), hint.from_text)
    kinds = {str: Plain.TEXT, int: Plain.WHOLE, float: Plain.FRACTION, bool: Plain.BOOLEAN}
    kind = kinds.get(hint)
    return None if kind is None else _Codec(kind, _checked(kind), _same)


def _same(value: Any) -> Any:
    return value


def _checked(kind: Plain) -> Callable[[Any], Any]:
    def encoded(value: Any) -> Any:
        if not _fits(kind, value):
            raise TypeError(f"{value!r} is not a {kind}")
        return _text(value) if kind is Plain.TEXT else value

    return encoded


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    value.encode()  # fails for half of a surrogate pair
    return str(value)


def _fits(kind: Plain, value: Any) -> bool:
    match kind:
        case Plain.TEXT:
            return isinstance(value, str)
        case Plain.BOOLEAN:
            return isinstance(value, bool)
        case Plain.WHOLE:
            return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
        case Plain.FRACTION:
            return isinstance(value, int | float) and not isinstance(value, bool)
