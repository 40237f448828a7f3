from dataclasses import replace

import pytest

from calve.commit.belief import Trust, believe
from calve.errors import FencedError, ForeignCommit, ProgressUnprovable, TableRecreated, TableRolledBack
from calve.model.checkpoint import offsets_digest
from calve.model.frontier import START, Frontier
from calve.model.progress import Fence, Progress
from calve.model.spec import OnForeignCommit
from calve.model.table import SnapshotInfo, TableState

HALT, ACCEPT = Trust(OnForeignCommit.HALT), Trust(OnForeignCommit.ACCEPT)


def progress(number: int) -> Progress:
    offsets = str(number)
    return Progress(
        sink_id="s",
        fence=Fence(1, 1, "run"),
        frontier=Frontier(number),
        lower=START,
        commit_id=f"c{number}",
        query_id="q",
        checkpoint=number,
        offsets=offsets,
        digest=offsets_digest(offsets),
        table_uuid="t",
        snapshot_id=number,
        sequence_number=number,
    )


def own(number: int, parent: int | None = None) -> SnapshotInfo:
    return SnapshotInfo(number, parent or number - 1, number, "overwrite", replace(progress(number), offsets=None))


def foreign(number: int, operation: str = "append", parent: int | None = None) -> SnapshotInfo:
    return SnapshotInfo(number, parent or number - 1, number, operation, None)


def converted(number: int) -> SnapshotInfo:
    return replace(foreign(number, "delete"), same_rows=True)


def table(*ancestors: SnapshotInfo, stated: int | None = None, uuid: str = "t") -> TableState:
    return TableState(uuid, ancestors, progress(stated) if stated else None, has_data=True)


def test_a_table_nobody_wrote_to_has_no_progress() -> None:
    assert believe(table(), None, HALT) is None


def test_the_newest_own_ancestor_wins_and_takes_its_offsets_from_the_property() -> None:
    found = believe(table(own(3), own(2), stated=3), "t", HALT)
    assert found is not None
    assert (found.snapshot_id, found.offsets, found.offsets_known) == (3, "3", True)


@pytest.mark.parametrize("on_top", [foreign(4, "replace"), converted(4)])
def test_a_compaction_or_conversion_on_top_is_fine(on_top: SnapshotInfo) -> None:
    found = believe(table(on_top, own(3), stated=3), "t", HALT)
    assert found is not None
    assert found.snapshot_id == 3


@pytest.mark.parametrize("operation", ["append", "overwrite", "delete"])
def test_foreign_rows_halt_the_sink_unless_they_are_accepted(operation: str) -> None:
    state = table(foreign(5, "replace"), foreign(4, operation), own(3), stated=3)
    with pytest.raises(ForeignCommit, match=rf"Snapshot 4 \({operation}\)"):
        believe(state, "t", HALT)
    assert believe(state, "t", ACCEPT) is not None


def test_a_property_ahead_of_the_branch_is_a_rollback() -> None:
    with pytest.raises(TableRolledBack, match="snapshot 5"):
        believe(table(own(3), stated=5), "t", HALT)


def test_the_same_sequence_number_under_another_snapshot_is_a_rollback() -> None:
    state = replace(table(own(3)), stated=replace(progress(3), snapshot_id=99))
    with pytest.raises(TableRolledBack, match="snapshot 99"):
        believe(state, "t", HALT)


def test_a_rollback_behind_every_own_snapshot_is_noticed() -> None:
    with pytest.raises(TableRolledBack):
        believe(table(foreign(2, "replace"), stated=3), "t", HALT)


def test_the_property_serves_when_own_snapshots_have_expired() -> None:
    found = believe(table(foreign(4, "replace", parent=3), stated=3), "t", HALT)
    assert found == progress(3)


def test_a_hole_between_the_property_and_the_oldest_snapshot_proves_nothing() -> None:
    with pytest.raises(ProgressUnprovable, match="are gone"):
        believe(table(foreign(6, "replace", parent=5), stated=3), "t", HALT)


