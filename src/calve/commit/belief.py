"""Which statement of progress to believe.

The newest own ancestor of the branch's head wins. The table property serves where that ancestor has expired, and shows
rollbacks where it is ahead. Whatever cannot be proven halts the sink: it never starts from scratch in silence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from calve.errors import FencedError, ForeignCommit, ProgressUnprovable, TableRecreated, TableRolledBack
from calve.model.progress import Progress
from calve.model.spec import OnForeignCommit, SinkSpec
from calve.model.table import REPLACE, SnapshotInfo, TableState


@dataclass(frozen=True)
class Trust:
    """What a sink may take for granted, because its user said so."""

    policy: OnForeignCommit = OnForeignCommit.HALT
    generation: int = 0
    """What lies below the first batch of a new generation does not matter: that batch replaces it."""
    accepted: int | None = None
    """A snapshot that the user vouched for, until a run of this version has been in the table."""
    version: int = 1
    run_id: str = ""
    """Of the run that asks; empty before it has one."""
    adopts: bool = False
    """The rows of a table that this sink never claimed count as the collection so far."""

    @classmethod
    def of(cls, spec: SinkSpec, run_id: str = "", *, claimed: bool = True) -> "Trust":
        """As the sink's definition says. `claimed`: its records say that it wrote to the table."""
        adopts = spec.adopts and not claimed
        return cls(spec.on_foreign_commit, spec.generation, spec.accepted_snapshot, spec.version, run_id, adopts)

    def will_check(self, last: Progress) -> bool:
        """Whether foreign rows do not matter, since the next claim takes them over and they are checked after it."""
        return last.adopting is not None and last.fence.run_id != self.run_id

    def accepts(self, snapshots: Sequence[SnapshotInfo], last: Progress | None) -> bool:
        """Whether the user vouched for one of these snapshots, and no commit was made on that word yet."""
        fresh = last is None or last.fence.version < self.version
        return fresh and any(s.snapshot_id == self.accepted for s in snapshots)

    def newer(self, snapshots: Sequence[SnapshotInfo]) -> list[SnapshotInfo]:
        """Those that came after the one that the user vouched for."""
        return list(takewhile(lambda s: s.snapshot_id != self.accepted, snapshots))


def believe(state: TableState, known_uuid: str | None, trust: Trust) -> Progress | None:
    """Progress of the sink in `state`, None for a table nobody has written to.

    `known_uuid` is the table's uuid as the state location remembers it. The offsets of the result are filled in from
    the property where it speaks of the same commit; otherwise `offsets_known` is False.
    """
    stated = state.stated
    _check_identity(state, known_uuid)
    if not state.ancestors:
        if stated:
            raise TableRecreated(
                "the table states progress but has no snapshot",
                detail=f"The table property names snapshot {stated.snapshot_id}.",
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


def _check_identity(state: TableState, known_uuid: str | None) -> None:
    stated_uuid = state.stated.table_uuid if state.stated else None
    for expected in (known_uuid, stated_uuid):
        if expected and expected != state.uuid:
            raise TableRecreated(
                "the table was dropped and created again",
                detail=f"It has uuid {state.uuid}; this sink wrote to {expected}.",
                hint="Start a new sink under another name to fill the new table, or restore the old one.",
            )
    if state.stated and state.stated.fence.retired:
        raise FencedError(
            "another sink took over the table",
            detail=f"It retired sink {state.stated.sink_id}, which committed snapshot {state.stated.snapshot_id} last.",
            hint="Stop this process, and drop its sink.",
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
    foreign = [s for s in since if s.operation != REPLACE]
    if foreign and trust.policy is OnForeignCommit.HALT:
        first = foreign[-1]
        raise ForeignCommit(
            "another writer changed the rows of the table",
            detail=f"Snapshot {first.snapshot_id} ({first.operation}) is not from this sink.",
            hint="Roll the table back to the snapshot before it. To keep its rows: ALTER SINK ... ACCEPT SNAPSHOT "
            f"{since[0].snapshot_id}, or on_foreign_commit='accept' for all that follow.",
        )


def _believe_property(stated: Progress | None, since: list[SnapshotInfo], trust: Trust) -> Progress:
    oldest = since[-1]
    if stated is None:
        raise ProgressUnprovable(
            "the table has snapshots, but none of this sink",
            detail=f"The head is snapshot {since[0].snapshot_id} ({since[0].operation}).",
            hint="A new sink WITH (ADOPT = true) takes over its rows, WITH (SNAPSHOT = true) replaces them. For a sink "
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
    if oldest.parent_id != stated.snapshot_id:
        raise ProgressUnprovable(
            "the snapshots between the last commit of this sink and the oldest one left are gone",
            detail=f"Snapshot {oldest.snapshot_id} follows {oldest.parent_id}; the commit was {stated.snapshot_id}.",
            hint="Foreign changes in between cannot be ruled out. If the rows are right: "
            f"ALTER SINK ... ACCEPT SNAPSHOT {since[0].snapshot_id}.",
        )
    return stated
