"""What reads lose to files, and when a rewrite pays."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from calve.iceberg.planning.compaction_cost import (
    OPEN_FILE,
    SCAN_ROW,
    FileCosts,
    dead_rows,
    read_ratio,
    tradeoff,
)
from calve.iceberg.planning.compaction_groups import AUTOMATIC
from calve.model.scan import DeleteFile, DeleteKind, ScanFile
from calve.pipeline.upkeep import UpkeepPace

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "compaction_costs.py"
MILLION = 1_000_000
SIZE = 16 << 20


def file(name: str, rows: int = MILLION, *deletes: DeleteFile) -> ScanFile:
    return ScanFile(name, rows * 17, rows, 1, deletes=deletes)


def deletes(rows: int, kind: DeleteKind = DeleteKind.POSITION, name: str = "d") -> DeleteFile:
    return DeleteFile(kind, name, 100, rows, 2)


def test_more_deletes_cost_reads_more_and_a_rewrite_less() -> None:
    found = [FileCosts([one]).of(one) for one in (file("f", MILLION, deletes(n)) for n in range(0, MILLION, 100_000))]
    reads, scans = [cost.read for cost in found], [cost.scan for cost in found]
    assert reads == sorted(reads)
    assert scans == sorted(scans, reverse=True)
    vectors = [file("f", MILLION, deletes(n, DeleteKind.VECTOR)) for n in range(0, MILLION, 100_000)]
    rewrites = [FileCosts([one]).of(one).rewrite for one in vectors]
    assert rewrites == sorted(rewrites, reverse=True), "dead rows are not written"


def test_a_vector_costs_less_than_positions_and_equality_deletes_cost_most() -> None:
    kinds = (DeleteKind.VECTOR, DeleteKind.POSITION, DeleteKind.EQUALITY)
    one, two, three = (read_ratio([file("f", MILLION, deletes(100_000, kind))], SIZE) for kind in kinds)
    assert 1 < one < two < three


def test_the_loss_grows_with_reads_and_with_time() -> None:
    cost = FileCosts([worn := file("f", MILLION, deletes(100_000))]).of(worn)
    assert cost.lost(0, 3600, small=False) == cost.lost(60, 0, small=False) == 0
    assert cost.lost(60, 7200, small=False) == pytest.approx(cost.lost(120, 3600, small=False))
    assert cost.lost(1, 3600, small=False) == pytest.approx(cost.deletes / 2), "half of them were there on average"
    assert cost.lost(1, 3600, small=True) == pytest.approx(cost.deletes / 2 + OPEN_FILE)


def test_rewriting_at_break_even_is_the_cheapest_cycle() -> None:
    """For a table that changes steadily, neither a shorter nor a longer cycle costs less."""
    rows, changes_per_second, reads_per_hour = 5 * MILLION, 1000, 60

    def cycle(seconds: int) -> tuple[float, float]:
        """What reads lose and what the rewrite costs."""
        one = file("f", rows, deletes(changes_per_second * seconds))
        cost = FileCosts([one]).of(one)
        return cost.lost(reads_per_hour, seconds, small=False), rows * 7e-7

    def per_second(seconds: int) -> float:
        return sum(cycle(seconds)) / seconds

    even = next(seconds for seconds in range(10, 5000, 10) if cycle(seconds)[0] >= cycle(seconds)[1])
    assert per_second(even) <= min(per_second(even // 2), per_second(even * 2))
    assert per_second(even) == pytest.approx(min(per_second(s) for s in range(10, 5000, 10)), rel=0.01)


def test_deletes_of_several_files_are_shared_in_proportion_to_their_rows() -> None:
    shared = deletes(300_000)
    files = [file("a", 2 * MILLION, shared), file("b", MILLION, shared), file("c")]
    assert dead_rows(files) == {"a": 200_000, "b": 100_000}
    costs = FileCosts(files)
    assert costs.of(files[0]).deletes == pytest.approx(2 * costs.of(files[1]).deletes)
    assert costs.of(files[2]).deletes == 0


def test_no_more_rows_are_dead_than_a_file_has() -> None:
    assert dead_rows([file("f", 10, deletes(70))]) == {"f": 10.0}


def test_a_fresh_table_reads_as_one_and_small_files_cost_their_opening() -> None:
    assert read_ratio([], SIZE) == 1.0
    assert read_ratio([file("f", SIZE // 17)], SIZE) == pytest.approx(1.0, abs=0.01)
    many, scan = read_ratio([file(str(n), 10_000) for n in range(100)], SIZE), MILLION * SCAN_ROW
    assert many == pytest.approx((100 * OPEN_FILE + scan) / (OPEN_FILE + scan), rel=0.01)


@pytest.fixture(scope="module")
def sweep() -> SimpleNamespace:
    """The simulation of the benchmark, which is a script."""
    return SimpleNamespace(**runpy.run_path(str(BENCHMARK), run_name="compaction_costs"))


def test_the_default_rewrites_about_two_rows_per_change_however_fast_a_table_changes(sweep: SimpleNamespace) -> None:
    """Uniform updates: with vectors reads stay fast, with positions they cannot."""
    for kind, slower in ((DeleteKind.POSITION, 3.0), (DeleteKind.VECTOR, 0.5)):
        found = sweep.simulate(sweep.WORKLOADS[0], AUTOMATIC, kind, batch=100_000, seconds=1, batches=120)
        rows, loss = found.rewritten / found.changed, sum(found.ratios) / len(found.ratios) - 1
        assert 1 < rows < 2.2
        assert 0.5 * tradeoff(kind) < rows * loss < 1.5 * tradeoff(kind), "their product is fixed"
        assert loss < slower


def test_the_simulation_plans_as_often_as_a_sink(sweep: SimpleNamespace) -> None:
    assert (UpkeepPace.look_every, UpkeepPace.look_seconds) == (sweep.LOOK_EVERY, sweep.LOOK_SECONDS)


def test_a_table_that_changes_slowly_is_rewritten_for_its_readers(sweep: SimpleNamespace) -> None:
    fast, slow = (
        sweep.simulate(sweep.WORKLOADS[0], AUTOMATIC, DeleteKind.POSITION, batch=100_000, seconds=seconds, batches=120)
        for seconds in (1, 1800)
    )
    assert sum(slow.ratios) < 0.6 * sum(fast.ratios)
    assert slow.rewritten > fast.rewritten
