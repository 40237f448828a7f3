"""Values of JSON records in the declared types, without a silent null anywhere.

Spark's `from_json` turns what it cannot convert into null. Here a record becomes a VARIANT, its columns are taken out as
texts at once, and each is converted by the rules of `scalars`; a value that is there and does not convert is a misfit, which
names the column, its value and its type.

    missing field, null        null; a misfit in a NOT NULL field of a struct (NOT NULL columns are the envelope's matter)
    DECIMAL                    also {"scale": n, "value": base64}, and bytes where the schema part says so
    ARRAY, STRUCT, MAP         arrays and objects, each entry by the same rules; fields that are not declared are ignored

Columns of one type are converted together, as an array, by one expression: plans stay small however many columns there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import types as T  # noqa: N812

from calve.errors import InvalidInput
from calve.source.coding import coding_of, decimal_text, is_coded, variable_scale_text
from calve.source.problem import MISFIT, misfit
from calve.source.scalars import Coding, needs_kind, supported, type_name, typed
from calve.source.sqltext import coalesce, ident, let, literal, path_of


def check_type(data_type: T.DataType, name: str) -> None:
    """Refuse a declared type that no JSON value converts to."""
    if isinstance(data_type, T.ArrayType):
        check_type(data_type.elementType, f"{name}[]")
    elif isinstance(data_type, T.MapType) and isinstance(data_type.keyType, T.StringType):
        check_type(data_type.valueType, f"{name}[]")
    elif isinstance(data_type, T.StructType):
        for inner in data_type.fields:
            check_type(inner.dataType, f"{name}.{inner.name}")
    elif not supported(data_type):
        raise InvalidInput(
            f'column "{name}" has type {type_name(data_type)}, which no text converts to',
            hint="Use numbers, BOOLEAN, STRING, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ, ARRAY, STRUCT or MAP<STRING, ...>.",
        )


def nested(data_type: T.DataType) -> bool:
    """True for types with parts."""
    return isinstance(data_type, T.ArrayType | T.MapType | T.StructType)


def as_variant(data_type: T.DataType) -> bool:
    """True for the types that need more of a value than its text."""
    return nested(data_type) or needs_kind(data_type)


def text_of(reference: str, data_type: T.DataType) -> str:
    """The text of a column as `texts` took it out."""
    return f"try_variant_get({reference}, '$', 'string')" if as_variant(data_type) else reference


def texts(value: str, fields: Sequence[T.StructField]) -> str:
    """All columns of an object at once: a STRUCT of STRING, and of VARIANT where the text alone does not say enough."""
    parts = [f"{ident(f.name)}: {'variant' if as_variant(f.dataType) else 'string'}" for f in fields]
    shape = literal("struct<" + ", ".join(parts) + ">")
    return f"try_variant_get({value}, '$', {shape})"


@dataclass(frozen=True)
class Group:
    """Columns of one scalar type: `items` to `values`, both arrays."""

    data_type: T.DataType
    columns: tuple[str, ...]

    def items(self, taken: str) -> str:
        """SQL of an array of what was taken out of the record; coded columns come with their names."""
        parts = [f"{taken}.{ident(c)}" for c in self.columns]
        if is_coded(self.data_type):
            pairs = zip(parts, self.columns, strict=True)
            parts = [f"named_struct('v', {part}, 'n', {literal(column)})" for part, column in pairs]
        return f"array({', '.join(parts)})"

    def values(self, items: str, fields: str, default: str | None) -> str:
        """SQL of the converted array. `fields` refers to the schema part's list."""
        coding = coding_of(fields, "x.n", self.data_type, default)
        return f"transform({items}, x -> {scalar(self._item, self.data_type, coding)})"

    def misfit(self, items: str, values: str) -> str:
        """SQL of the first misfit, given references to both arrays."""
        names = f"array({', '.join(literal(c) for c in self.columns)})"
        text = text_of(self._item, self.data_type)
        made = f"named_struct('name', get({names}, i), 'text', {text}, 'type', {literal(type_name(self.data_type))})"
        each = f"transform({items}, (x, i) -> if({text} is null or get({values}, i) is not null, null, {made}))"
        return f"get(filter({each}, m -> m is not null), 0)"

    @property
    def _item(self) -> str:
        return "x.v" if is_coded(self.data_type) else "x"


