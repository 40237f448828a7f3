"""Decides which progress stated in a table can be trusted.

The sink's newest snapshot among the ancestors of the branch head wins. The table property is used if that snapshot has
expired, and reveals a rollback if it is ahead. The sink halts if progress cannot be proven: it never silently starts
from scratch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from calve.errors import FencedError, ForeignCommit, ProgressUnprovable, TableRecreated, TableRolledBack
from calve.model.progress import Progress
from calve.model.spec import OnForeignCommit, SinkSpec
from calve.model.table import SnapshotInfo, TableState


@dataclass(frozen=True)
class Trust:
    """What the definition of a sink allows it to accept."""

    policy: OnForeignCommit = OnForeignCommit.HALT
    generation: int = 0
    """The first batch of a new generation replaces the table's contents, so earlier snapshots do not matter."""
    accepted: int | None = None
    """A snapshot that the user accepted, valid until a run of this version has committed."""
    version: int = 1
    run_id: str = ""
    """The current run; empty before it has an id."""
    adopts: bool = False
    """Whether the sink adopts the rows of a table that it has never claimed."""

    @classmethod
    def of(cls, spec: SinkSpec, run_id: str = "", *, claimed: bool = True) -> "Trust":
        """Build it from a sink's definition. `claimed`: its records show that it has written to the table."""
        adopts = spec.adopts and not claimed
        return cls(spec.on_foreign_commit, spec.generation, spec.accepted_snapshot, spec.version, run_id, adopts)

    def will_check(self, last: Progress) -> bool:
        """Whether foreign rows may be ignored for now: the next claim adopts them, and they are checked after it."""
        return last.adopting is not None and last.fence.run_id != self.run_id

    def accepts(self, snapshots: Sequence[SnapshotInfo], last: Progress | None) -> bool:
        """Whether the user accepted one of these snapshots, and no commit has been based on that yet."""
        fresh = last is None or last.fence.version < self.version
        return fresh and any(s.snapshot_id == self.accepted for s in snapshots)

    def newer(self, snapshots: Sequence[SnapshotInfo]) -> list[SnapshotInfo]:
        """Return the snapshots after the accepted one."""
        return list(takewhile(lambda s: s.snapshot_id != self.accepted, snapshots))


def believe(state: TableState, known_uuid: str | None, trust: Trust) -> Progress | None:
    """Return the sink's progress in `state`, or None for a table without commits.

    `known_uuid` is the table's UUID as recorded in the state location. The offsets come from the table property if it
    describes the same commit; otherwise `offsets_known` is False.
    """
    stated = state.stated
    _check_uuid(state, known_uuid)
    _check_retired(stated)
    if not state.ancestors:
        if stated:
            raise TableRecreated(
                "the table states progress but has no snapshot",
                detail=f"The table property refers to snapshot {stated.snapshot_id}.",
                hint="The table was replaced or emptied. Restore it, or start a new sink into a new table.",
            )
        return None
    since: list[SnapshotInfo] = []
    for snapshot in state.ancestors:
        if snapshot.own:
            if snapshot.own.generation >= trust.generation:
                accepted = trust.accepts([*since, snapshot], snapshot.own)
                if stated and not accepted:
                    _check_rollback(stated, snapshot)
                if not trust.will_check(snapshot.own):
                    _check_foreign(trust.newer(since) if accepted else since, trust)
            return snapshot.own.with_offsets_of(stated) if stated else snapshot.own
        since.append(snapshot)
    if trust.generation > (stated.generation if stated else 0):
        return stated
    if stated is None and trust.adopts:
        return None
    return _believe_property(stated, since, trust)


def _check_uuid(state: TableState, known_uuid: str | None) -> None:
    stated_uuid = state.stated.table_uuid if state.stated else None
    for expected in (known_uuid, stated_uuid):
        if expected and expected != state.uuid:
            raise TableRecreated(
                "the table was dropped and created again",
                detail=f"Its UUID is {state.uuid}; this sink wrote to {expected}.",
                hint="Start a new sink under another name to fill the new table, or restore the old one.",
            )


def _check_retired(stated: Progress | None) -> None:
    if stated and stated.fence.retired:
        raise FencedError(
            "another sink adopted the table, or calve maintain --forget excluded this one",
            detail=f"Sink {stated.sink_id} is retired; it last committed snapshot {stated.snapshot_id}.",
            hint="Stop this process and drop the sink.",
        )


def _check_rollback(stated: Progress, newest: SnapshotInfo) -> None:
    ahead = stated.sequence_number > newest.sequence_number
    elsewhere = stated.sequence_number == newest.sequence_number and stated.snapshot_id != newest.snapshot_id
    if ahead or elsewhere:
        raise TableRolledBack(
            "the table was rolled back behind a commit of this sink",
            detail=f"The last commit was snapshot {stated.snapshot_id}; the branch reaches {newest.snapshot_id} only.",
            hint=f"Set the branch forward to snapshot {stated.snapshot_id}, or start a new sink into a new table.",
        )


def _check_foreign(since: Sequence[SnapshotInfo], trust: Trust) -> None:
    foreign = [s for s in since if s.changes_rows]
    if foreign and trust.policy is OnForeignCommit.HALT:
        first = foreign[-1]
        raise ForeignCommit(
            "another writer changed the rows of the table",
            detail=f"Snapshot {first.snapshot_id} ({first.operation}) was not committed by this sink.",
            hint="Roll the table back to the snapshot before it. To keep its rows: ALTER SINK ... ACCEPT SNAPSHOT "
            f"{since[0].snapshot_id}, or on_foreign_commit='accept' for all later ones too.",
        )


def _believe_property(stated: Progress | None, since: list[SnapshotInfo], trust: Trust) -> Progress:
    oldest = since[-1]
    if stated is None:
        raise ProgressUnprovable(
            "the table has snapshots, but none of this sink",
            detail=f"The head is snapshot {since[0].snapshot_id} ({since[0].operation}).",
            hint="A new sink WITH (ADOPT = true) adopts its rows, WITH (SNAPSHOT = true) replaces them. For a sink "
            "that wrote to the table before, restore the table.",
        )
    if trust.accepts(since, stated):
        _check_foreign(trust.newer(since), trust)
        return stated
    if stated.sequence_number >= oldest.sequence_number:
        raise TableRolledBack(
            "the table was rolled back behind a commit of this sink",
            detail=f"The last commit was snapshot {stated.snapshot_id}, which the branch no longer contains.",
            hint=f"Set the branch forward to snapshot {stated.snapshot_id}, or start a new sink into a new table.",
        )
    if not trust.will_check(stated):
        _check_foreign(since, trust)
    _check_connected(stated, since)
    return stated


def _check_connected(stated: Progress, since: Sequence[SnapshotInfo]) -> None:
    oldest = since[-1]
    if oldest.parent_id != stated.snapshot_id:
        raise ProgressUnprovable(
            "the snapshots between the last commit of this sink and the oldest one left are gone",
            detail=f"Snapshot {oldest.snapshot_id} follows {oldest.parent_id}; the commit was {stated.snapshot_id}.",
            hint="Foreign changes in between cannot be ruled out. If the rows are right: "
            f"ALTER SINK ... ACCEPT SNAPSHOT {since[0].snapshot_id}.",
        )
