"""Which statement of progress to believe.

The newest own ancestor of the branch's head wins. The table property serves where that ancestor has expired, and shows
rollbacks where it is ahead. Whatever cannot be proven halts the sink: it never starts from scratch in silence.
"""

from collections.abc import Sequence

from calve.errors import ForeignCommit, ProgressUnprovable, TableRecreated, TableRolledBack
from calve.model.progress import Progress
from calve.model.spec import OnForeignCommit
from calve.model.table import REPLACE, SnapshotInfo, TableState


def believe(state: TableState, known_uuid: str | None, policy: OnForeignCommit) -> Progress | None:
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
            if stated:
                _check_rollback(stated, snapshot)
            _check_foreign(since, policy)
            return snapshot.own.with_offsets_of(stated) if stated else snapshot.own
        since.append(snapshot)
    return _believe_property(stated, since, policy)


def _check_identity(state: TableState, known_uuid: str | None) -> None:
    stated_uuid = state.stated.table_uuid if state.stated else None
    for expected in (known_uuid, stated_uuid):
        if expected and expected != state.uuid:
            raise TableRecreated(
                "the table was dropped and created again",
                detail=f"It has uuid {state.uuid}; this sink wrote to {expected}.",
                hint="Start a new sink under another name to fill the new table, or restore the old one.",
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


def _check_foreign(since: Sequence[SnapshotInfo], policy: OnForeignCommit) -> None:
    foreign = [s for s in since if s.operation != REPLACE]
    if foreign and policy is OnForeignCommit.HALT:
        first = foreign[-1]
        raise ForeignCommit(
            "another writer changed the rows of the table",
            detail=f"Snapshot {first.snapshot_id} ({first.operation}) is not from this sink.",
            hint="Roll the table back to the snapshot before it, or set on_foreign_commit='accept' to keep its rows.",
        )


def _believe_property(stated: Progress | None, since: list[SnapshotInfo], policy: OnForeignCommit) -> Progress:
    oldest = since[-1]
    if stated is None:
        raise ProgressUnprovable(
            "the table has snapshots, but none of this sink",
            detail=f"The head is snapshot {since[0].snapshot_id} ({since[0].operation}).",
            hint="calve fills tables that it made, or empty ones. Choose another table.",
        )
    if stated.sequence_number >= oldest.sequence_number:
        raise TableRolledBack(
            "the table was rolled back behind a commit of this sink",
            detail=f"The last commit was snapshot {stated.snapshot_id}, which the branch no longer contains.",
            hint=f"Set the branch forward to snapshot {stated.snapshot_id}, or start a new sink into a new table.",
        )
    _check_foreign(since, policy)
    if oldest.parent_id != stated.snapshot_id:
        raise ProgressUnprovable(
            "the snapshots between the last commit of this sink and the oldest one left are gone",
            detail=f"Snapshot {oldest.snapshot_id} follows {oldest.parent_id}; the commit was {stated.snapshot_id}.",
            hint="Foreign changes in between cannot be ruled out. Start a new sink into a new table.",
        )
    return stated
