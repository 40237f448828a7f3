"""Records as JSON in the columns `value` and `key`, read step by step into columns of their own.

Kafka Connect may wrap either in an object of its own, record by record: `{"schema": {...}, "payload": {...}}`. The schema
part says how times and decimals are encoded.

`try_parse_json` stops at the end of the first value and ignores what follows, so a text is parsed as the first element of an
array whose second one is a mark of our own: anything after the record breaks the array. A key that comes twice, NaN, or text
that is not UTF-8 is not JSON either.

A step is a selection on top of the one before: Spark computes a column once that the next selection uses twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import types as T  # noqa: N812

from calve.source import frames
from calve.source.cells import Group, as_variant, container, groups_of, nested, texts
from calve.source.coding import is_coded, schema_fields
from calve.source.frames import STEP
from calve.source.sqltext import ident, literal, path_of

ORIGINAL = f"{STEP}in_"
"""Columns of the frame are renamed with this, so that fields of the record may have any name."""

_END = "calve:end"
_EMPTY_WRAPPER = '[{"payload":null,"schema":null},"calve:end"]'


def field(value: str, *names: str) -> str:
    """A field of an object as VARIANT, null when it is missing; JSON's null stays one."""
    return f"try_variant_get({value}, {path_of(*names)}, 'variant')"


def field_text(value: str, *names: str) -> str:
    """The text of a field, null when it is missing or null; of an array or an object its JSON."""
    return f"try_variant_get({value}, {path_of(*names)}, 'string')"


def is_object(value: str) -> str:
    """True for an object of JSON, else false."""
    return f"(try_variant_get({value}, '$', 'struct<>') is not null)"


@dataclass(frozen=True)
class Part:
    """A JSON column after reading."""

    name: str

    @property
    def payload(self) -> str:
        """VARIANT: what the text says, without a wrapper; null when it is not JSON."""
        return f"{STEP}{self.name}_payload"

    @property
    def schema(self) -> str:
        """VARIANT: the schema part, null without one."""
        return f"{STEP}{self.name}_schema"

    @property
    def array(self) -> str:
        """VARIANT: the text and the mark."""
        return f"{STEP}{self.name}_array"

    @property
    def gone(self) -> str:
        """SQL: the column is null, or JSON says null."""
        return f"({ident(ORIGINAL + self.name)} is null or coalesce(is_variant_null({self.payload}), false))"

    @property
    def malformed(self) -> str:
        """SQL: there is something, and it is not one JSON value."""
        return f"({ident(ORIGINAL + self.name)} is not null and {self.payload} is null)"


VALUE, KEY = Part("value"), Part("key")

Bare = Callable[[str], str]


def never(_: str) -> str:
    """A payload without schema is no wrapper."""
    return "false"


def arrival_names(schema: T.StructType) -> list[str]:
    """Names of the columns that hold the order of arrival."""
    return [f"{STEP}arrival_{i}" for i, _ in enumerate(frames.arrival(schema, streaming=False))]


def reading_steps(schema: T.StructType, parts: Sequence[Part], *, streaming: bool, bare: Bare = never) -> list[list[str]]:
    """Rename all columns, keep the order of arrival, and read the JSON of `parts`.

    `bare` says, as SQL over the array, when a payload without schema counts as a wrapper as well.
    """
    arrival = zip(arrival_names(schema), frames.arrival(schema, streaming=streaming), strict=True)
    renamed = [f"{ident(n)} as {ident(ORIGINAL + n)}" for n in schema.names]
    arrays = [f"{_enclosed(ident(p.name))} as {p.array}" for p in parts]
    return [
        [*renamed, *(f"{sql} as {name}" for name, sql in arrival), *arrays],
        ["*", *(sql for p in parts for sql in _unwrapped(p, bare))],
    ]


def _enclosed(text: str) -> str:
    return f"try_parse_json(concat('[', try_validate_utf8(cast({text} as string)), ',\"{_END}\"]'))"


def _unwrapped(part: Part, bare: Bare) -> list[str]:
    array = part.array
    alone = f"try_variant_get({array}, '$[1]', 'string') = '{_END}' and try_variant_get({array}, '$[2]', 'variant') is null"
    payload = f"try_variant_get({array}, '$[0].payload', 'variant')"
    typed = f"(try_variant_get({array}, '$[0].schema.type', 'string') = 'struct' and {payload} is not null)"
    empty = f"(is_variant_null({payload}) and to_json({array}) = '{_EMPTY_WRAPPER}')"
    whole = f"try_variant_get({array}, '$[0]', 'variant')"
    wrapped = f"{typed} or {empty} or {bare(array)}"
    return [
        f"case when not ({alone}) then null when {wrapped} then {payload} else {whole} end as {part.payload}",
        f"if({alone} and {typed}, try_variant_get({array}, '$[0].schema', 'variant'), null) as {part.schema}",
    ]


@dataclass(frozen=True)
class Image:
    """The columns of one object: where it is, what they are called, how they are encoded."""

    name: str
    """Unique among the images of a frame."""
    source: str
    """SQL reference to the object."""
    fields: tuple[T.StructField, ...]
    schema: str
    """SQL reference to the schema part."""
    within: str | None
    """The image's name in the schema part; None for a record that is the image itself."""
    default: str | None
    """Unit of timestamps as numbers."""
    bare: bool = False
    """The object may be the value of its only column instead."""

    @property
    def texts(self) -> str:
        """Name of the struct of texts."""
        return f"{STEP}{self.name}_texts"

    @property
    def _listed(self) -> str:
        return f"{STEP}{self.name}_fields"

    @property
    def _groups(self) -> list[tuple[str, Group]]:
        return [(f"{STEP}{self.name}_g{i}", group) for i, group in enumerate(groups_of(self.fields))]

    @property
    def _nested(self) -> list[tuple[str, T.StructField]]:
        return [(f"{STEP}{self.name}_n{i}", f) for i, f in enumerate(self.fields) if nested(f.dataType)]

    def taking(self) -> list[str]:
        """A step: the columns as texts, and what the schema part says of them."""
        coded = any(is_coded(f.dataType) for f in self.fields)
        listed = [f"{schema_fields(self.schema, self.within)} as {self._listed}"] if coded else []
        return [f"{self._taken()} as {self.texts}", *listed]

    def _taken(self) -> str:
        whole = texts(self.source, self.fields)
        if not self.bare or len(self.fields) != 1:
            return whole
        column = self.fields[0]
        kind = "variant" if as_variant(column.dataType) else "string"
        alone = f"named_struct({literal(column.name)}, try_variant_get({self.source}, '$', '{kind}'))"
        return f"if({is_object(self.source)}, {whole}, {alone})"

    def converting(self) -> list[str]:
        """The step after it: the columns in their types."""
        scalars = [f"{g.values(g.items(self.texts), self._listed, self.default)} as {name}" for name, g in self._groups]
        parts = [
            f"{container(f'{self.texts}.{ident(f.name)}', f.dataType, f.name, self.default)} as {name}"
            for name, f in self._nested
        ]
        return [*scalars, *parts]

    def value(self, column: str) -> str:
        """SQL of a converted column, on top of `converting`."""
        for name, group in self._groups:
            if column in group.columns:
                return f"get({name}, {group.columns.index(column)})"
        for name, f in self._nested:
            if f.name == column:
                return f"{name}.value"
        return f"{self.texts}.{ident(column)}"

    def misfits(self) -> list[str]:
        """SQL of the first misfit of each type, on top of `converting`."""
        scalars = [g.misfit(g.items(self.texts), name) for name, g in self._groups]
        return [*scalars, *(f"{name}.misfit" for name, _ in self._nested)]
