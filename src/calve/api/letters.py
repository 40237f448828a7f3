"""The records of a sink that could not be converted to changes: all of them, for `calve letters`, or the newest."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from calve.definitions.workplace import Workplace
from calve.iceberg.planning.table_scan import Scan
from calve.lake import TableRef
from calve.model.change import Origin
from calve.model.instants import millis_of
from calve.model.letters import LetterChoice, keeps_no_letters
from calve.model.scan import ColumnComparison, ComparisonOperator
from calve.pipeline.lakes import lake_of
from calve.pipeline.letter_requests import Requests
from calve.plan.lookup import required
from calve.plan.sinks import plan_sink
from calve.reader.local import LocalRead, read_here
from calve.reader.splits import whole
from calve.reader.worker import rows_of_task
from calve.sql.names import Identifier
from calve.sql.statements import ObjectKind

_COLUMNS = ("met_at", "reason", "detail", "topic", "partition", "offset", "file", "key", "value")
_BYTES = ("key", "value")
ALL = LetterChoice()
MOST_FILES, MOST_ROWS = 20, 50_000
"""Files and rows of the dead letter table that are read for the newest letters."""
MOST_TEXT = 300
"""Characters of a text of the newest letters."""


@dataclass(frozen=True)
class Letters:
    """The dead letters of one sink, with keys and values as texts where they are UTF-8, otherwise in base64."""

    reading: LocalRead
    sink: str
    choice: LetterChoice = ALL
    unfinished: bool = False
    """Whether a replay was interrupted: some of the letters may be in the table already."""

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        fields = {field.name: field.type for field in self.reading.schema}
        return pa.schema([(name, pa.string() if name in _BYTES else fields[name]) for name in _COLUMNS])

    def rows(self, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """The letters, at most `limit`."""
        left = limit
        for batch in self.reading.rows():
            own = self._chosen(batch.filter(pc.equal(batch.column("sink"), self.sink)))
            piece = own if left is None else own.slice(0, left)
            if piece.num_rows:
                arrays = [_shown(piece.column(name)) if name in _BYTES else piece.column(name) for name in _COLUMNS]
                yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            left = None if left is None else left - piece.num_rows
            if left == 0:
                return

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.choice == ALL:
            return batch
        columns = zip(batch.column("reason").to_pylist(), batch.column("met_at").to_pylist(), strict=True)
        return batch.filter(pa.array([self.choice.takes(*row) for row in columns], pa.bool_()))


def letters_of(place: Workplace, sink: str, choice: LetterChoice = ALL) -> Letters:
    """The dead letters of a sink. Raises InvalidInput if it keeps none."""
    definitions = place.definitions()
    found = required(definitions, Identifier.exact(sink), ObjectKind.SINK)
    plan = plan_sink(found, definitions)
    if plan.spec.dead_letters is None:
        raise keeps_no_letters(found.label, found.reference.to_sql())
    lake = lake_of(place.home, plan.catalog, plan.store, definitions, place.vault)
    reading = read_here(TableRef(lake, plan.spec.dead_letters), columns=("sink", *_COLUMNS))
    unfinished = bool(Requests(lake.state(plan.state, plan.spec.sink_id)).unfinished())
    return Letters(reading, plan.spec.name, choice, unfinished=unfinished)


@dataclass(frozen=True)
class LetterNote:
    """A dead letter without its record."""

    at_ms: int
    reason: str
    detail: str
    hint: str
    place: str
    """Where the record was read."""


def newest_letters(table: Scan, sink: str, most: int) -> list[LetterNote]:
    """The newest letters of a sink in the dead letter table, newest first, from the newest files. Texts are clipped.

    What it reads is bounded, whatever the table contains: records are not read, and other letters only until there are
    enough. If the table was compacted, some of the letters may be newer. Raises TransientError.
    """
    scan = table.select(("sink", "met_at", "reason", "detail", "hint", "topic", "partition", "offset", "file"))
    plan = scan.plan(ColumnComparison("sink", ComparisonOperator.EQUAL, sink))
    target = scan.target(plan)
    found: list[LetterNote] = []
    rows = 0
    for file in sorted(plan.files, key=lambda file: -file.sequence_number)[:MOST_FILES]:
        for batch in rows_of_task(whole(file), target):
            own = batch.filter(pc.equal(batch.column("sink"), sink))
            newest = pc.select_k_unstable(own, most, [("met_at", "descending")])
            notes = [*found, *map(_note, own.take(newest).to_pylist())]
            found = sorted(notes, key=lambda note: -note.at_ms)[:most]
            rows += batch.num_rows
            if rows >= MOST_ROWS:
                return found
        if len(found) >= most:
            return found
    return found


def _note(row: dict[str, Any]) -> LetterNote:
    origin = Origin(row["topic"], row["partition"], row["offset"], row["file"])
    texts = (row["reason"], row["detail"] or "", row["hint"] or "", str(origin))
    return LetterNote(millis_of(row["met_at"]), *map(_clipped, texts))


def _clipped(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 1]}…"


def _shown(column: pa.Array) -> pa.Array:
    return pa.array([_text(value) for value in column.to_pylist()], pa.string())


def _text(value: Any) -> str | None:
    if value is None:
        return None
    try:
        return bytes(value).decode("utf-8")
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
