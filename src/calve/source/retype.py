"""Typed columns in the declared types: only where nothing is lost.

A value is cast, and must come back as it was: 1.5 is no BIGINT, 12.345 no DECIMAL(12,2), a timestamp with a time no
DATE. Texts are an exception, since they do not come back letter by letter: they convert as Spark's `try_cast` does
it.
"""

from dataclasses import dataclass
from typing import Self

from pyspark.sql import types as T  # noqa: N812

from calve.model.types import UUID_PATTERN
from calve.source.columns import is_uuid
from calve.source.problem import misfit
from calve.source.strict import UUID, type_name
from calve.sparktext import ident, literal


@dataclass(frozen=True)
class Retyped:
    """A column that gets its declared type."""

    name: str
    found: T.DataType
    declared: T.DataType
    uuid: bool = False
    """Whether it is a text that must be a uuid."""

    @classmethod
    def of(cls, field: T.StructField, found: T.DataType) -> Self:
        """A column of the table out of one of a frame."""
        uuid = is_uuid(field) and isinstance(found, T.StringType)
        return cls(field.name, found, field.dataType, uuid)

    @property
    def reference(self) -> str:
        """SQL of the value as it is found."""
        return ident(self.name)

    @property
    def converted(self) -> str:
        """SQL of the value, null when it does not fit."""
        if self.uuid:
            return f"if({self.reference} rlike {literal(UUID_PATTERN)}, {self.reference}, null)"
        return f"try_cast({self.reference} as {self.declared.simpleString()})"

    def misfit(self, converted: str) -> str:
        """SQL of the problem or null, given a reference to `converted`."""
        fine = f"{self.reference} is null or {converted} is not null"
        if not isinstance(self.found, T.StringType) and isinstance(self.found, T.AtomicType):
            fine = f"try_cast({converted} as {self.found.simpleString()}) <=> {self.reference}"
        wanted = UUID if self.uuid else type_name(self.declared)
        return f"if({fine}, null, {misfit(self.name, f'cast({self.reference} as string)', wanted)})"

    @property
    def same(self) -> bool:
        """True when nothing has to be done."""
        return self.found.simpleString() == self.declared.simpleString() and not self.uuid
