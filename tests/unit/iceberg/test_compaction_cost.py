"""What reads lose to files, and when a rewrite pays."""

import pytest

from calve.iceberg.planning.compaction_cost import (
    APPLY_POSITION,
    APPLY_VECTOR_POSITION,
    OPEN_FILE,
    SCAN_ROW,
    FileCosts,
    dead_rows,
    read_ratio,
    tradeoff,
)
from calve.model.scan import DeleteFile, DeleteKind, ScanFile

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
    """With the costs of the model, for a table that changes steadily: neither a shorter nor a longer cycle costs less."""
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
    many = read_ratio([file(str(n), 10_000) for n in range(100)], SIZE)
    assert many == pytest.approx(
        (100 * OPEN_FILE + MILLION * SCAN_ROW) / (1.013 * OPEN_FILE + MILLION * SCAN_ROW), 0.01
    )


def test_with_positions_few_rewrites_and_fast_reads_exclude_each_other() -> None:
    """The product is fixed: two rows per change and reads within 1.3 would need 0.6 or less."""
    assert tradeoff(DeleteKind.POSITION) == pytest.approx((APPLY_POSITION + SCAN_ROW) / (2 * SCAN_ROW)) > 6
    assert tradeoff(DeleteKind.VECTOR) == pytest.approx((APPLY_VECTOR_POSITION + SCAN_ROW) / (2 * SCAN_ROW)) < 0.8
