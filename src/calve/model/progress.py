"""The progress of a sink as its table states it, and the proof of a commit.

Progress is written twice in one catalog commit: into the snapshot's summary (`calve.*`, long offsets as a digest) and
into the table property `calve.sink.<sink id>` (everything). `commit/belief.py` decides which of them to trust.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import total_ordering
from typing import Any, Self

from calve.model.checkpoint import Offsets, offsets_digest
from calve.model.frontier import START, Frontier
from calve.model.numbers import whole_number

PROPERTY_PREFIX = "calve.sink."
_STATE_SUFFIX = ".state"
SINK_ID, FRONTIER = "calve.sink-id", "calve.frontier"
"""Keys of a snapshot's summary that other modules read, too."""

RETIRED = 2**62
"""Version in the fence of a sink whose table another sink adopted: every run is older."""

SHORT = 256
"""Maximum length of offsets that every snapshot summary repeats; longer ones are only in the property."""


@total_ordering
@dataclass(frozen=True)
class Fence:
    """Only the greatest (version, epoch) may commit. The run id distinguishes two runs of one epoch."""

    version: int
    epoch: int
    run_id: str

    def __lt__(self, other: Self) -> bool:
        return (self.version, self.epoch) < (other.version, other.epoch)

    def __str__(self) -> str:
        return f"version {self.version}, epoch {self.epoch}"

    @property
    def retired(self) -> bool:
        """True if another sink adopted the table, for good."""
        return self.version >= RETIRED


