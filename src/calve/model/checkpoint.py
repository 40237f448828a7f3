"""Checkpoints: the identity of a micro-batch, and the entries that make it durable.

A checkpoint is identified by its query id, batch id, start and end offsets; never by a time. Offsets are canonical JSON
texts that only their source understands; None means "from the beginning".

`SizeHint` estimates how large a checkpoint is: it chooses a writer, and correctness never depends on it.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from calve.model.files import Committable
from calve.model.frontier import BatchDescription, Frontier
from calve.model.spec import Diff, SinkSpec

Offsets = str | None

_LETTERS = "letters "
"""Prefix of the query id of a checkpoint of dead letters."""


def canonical_offsets(value: object) -> str:
    """Offsets as text: equal positions give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def offsets_digest(offsets: Offsets) -> str:
    """A short fingerprint, kept in every snapshot summary instead of the offsets themselves."""
    return hashlib.sha256((offsets or "").encode()).hexdigest()[:16]


@dataclass(frozen=True)
class CheckpointIdentity:
    """Identifies a micro-batch: the same four values mean a replay."""

    query_id: str
    batch_id: int
    start: Offsets
    end: Offsets

    def __str__(self) -> str:
        return f"{self.query_id}/{self.batch_id}"

    @classmethod
    def of_letters(cls, replay: str, batch_id: int, at: Offsets) -> "CheckpointIdentity":
        """The identity of dead letters that are replayed: the source stays where it is."""
        return cls(f"{_LETTERS}{replay}", batch_id, at, at)

    @property
    def letters(self) -> str:
        """The id of the replay of dead letters that it is; empty for a part of the source."""
        return self.query_id.removeprefix(_LETTERS) if self.query_id.startswith(_LETTERS) else ""


@dataclass(frozen=True)
class RowKind:
    """Describes staged rows: everything needed to read them after the source, the sink or the table changed."""

    columns: str
    """Their table columns, as the JSON of an Iceberg schema: ids, names, types, nullability."""
    beside: str
    """Their special columns (operation, order, time, multiplicity), as the JSON of a Spark schema."""
    order_by: tuple[str, ...]
    """The fields of the record that order them."""
    key: tuple[str, ...]
    envelope: str
    append: bool
    time_column: str | None
    """The field of the record with their time; None if they have the time of their checkpoint."""

    @classmethod
    def of(cls, spec: SinkSpec, columns: str = "", beside: str = "") -> "RowKind":
        """The kind of rows that a sink stages."""
        envelope = spec.envelope
        own = envelope.time if isinstance(envelope, Diff) else spec.times.field if spec.times else None
        return cls(columns, beside, spec.order_by, spec.key, type(envelope).__name__, spec.append, own)

    @property
    def fixed(self) -> dict[str, Any]:
        """What must not change while rows with times of their own are staged, by its name in SQL."""
        return {
            "TIME COLUMN": self.time_column,
            "KEY": self.key,
            "ENVELOPE": self.envelope,
            "MODE": "APPEND" if self.append else "UPSERT",
        }


@dataclass(frozen=True)
class Staged:
    """The changes of a checkpoint as files of the state location, until the window of its time is closed."""

    files: tuple[str, ...]
    rows: int
    bytes: int
    frontier: int | None = None
    """If rows have times of their own: no smaller time is expected after this checkpoint."""
    low: int = -1
    """The smallest time of a row; greater than `high` if there are no rows."""
    high: int = -2
    times: tuple[int, ...] = ()
    """All times of its rows, in order, if there are few."""
    late: int = 0
    """Rows that were older than the closed frontier and were dropped or advanced."""
    final: bool = False
    """The input is complete."""
    kind: RowKind | None = None
    """None in records of older versions: the files determine their columns."""


