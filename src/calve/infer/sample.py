"""A sample of a source: parsed records with their keys, or columns with types of their own.

A sample is bounded: up to `MOST_RECORDS` records of up to `MOST_FILES` files, spread over them from the oldest to the
newest, or from the beginning and the end of every partition of a topic. Schemas of Parquet and ORC files are read from
all files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import types as T  # noqa: N812

from calve.records.documents import Codings, Malformed, codings_of, image_codings, is_wrapped, parsed

MOST_RECORDS = 10_000
MOST_FILES = 100


@dataclass(frozen=True)
class Sampled:
    """A record as it was read: without Kafka Connect's wrapper, whose schema part is beside it."""

    value: Any
    """A JSON object; None for a tombstone."""
    key: Any = None
    """The value of Kafka's key; None if there is none or it is not JSON."""
    schema: Any = None
    key_schema: Any = None

    @property
    def is_change(self) -> bool:
        """Whether it is a change record of Debezium."""
        return isinstance(self.value, dict) and "op" in self.value and ("after" in self.value or "before" in self.value)

    def images(self) -> list[dict[str, Any]]:
        """The rows in a change record."""
        found = [self.value.get(name) for name in ("before", "after")] if isinstance(self.value, dict) else []
        return [image for image in found if isinstance(image, dict)]

    def codings(self, *, of_image: bool) -> Codings:
        """How the schema part encodes values."""
        if not isinstance(self.schema, dict):
            return None
        return image_codings(self.schema, "after") if of_image else codings_of(self.schema.get("fields"))


@dataclass(frozen=True)
class Sample:
    """What was read."""

    looked: str
    """At what: `3 files, 120 records`."""
    records: tuple[Sampled, ...] = ()
    texts: Mapping[str, Sequence[str | None]] | None = None
    """The values of a CSV file's columns."""
    typed: Mapping[str, T.DataType] | None = None
    """The columns of typed files."""
    rows: tuple[dict[str, Any], ...] = ()
    """Some rows of typed files, to guess a key from."""
    problems: tuple[str, ...] = field(default=())
    """What could not be read."""


def sampled(value: bytes | str | None, key: bytes | None = None) -> Sampled:
    """Parse a record. Raises Malformed if its value is not a JSON object."""
    body, schema = _unwrapped(None if value is None else parsed(value))
    if body is not None and not isinstance(body, dict):
        raise Malformed("it is not a JSON object")
    try:
        key_body, key_schema = _unwrapped(None if key is None else parsed(key))
    except Malformed:
        key_body, key_schema = None, None
    return Sampled(body, key_body, schema, key_schema)


def _unwrapped(value: Any) -> tuple[Any, Any]:
    return (value["payload"], value["schema"]) if is_wrapped(value) else (value, None)


def counted(number: int, noun: str) -> str:
    """`1 file`, `1,200 records`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