@dataclass(frozen=True)
class Progress:
    """One statement of progress. `offsets` is None where only the digest is known (`offsets_known` is False then)."""

    sink_id: str
    fence: Fence
    frontier: Frontier
    lower: Frontier
    commit_id: str
    query_id: str
    checkpoint: int
    offsets: Offsets
    digest: str
    table_uuid: str = ""
    snapshot_id: int = 0
    sequence_number: int = 0
    generation: int = 0
    ahead: str = ""
    """Digest of the end offsets of the last checkpoint that is partly in the table; empty if there is none."""
    key_index: str = ""
    """The manifest of the sink's key index that is valid from this snapshot on; empty if there is none."""
    adopting: int | None = None
    """The head whose rows the sink adopted and has not checked yet: no batch is committed before the check."""
    adopted: int | None = None
    """The head whose rows the sink adopted and checked."""
    commits: int = 0
    """Batches committed so far, this one included; counted since versions that know this field."""
    changes: int = 0
    """Changes in these batches."""
    committed_ms: int = 0
    """Wall clock of the last batch's commit; a claim repeats it."""
    catching_up: bool = False
    """The sink still reads changes that the adopted rows may already contain: rows may become older than they were."""
    letters: str = ""
    """The last replay of dead letters that the table contains; later commits repeat it. Empty if there is none."""

    @classmethod
    def fresh(cls, sink_id: str, fence: Fence, offsets: Offsets = None) -> Self:
        """Progress of a sink that never committed and starts to read at `offsets`."""
        return cls(sink_id, fence, START, START, "", "", -1, offsets, offsets_digest(offsets))

    @property
    def offsets_known(self) -> bool:
        """False where only the digest was read."""
        return offsets_digest(self.offsets) == self.digest

    def to_summary(self) -> dict[str, str]:
        """The keys of a snapshot summary."""
        return {
            SINK_ID: self.sink_id,
            FRONTIER: self.frontier.to_json(),
            "calve.batch-lower": self.lower.to_json(),
            "calve.sink-version": str(self.fence.version),
            "calve.epoch": str(self.fence.epoch),
            "calve.run-id": self.fence.run_id,
            "calve.commit-id": self.commit_id,
            "calve.query-id": self.query_id,
            "calve.checkpoint": str(self.checkpoint),
            "calve.offsets-digest": self.digest,
            **({"calve.offsets": self.offsets} if self._short_offsets else {}),
            **({"calve.generation": str(self.generation)} if self.generation else {}),
            **({"calve.ahead": self.ahead} if self.ahead else {}),
            **({"calve.key-index": self.key_index} if self.key_index else {}),
            **({} if self.adopting is None else {"calve.adopting": str(self.adopting)}),
            **({} if self.adopted is None else {"calve.adopted": str(self.adopted)}),
            **({"calve.catching-up": "true"} if self.catching_up else {}),
            **({"calve.letters": self.letters} if self.letters else {}),
            **({"calve.commits": str(self.commits)} if self.commits else {}),
            **({"calve.changes": str(self.changes)} if self.changes else {}),
            **({"calve.committed-ms": str(self.committed_ms)} if self.committed_ms else {}),
        }

    @property
    def _short_offsets(self) -> bool:
        """Whether the offsets go into the summary of every snapshot, where they help after a rollback."""
        return self.offsets is not None and len(self.offsets) <= SHORT

    @classmethod
    def from_summary(cls, summary: dict[str, str], *, snapshot_id: int, sequence_number: int) -> Self:
        """Inverse of `to_summary`, without offsets."""
        return cls(
            sink_id=summary[SINK_ID],
            fence=Fence(int(summary["calve.sink-version"]), int(summary["calve.epoch"]), summary["calve.run-id"]),
            frontier=Frontier.from_json(summary[FRONTIER]),
            lower=Frontier.from_json(summary["calve.batch-lower"]),
            commit_id=summary["calve.commit-id"],
            query_id=summary["calve.query-id"],
            checkpoint=int(summary["calve.checkpoint"]),
            offsets=summary.get("calve.offsets"),
            digest=summary["calve.offsets-digest"],
            snapshot_id=snapshot_id,
            sequence_number=sequence_number,
            generation=int(summary.get("calve.generation", "0")),
            ahead=summary.get("calve.ahead", ""),
            key_index=summary.get("calve.key-index", ""),
            adopting=_number(summary.get("calve.adopting")),
            adopted=_number(summary.get("calve.adopted")),
            catching_up=summary.get("calve.catching-up") == "true",
            letters=summary.get("calve.letters", ""),
            commits=_count(summary.get("calve.commits")),
            changes=_count(summary.get("calve.changes")),
            committed_ms=_count(summary.get("calve.committed-ms")),
        )

    def to_property(self) -> str:
        """The value of the table property."""
        body: dict[str, Any] = {k.removeprefix("calve."): v for k, v in self.to_summary().items()}
        body |= {
            "offsets": self.offsets,
            "table-uuid": self.table_uuid,
            "snapshot-id": self.snapshot_id,
            "sequence-number": self.sequence_number,
        }
        return json.dumps(body, sort_keys=True)

    @classmethod
    def from_property(cls, text: str) -> Self:
        """Inverse of `to_property`."""
        body = json.loads(text)
        summary = {f"calve.{k}": v for k, v in body.items()}
        base = cls.from_summary(summary, snapshot_id=body["snapshot-id"], sequence_number=body["sequence-number"])
        return replace(base, offsets=body["offsets"], table_uuid=body["table-uuid"])

    def next_lower(self, generation: int) -> Frontier:
        """The lower bound of the next batch of this generation; a new generation reopens a sealed table."""
        return START if self.frontier.sealed and generation > self.generation else self.frontier

    def is_sealed(self, generation: int) -> bool:
        """True when this generation is complete."""
        return self.next_lower(generation).sealed

    def claimed_by(self, fence: Fence, table_uuid: str) -> Self:
        """The same progress under another run's fence, as a claim writes it."""
        return replace(self, fence=fence, table_uuid=table_uuid)

    def adopted_by(self, fence: Fence, table_uuid: str, head: int) -> Self:
        """The progress that a claim writes when the sink adopts the rows of a head, or has not checked them yet."""
        return replace(self.claimed_by(fence, table_uuid), adopting=head, catching_up=True)

    def checked(self) -> Self:
        """The same progress, once the adopted rows are checked."""
        return replace(self, adopting=None, adopted=self.adopting)

    def retire(self) -> Self:
        """The same progress under a fence that excludes every run of its sink."""
        return replace(self, fence=Fence(RETIRED, self.fence.epoch, "retired"))

    def with_offsets(self, offsets: Offsets) -> Self:
        """This progress with its full offsets."""
        return replace(self, offsets=offsets)

    def with_offsets_of(self, other: Self) -> Self:
        """This progress with the offsets of `other`, if their digests are equal."""
        return replace(self, offsets=other.offsets) if other.digest == self.digest else self


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _count(text: str | None) -> int:
    """A number that is only reported: it stops nothing if somebody garbled it."""
    return whole_number(text or "") or 0


def property_key(sink_id: str) -> str:
    """Name of the table property with a sink's progress."""
    return f"{PROPERTY_PREFIX}{sink_id}"


def state_key(sink_id: str) -> str:
    """Name of the table property with the state location of a sink: orphan removal reads the work in flight there."""
    return f"{property_key(sink_id)}{_STATE_SUFFIX}"


def sinks_named(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Ids of the sinks whose progress the properties of a table contain."""
    keys = (key for key in properties if key.startswith(PROPERTY_PREFIX) and not key.endswith(_STATE_SUFFIX))
    return tuple(key.removeprefix(PROPERTY_PREFIX) for key in keys)


def tag_name(sink_id: str) -> str:
    """Name of the tag that keeps the sink's newest snapshot from expiring."""
    return f"calve-{sink_id}"


@dataclass(frozen=True)
class Receipt:
    """Proof that a committable is in the table.

    Only the committer creates one, after the catalog confirmed the commit or the table showed it.
    """

    commit_id: str
    frontier: Frontier
    offsets: Offsets
    snapshot_id: int
    sequence_number: int