def groups_of(fields: Sequence[T.StructField]) -> list[Group]:
    """The scalar columns by type. Texts need no conversion and are in none."""
    types = {f.dataType.simpleString(): f.dataType for f in fields if not _as_is(f.dataType)}
    return [
        Group(data_type, tuple(f.name for f in fields if f.dataType.simpleString() == name))
        for name, data_type in types.items()
    ]


def _as_is(data_type: T.DataType) -> bool:
    return nested(data_type) or isinstance(data_type, T.StringType)


def scalar(reference: str, data_type: T.DataType, coding: Coding) -> str:
    """SQL of a scalar in its type, null when it is null or does not convert."""
    text = text_of(reference, data_type)
    if isinstance(data_type, T.DecimalType):
        text = variable_scale_text(text)
        if coding.scale is not None:
            text = let("s", coding.scale, f"if(s is null, {text}, {decimal_text(reference, 's')})")
    is_text = f"schema_of_variant({reference}) = 'STRING'" if needs_kind(data_type) else "true"
    return let("t", text, typed("t", is_text, data_type, coding)) if text != reference else typed(text, is_text, data_type, coding)


def container(value: str, data_type: T.DataType, name: str, default: str | None, depth: int = 0) -> str:
    """SQL of STRUCT<value, misfit> of a VARIANT in a nested type."""
    if isinstance(data_type, T.StructType):
        return _struct(value, data_type, name, default, depth)
    each = f"e{depth}"
    if isinstance(data_type, T.MapType):
        part = _entry(each, data_type.valueType, f"{name}[]", default, depth)
        made = f"transform_values(try_variant_get({value}, '$', 'map<string,variant>'), (k{depth}, {each}) -> {part})"
        values, parts = f"transform_values(p{depth}, (k, p) -> p.value)", f"map_values(p{depth})"
    elif isinstance(data_type, T.ArrayType):
        part = _entry(each, data_type.elementType, f"{name}[]", default, depth)
        made = f"transform(try_variant_get({value}, '$', 'array<variant>'), {each} -> {part})"
        values, parts = f"transform(p{depth}, p -> p.value)", f"p{depth}"
    else:
        raise TypeError(type_name(data_type))
    inside = f"get(filter(transform({parts}, p -> p.misfit), p -> p is not null), 0)"
    return let(f"p{depth}", made, _assembled(values, [_shape(value, f"p{depth}", name, data_type), inside]))


def _assembled(value: str, misfits: list[str]) -> str:
    return f"named_struct('value', {value}, 'misfit', {coalesce(misfits, MISFIT)})"


def _shape(value: str, made: str, name: str, data_type: T.DataType) -> str:
    text = f"try_variant_get({value}, '$', 'string')"
    return f"if({made} is not null or {text} is null, null, {misfit(name, text, type_name(data_type))})"


def _entry(value: str, data_type: T.DataType, name: str, default: str | None, depth: int) -> str:
    if nested(data_type):
        return container(value, data_type, name, default, depth + 1)
    item, made = f"x{depth}", f"c{depth}"
    kept = value if as_variant(data_type) else f"try_variant_get({value}, '$', 'string')"
    text = text_of(item, data_type)
    wrong = f"if({text} is null or {made} is not null, null, {misfit(name, text, type_name(data_type))})"
    return let(item, kept, let(made, scalar(item, data_type, Coding(default)), _assembled(made, [wrong])))


def _struct(value: str, data_type: T.StructType, name: str, default: str | None, depth: int) -> str:
    parts, values, misfits = [], [], []
    for i, inner in enumerate(data_type.fields):
        path, made = f"{name}.{inner.name}", f"p{depth}.f{i}"
        found = f"try_variant_get({value}, {path_of(inner.name)}, 'variant')"
        parts.append(f"'f{i}', {_entry(found, inner.dataType, path, default, depth)}")
        values.append(f"{literal(inner.name)}, {made}.value")
        misfits.append(f"{made}.misfit")
        if not inner.nullable:
            misfits.append(f"if({made}.value is null, {misfit(path, 'cast(null as string)', 'NOT NULL')}, null)")
    made_parts = f"if(try_variant_get({value}, '$', 'struct<>') is null, null, named_struct({', '.join(parts)}))"
    whole = f"if(p{depth} is null, null, named_struct({', '.join(values)}))"
    inside = f"if(p{depth} is null, null, {coalesce(misfits, MISFIT)})"
    return let(f"p{depth}", made_parts, _assembled(whole, [_shape(value, f"p{depth}", name, data_type), inside]))
