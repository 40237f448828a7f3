"""`calve letters`: the records of a sink that could not be converted to changes."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from calve.definitions.workplace import Workplace
from calve.errors import InvalidInput
from calve.lake import TableRef
from calve.pipeline.lakes import lake_of
from calve.plan.lookup import required
from calve.plan.sinks import plan_sink
from calve.reader.local import LocalRead, read_here
from calve.sql.names import Identifier
from calve.sql.statements import ObjectKind

_COLUMNS = ("met_at", "reason", "detail", "topic", "partition", "offset", "file", "key", "value")
_BYTES = ("key", "value")


@dataclass(frozen=True)
class Letters:
    """The dead letters of one sink, with keys and values as texts where they are UTF-8, otherwise in base64."""

    reading: LocalRead
    sink: str

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        fields = {field.name: field.type for field in self.reading.schema}
        return pa.schema([(name, pa.string() if name in _BYTES else fields[name]) for name in _COLUMNS])

    def rows(self, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """The letters, at most `limit`."""
        left = limit
        for batch in self.reading.rows():
            own = batch.filter(pc.equal(batch.column("sink"), self.sink))
            piece = own if left is None else own.slice(0, left)
            if piece.num_rows:
                arrays = [_shown(piece.column(name)) if name in _BYTES else piece.column(name) for name in _COLUMNS]
                yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            left = None if left is None else left - piece.num_rows
            if left == 0:
                return


def letters_of(place: Workplace, sink: str) -> Letters:
    """The dead letters of a sink. Raises InvalidInput if it keeps none."""
    definitions = place.definitions()
    found = required(definitions, Identifier.exact(sink), ObjectKind.SINK)
    plan = plan_sink(found, definitions)
    if plan.spec.dead_letters is None:
        raise InvalidInput(
            f"{found.label} keeps no dead letters",
            detail="It halts at a record that cannot be converted.",
            hint=f"ALTER SINK {found.reference.to_sql()} SET (ON BAD ROW = 'dead letter') keeps them instead.",
        )
    lake = lake_of(place.home, plan.catalog, plan.store, definitions, place.vault)
    return Letters(read_here(TableRef(lake, plan.spec.dead_letters), columns=("sink", *_COLUMNS)), plan.spec.name)


def _shown(column: pa.Array) -> pa.Array:
    return pa.array([_text(value) for value in column.to_pylist()], pa.string())


def _text(value: Any) -> str | None:
    if value is None:
        return None
    try:
        return bytes(value).decode("utf-8")
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
