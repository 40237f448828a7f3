"""Which batch is closed next, where checkpoints of one window differ."""

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from calve.commit.takeover import RunPosition, extend
from calve.commit.windows import Closing
from calve.model.checkpoint import CheckpointEntry, CheckpointIdentity, FrontierEntry, RowKind, Staged
from calve.model.files import Committable
from calve.model.frontier import SEALED, START, BatchDescription, Frontier
from calve.model.spec import LateRows, RowTimes, SinkSpec, TableName, Upsert

SPEC = SinkSpec("s", "sink", TableName(("n",), "t"), ("id",), Upsert(("seq",)), window_ms=1000)
TIMED = replace(SPEC, times=RowTimes(LateRows.ERROR, field="ts"))


@dataclass
class At:
    """A clock that stands."""

    ms: int = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


def kind(name: str, spec: SinkSpec = SPEC) -> RowKind:
    return RowKind.of(spec, columns=name)


@dataclass
class Run:
    """The position of a run, and its rules."""

    spec: SinkSpec = SPEC
    clock: At = field(default_factory=At)
    position: RunPosition = field(default_factory=RunPosition)

    def __post_init__(self) -> None:
        self.closing = Closing(self.spec, self.clock)
        self._checkpoints = 0

    def stage(self, time: int, columns: str, rows: int = 1) -> None:
        self._add(time, Staged(("f",) * bool(rows), rows, rows, kind=kind(columns)))

    def stage_timed(self, low: int, high: int, columns: str, frontier: int = 0) -> None:
        staged = Staged(("f",), 1, 1, frontier, low, high, tuple(sorted({low, high})), kind=kind(columns, TIMED))
        self._add(high, staged)

    def _add(self, time: int, staged: Staged) -> None:
        at, self._checkpoints = self._checkpoints, self._checkpoints + 1
        identity = CheckpointIdentity("q", at, str(at) if at else None, str(at + 1))
        extend(self.position, CheckpointEntry(identity, time, None, staged))

    def close(self, now_ms: int | None = None) -> tuple[BatchDescription, list[str]] | None:
        """The next batch, and the columns of the rows in it."""
        self.clock.ms = self.clock.ms if now_ms is None else now_ms
        batch = self.closing.next_batch(self.position)
        if batch is None:
            return None
        held = [e.staged.kind for e in self.position.staged if e.staged and e.staged.rows and e.reaches_into(batch)]
        committable = Committable("c", batch, "q", 0, None)
        extend(self.position, FrontierEntry(self.position.last_time, committable))
        return batch, [found.columns for found in held if found]


def batch(lower: int, upper: int) -> BatchDescription:
    return BatchDescription(Frontier(lower), Frontier(upper))


def test_a_window_is_split_at_the_first_checkpoint_with_other_columns_without_waiting_for_its_end() -> None:
    run = Run()
    run.stage(1010, "a")
    run.stage(1020, "a")
    assert run.close(1030) is None
    run.stage(1040, "b")
    run.stage(1050, "b")
    assert run.closing.until_due(run.position) == 0
    assert run.close(1060) == (batch(0, 1040), ["a", "a"])
    assert run.close(1060) is None
    assert run.close(2000) == (batch(1040, 2000), ["b", "b"])


def test_only_the_last_part_of_a_split_is_sealed() -> None:
    run = Run()
    for time, columns in ((1010, "a"), (1020, "b"), (1030, "a")):
        run.stage(time, columns)
    run.closing.flush(seal=True)
    assert run.close(1040) == (batch(0, 1020), ["a"])
    assert run.close(1040) == (batch(1020, 1030), ["b"])
    assert run.close(1040) == (BatchDescription(Frontier(1030), SEALED), ["a"])


def test_a_checkpoint_without_rows_splits_nothing() -> None:
    run = Run()
    run.stage(1010, "a")
    run.stage(1020, "b", rows=0)
    run.stage(1030, "a")
    assert run.close(1040) is None
    assert run.close(2000) == (batch(0, 2000), ["a", "a"])


def test_windows_that_are_not_to_be_joined_are_not_joined_by_a_split() -> None:
    run = Run(replace(SPEC, coalesce=False))
    for time, columns in ((1010, "a"), (2010, "a"), (2020, "b")):
        run.stage(time, columns)
    assert run.close(2030) == (batch(0, 2000), ["a"])
    assert run.close(2030) == (batch(2000, 2020), ["a"])


def test_rows_with_times_of_their_own_share_a_batch_whatever_their_columns() -> None:
    run = Run(TIMED)
    run.stage_timed(1500, 2500, "a", frontier=1000)
    run.stage_timed(1600, 2600, "b", frontier=2100)
    assert run.close() == (batch(0, 2000), ["a", "b"])


def test_rows_by_the_clock_wait_no_more_once_rows_have_times_of_their_own() -> None:
    run = Run(TIMED)
    run.stage(5010, "a")
    run.stage(5020, "a")
    assert run.close(5030) == (batch(0, 5021), ["a", "a"])


STEPS = st.lists(
    st.tuples(st.integers(0, 1500), st.sampled_from(["", "a", "b", "c"]), st.booleans(), st.booleans()), max_size=40
)


@given(STEPS, st.booleans(), st.sampled_from([None, 3]))
def test_split_windows_tile_time_and_no_batch_has_rows_of_two_kinds(
    steps: list[tuple[int, str, bool, bool]],
    coalesce: bool,  # noqa: FBT001 - drawn
    size: int | None,
) -> None:
    """Time passes, checkpoints of any columns come, with rows or without, somebody looks or not; then the seal."""
    run = Run(replace(SPEC, coalesce=coalesce, commit_bytes=size), At(1_000_000))
    staged, held, minted = 0, 0, START
    for passed, columns, rows, looks in steps:
        run.clock.ms += passed
        if columns:
            run.stage(max(run.clock.ms, run.position.last_time + 1), columns, rows=int(rows))
            staged += rows
        found = run.close() if looks else None
        if found:
            assert found[0].lower == minted
            assert not found[0].upper.sealed
            assert len(set(found[1])) <= 1
            held, minted = held + len(found[1]), found[0].upper
            run.position.last_time = max(run.position.last_time, (minted.time or 0) - 1)
    run.closing.flush(seal=True)
    while run.position.staged:
        found = run.close()
        assert found, "a flush leaves nothing"
        assert found[0].lower == minted
        assert len(set(found[1])) <= 1
        held, minted = held + len(found[1]), found[0].upper
        assert minted.sealed == (not run.position.staged)
    assert held == staged
