from dataclasses import replace

from calve.model.checkpoint import offsets_digest
from calve.model.frontier import SEALED, START, Frontier
from calve.model.progress import SHORT, Fence, Progress


def progress(offsets: str, frontier: Frontier = START, generation: int = 0) -> Progress:
    return Progress(
        sink_id="s",
        fence=Fence(2, 7, "run"),
        frontier=frontier,
        lower=START,
        commit_id="c",
        query_id="q",
        checkpoint=3,
        offsets=offsets,
        digest=offsets_digest(offsets),
        table_uuid="t",
        snapshot_id=5,
        sequence_number=6,
        generation=generation,
    )


def test_short_offsets_are_in_every_summary_and_long_ones_in_the_property_alone() -> None:
    for offsets, known in (("x" * SHORT, True), ("x" * (SHORT + 1), False)):
        stated = progress(offsets, generation=2)
        read = Progress.from_summary(stated.to_summary(), snapshot_id=5, sequence_number=6)
        assert read.offsets_known is known
        assert (read.digest, read.generation) == (stated.digest, 2)
        assert Progress.from_property(stated.to_property()) == stated
        assert read.with_offsets_of(stated).offsets == offsets


def test_a_new_generation_opens_a_sealed_table_and_no_other() -> None:
    sealed = progress("1", SEALED, generation=1)
    assert sealed.is_sealed(1)
    assert not sealed.is_sealed(2)
    assert sealed.next_lower(2) == START
    going_on = progress("1", Frontier(9), generation=1)
    assert going_on.next_lower(2) == Frontier(9)


def test_what_a_take_over_states_is_read_back() -> None:
    claim = progress("1").adopted_by(Fence(2, 8, "next"), "t", 4)
    assert (claim.adopting, claim.catching_up, claim.checked().adopted, claim.checked().adopting) == (4, True, 4, None)
    for stated in (claim, claim.checked(), progress("1").retire()):
        assert Progress.from_property(stated.to_property()) == stated
        assert Progress.from_summary(stated.to_summary(), snapshot_id=5, sequence_number=6).adopted == stated.adopted


def test_counters_travel_with_progress_and_a_garbled_one_stops_nothing() -> None:
    counted = replace(progress("1"), commits=3, changes=40, committed_ms=5)
    summary = counted.to_summary()
    again = Progress.from_summary(summary, snapshot_id=counted.snapshot_id, sequence_number=counted.sequence_number)
    assert (again.commits, again.changes, again.committed_ms) == (3, 40, 5)
    assert Progress.from_property(counted.to_property()).changes == 40
    assert not {"calve.commits", "calve.changes", "calve.committed-ms"} & progress("1").to_summary().keys()
    for garbled in ("", "-1", "many", "²"):
        odd = Progress.from_summary(summary | {"calve.commits": garbled}, snapshot_id=1, sequence_number=1)
        assert odd.commits == 0