def test_a_property_behind_the_newest_own_ancestor_does_not_lend_its_offsets() -> None:
    found = believe(table(own(4), own(3), stated=3), "t", HALT)
    assert found is not None
    assert not found.offsets_known


def test_snapshots_without_any_progress_are_not_ours() -> None:
    with pytest.raises(ProgressUnprovable, match="none of this sink"):
        believe(table(foreign(1)), None, HALT)


@pytest.mark.parametrize("state", [table(own(3), stated=3, uuid="other"), table(uuid="other")])
def test_another_uuid_is_a_recreated_table(state: TableState) -> None:
    with pytest.raises(TableRecreated, match="other"):
        believe(state, "t", HALT)


def test_progress_without_any_snapshot_is_a_recreated_table() -> None:
    with pytest.raises(TableRecreated, match="no snapshot"):
        believe(table(stated=3), None, HALT)


def test_an_accepted_foreign_snapshot_is_built_upon_and_what_follows_it_is_not() -> None:
    trust = Trust(accepted=4, version=2)
    found = believe(table(foreign(4), own(3), stated=3), "t", trust)
    assert found is not None
    assert (found.snapshot_id, found.offsets) == (3, "3")
    with pytest.raises(ForeignCommit, match="another writer changed the rows") as caught:
        believe(table(foreign(5), foreign(4), own(3), stated=3), "t", trust)
    assert "Snapshot 5" in caught.value.detail


def test_an_accepted_rollback_goes_on_from_the_own_snapshot_that_is_left() -> None:
    found = believe(table(own(3), stated=5), "t", Trust(accepted=3, version=2))
    assert found is not None
    assert (found.snapshot_id, found.frontier, found.offsets_known) == (3, Frontier(3), False)


def test_an_accepted_snapshot_stands_for_lost_history() -> None:
    found = believe(table(foreign(6, "replace", parent=5), stated=3), "t", Trust(accepted=6, version=2))
    assert found is not None
    assert found.snapshot_id == 3


def test_an_accepted_snapshot_counts_until_a_run_of_that_version_was_there() -> None:
    spent = Trust(accepted=4, version=1)
    with pytest.raises(ForeignCommit):
        believe(table(foreign(4), own(3), stated=3), "t", spent)


def test_a_new_generation_minds_no_history() -> None:
    anew = Trust(generation=1)
    assert believe(table(foreign(4), foreign(3)), "t", anew) is None
    rolled_back = believe(table(foreign(4), own(3), stated=5), "t", anew)
    assert rolled_back is not None
    with pytest.raises(TableRecreated):
        believe(table(foreign(4), uuid="other"), "t", anew)


ADOPT = Trust(OnForeignCommit.HALT, run_id="mine", adopts=True)


def adopting(number: int, run: str) -> SnapshotInfo:
    said = replace(progress(number), fence=Fence(1, 1, run), offsets=None, adopting=number - 1)
    return SnapshotInfo(number, number - 1, number, "append", said)


def test_rows_of_others_are_taken_over_only_where_nothing_says_that_the_sink_ever_claimed() -> None:
    others = table(foreign(2), foreign(1))
    assert believe(others, None, ADOPT) is None
    with pytest.raises(ProgressUnprovable, match="ADOPT = true"):
        believe(others, None, replace(ADOPT, adopts=False))
    with pytest.raises(TableRolledBack):
        believe(table(foreign(2), foreign(1), stated=3), None, ADOPT)


def test_until_rows_are_checked_those_of_others_are_part_of_what_the_next_claim_takes_over() -> None:
    state = replace(table(foreign(4), adopting(3, "before")), stated=replace(progress(3), adopting=2))
    found = believe(state, "t", ADOPT)
    assert found is not None
    assert (found.adopting, found.offsets) == (2, "3")
    with pytest.raises(ForeignCommit, match="Snapshot 4"):
        believe(replace(state, ancestors=(foreign(4), adopting(3, "mine"))), "t", ADOPT)


def test_a_sink_whose_table_another_one_took_over_is_fenced() -> None:
    state = replace(table(own(3)), stated=progress(3).retire())
    with pytest.raises(FencedError, match="another sink adopted the table"):
        believe(state, "t", HALT)