@dataclass(frozen=True)
class CheckpointEntry:
    """A durable checkpoint: with a committable if it closed its own batch, staged if it waits for its window."""

    identity: CheckpointIdentity
    time: int
    """The time of all its rows, or the highest of their own times."""
    committable: Committable | None
    staged: Staged | None = None
    generation: int = 0

    @property
    def timed(self) -> bool:
        """Whether its rows have times of their own."""
        return self.staged is not None and self.staged.frontier is not None

    def reaches_into(self, batch: BatchDescription) -> bool:
        """Whether a batch may contain rows of it."""
        if self.staged is None or not self.timed:
            return batch.holds(self.time)
        if self.staged.times:
            return any(batch.holds(time) for time in self.staged.times)
        return Frontier(self.staged.low) < batch.upper and not Frontier(self.staged.high) < batch.lower

    def times_from(self, lower: int) -> list[int]:
        """The times of its rows from `lower` on, or the ends of their range."""
        if self.staged is None or not self.timed:
            found = [self.time]
        elif self.staged.times or not self.staged.rows:
            found = list(self.staged.times)
        else:
            found = [max(self.staged.low, lower), self.staged.high]
        return [time for time in found if time >= lower]


@dataclass(frozen=True)
class FrontierEntry:
    """The frontier advanced: a window was closed, with or without staged rows, or the input was sealed."""

    time: int
    committable: Committable


Entry = CheckpointEntry | FrontierEntry


@dataclass(frozen=True)
class Adoption:
    """What a run took over from its predecessor; the first thing that a run writes.

    `known` are the identities of committed checkpoints, by which replays of them are recognised.
    """

    entries: tuple[Entry, ...]
    known: tuple[CheckpointIdentity, ...]
    last_time: int
    end: Offsets


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """An entry as a JSON object."""
    if isinstance(entry, CheckpointEntry):
        return {
            "kind": "checkpoint",
            "identity": identity_to_json(entry.identity),
            "time": entry.time,
            "committable": entry.committable.to_json() if entry.committable else None,
            "staged": asdict(entry.staged) if entry.staged else None,
            "generation": entry.generation,
        }
    return {"kind": "frontier", "time": entry.time, "committable": entry.committable.to_json()}


def entry_from_json(value: dict[str, Any]) -> Entry:
    """Inverse of `entry_to_json`."""
    committable = Committable.from_json(value["committable"]) if value["committable"] else None
    if value["kind"] == "checkpoint":
        staged = value.get("staged")
        return CheckpointEntry(
            identity_from_json(value["identity"]),
            value["time"],
            committable,
            _staged_from_json(staged) if staged else None,
            value.get("generation", 0),
        )
    if value["kind"] == "frontier" and committable is not None:
        return FrontierEntry(value["time"], committable)
    raise ValueError(f"unknown kind of entry: {value['kind']}")


def _staged_from_json(value: dict[str, Any]) -> Staged:
    kind = value.get("kind")
    found = RowKind(**{**kind, "order_by": tuple(kind["order_by"]), "key": tuple(kind["key"])}) if kind else None
    lists = {"files": tuple(value["files"]), "times": tuple(value.get("times", ()))}
    return Staged(**{**value, **lists, "kind": found})


def identity_to_json(identity: CheckpointIdentity) -> list[Any]:
    """An identity as a JSON list."""
    return [identity.query_id, identity.batch_id, identity.start, identity.end]


def identity_from_json(value: list[Any]) -> CheckpointIdentity:
    """Inverse of `identity_to_json`."""
    query_id, batch_id, start, end = value
    return CheckpointIdentity(query_id, batch_id, start, end)


def adoption_to_json(adoption: Adoption) -> dict[str, Any]:
    """An adoption as a JSON object."""
    return {
        "entries": [entry_to_json(e) for e in adoption.entries],
        "known": [identity_to_json(i) for i in adoption.known],
        "last-time": adoption.last_time,
        "end": adoption.end,
    }


def adoption_from_json(value: dict[str, Any]) -> Adoption:
    """Inverse of `adoption_to_json`."""
    return Adoption(
        tuple(entry_from_json(e) for e in value["entries"]),
        tuple(identity_from_json(i) for i in value["known"]),
        value["last-time"],
        value["end"],
    )


@dataclass(frozen=True)
class SizeHint:
    """Rows and bytes as far as the source knows them before reading."""

    rows: int | None = None
    bytes: int | None = None
    """In memory."""
    stored: int | None = None
    """As Parquet, if the rows were stored that way before."""


UNKNOWN = SizeHint()


@dataclass(frozen=True)
class SizeLimit:
    """The most rows, and the most bytes in memory, that something handles."""

    rows: int
    bytes: int
