"""Typed columns in the declared types: only where nothing is lost.

A value is cast, and must come back as it was: 1.5 is no BIGINT, 12.345 no DECIMAL(12,2), a timestamp with a time no
DATE. Texts are an exception, since they do not come back letter by letter: they convert as Spark's `try_cast` does
it.
"""

from dataclasses import dataclass

from pyspark.sql import types as T  # noqa: N812

from calve.source.problem import misfit
from calve.source.strict import type_name


@dataclass(frozen=True)
class Retyped:
    """A column that gets its declared type."""

    name: str
    reference: str
    found: T.DataType
    declared: T.DataType

    @property
    def converted(self) -> str:
        """SQL of the value, null when it does not fit."""
        return f"try_cast({self.reference} as {self.declared.simpleString()})"

    def misfit(self, converted: str) -> str:
        """SQL of the problem or null, given a reference to `converted`."""
        fine = f"{self.reference} is null or {converted} is not null"
        if not isinstance(self.found, T.StringType) and isinstance(self.found, T.AtomicType):
            fine = f"try_cast({converted} as {self.found.simpleString()}) <=> {self.reference}"
        return f"if({fine}, null, {misfit(self.name, f'cast({self.reference} as string)', type_name(self.declared))})"

    @property
    def same(self) -> bool:
        """True when nothing has to be done."""
        return self.found.simpleString() == self.declared.simpleString()
