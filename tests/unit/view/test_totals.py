"""Totals as sums of pieces: durable, merged in tiers, never silently incomplete."""

import math
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from calve.errors import CheckpointGap, TerminalError
from calve.model.checkpoint import UNKNOWN, CheckpointIdentity, Offsets, SizeHint, canonical_offsets, offsets_digest
from calve.reader.resources import NO_MEMORY
from calve.storage.state import LocalState
from calve.view.sums import add_piece, sum_by_group
from calve.view.totals import FANOUT, MOST_MERGED, TotalsAt, TotalsLimits, TotalsPiece, ViewTotals, path_to

SCHEMA = pa.schema(
    [
        pa.field("_calve__g0", pa.string()),
        pa.field("n", pa.int64()),
        pa.field("c0", pa.int64()),
        pa.field("s0", pa.decimal128(38, 2)),
        pa.field("lo1", pa.int64()),
    ]
)


def piece(*rows: tuple[str | None, int, int, str, int | None]) -> pa.Table:
    exact = [(group, n, c, Decimal(s), low) for group, n, c, s, low in rows]
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in exact], schema=SCHEMA)


def identity(start: int, end: int) -> CheckpointIdentity:
    return CheckpointIdentity("q", start, canonical_offsets(start) if start else None, canonical_offsets(end))


def take(totals: ViewTotals, start: int, end: int, change: pa.Table, epoch: int = 1) -> pa.Table:
    before = totals.at(identity(start, end).start, SCHEMA)
    assert isinstance(before, TotalsAt)
    whole, touched = add_piece(before.table, change, "v")
    totals.record(identity(start, end), change, TotalsAt(whole, ""), epoch=epoch)
    return touched


def table_at(totals: ViewTotals, offsets: Offsets) -> pa.Table:
    found = totals.at(offsets, SCHEMA)
    assert isinstance(found, TotalsAt)
    return found.table


def test_totals_are_the_sum_of_all_checkpoints_however_they_were_merged(tmp_path: Path) -> None:
    totals = ViewTotals(LocalState(tmp_path), "v")
    count = FANOUT * FANOUT + FANOUT + 3
    for i in range(count):
        take(totals, i, i + 1, piece((f"g{i % 3}", 1, 1, "0.01", i), (None, 1, 0, "0", None)))
        totals.committed(canonical_offsets(i + 1), epoch=1)
    found = [TotalsPiece.parse(name) for name in LocalState(tmp_path).list("")]
    assert sorted(piece.checkpoints for piece in found if piece) == [1, 1, 1, 8, 64]
    fresh = table_at(ViewTotals(LocalState(tmp_path), "v"), canonical_offsets(count))
    by_group = {row["_calve__g0"]: row for row in fresh.to_pylist()}
    assert by_group[None]["n"] == count
    assert by_group["g0"]["s0"] == Decimal("0.25")
    assert by_group["g2"]["lo1"] == 2


def test_pieces_are_listed_per_commit_and_not_per_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window may have tens of thousands of checkpoints, and each has a piece until the window is committed."""
    store, listings, list_all = LocalState(tmp_path), list[str](), LocalState.list

    def counted(state: LocalState, prefix: str) -> list[str]:
        listings.append(prefix)
        return list_all(state, prefix)

    monkeypatch.setattr(LocalState, "list", counted)
    totals, count = ViewTotals(store, "v"), 5 * MOST_MERGED
    for i in range(count):
        take(totals, i, i + 1, rows(1))
        totals.committed(None, epoch=1)
    assert len(listings) <= 5
    for i in range(count, count + 10):
        take(totals, i, i + 1, rows(1))
        totals.committed(canonical_offsets(count), epoch=1)
    assert len(listings) <= 5 + 10 * 6
    found = [TotalsPiece.parse(name) for name in list_all(store, "")]
    assert sorted(piece.checkpoints for piece in found if piece) == [1] * 10 + [MOST_MERGED] * 5
    assert total_at(store, count + 10) == count + 10


@pytest.mark.parametrize(
    ("size", "few"),
    [
        (SizeHint(rows=1000), True),
        (SizeHint(bytes=100_000), True),
        (SizeHint(rows=0), True),
        (SizeHint(rows=100_000), False),
        (SizeHint(bytes=1_000_000), False),
        (SizeHint(rows=1000, bytes=1_000_000), False),
        (SizeHint(stored=1), False),
        (UNKNOWN, False),
    ],
    ids=str,
)
def test_additions_are_expected_to_be_few_only_if_the_last_ones_were_and_their_checkpoint_is_known_to_be_small(
    tmp_path: Path, size: SizeHint, *, few: bool
) -> None:
    totals = ViewTotals(LocalState(tmp_path), "v", limits=TotalsLimits(NO_MEMORY, small=1 << 20))
    assert not totals.expects_few(size), "nothing is known of the last ones"
    take(totals, 0, 1, rows(1))
    assert totals.expects_few(size) == few
    assert not totals.expects_few(size), "the first attempt failed: the estimate may be wrong"
    take(totals, 1, 2, rows(1))
    assert totals.expects_few(size) == few
    take(totals, 2, 3, piece(*((f"g{i}", 1, 1, "0", 1) for i in range(10_000))))
    assert not totals.expects_few(size), "the last ones were many"


def test_touched_groups_come_with_their_new_totals_and_empty_ones_are_dropped(tmp_path: Path) -> None:
    totals = ViewTotals(LocalState(tmp_path), "v")
    take(totals, 0, 1, piece(("a", 2, 2, "3.00", 1), ("b", 1, 1, "5.00", 1)))
    touched = take(totals, 1, 2, piece(("a", -2, -2, "-3.00", None)))
    assert touched.to_pylist()[0]["n"] == 0
    assert table_at(totals, canonical_offsets(2)).column("_calve__g0").to_pylist() == ["b"]


def test_removing_more_rows_than_there_are_is_an_error(tmp_path: Path) -> None:
    totals = ViewTotals(LocalState(tmp_path), "v")
    with pytest.raises(TerminalError, match="more rows were removed"):
        take(totals, 0, 1, piece(("a", -1, -1, "0", None)))


def test_a_sum_of_too_many_digits_is_an_error() -> None:
    huge = piece(("a", 1, 1, "9" * 36 + ".99", 1))
    with pytest.raises(TerminalError, match="more than 38 digits"):
        sum_by_group([huge, huge])


def test_a_missing_piece_is_named(tmp_path: Path) -> None:
    totals = ViewTotals(LocalState(tmp_path), "v")
    for i in range(3):
        take(totals, i, i + 1, piece(("a", 1, 1, "1", 1)))
    store = LocalState(tmp_path)
    store.delete(store.list("")[0])
    for position in range(1, 4):
        try:
            ViewTotals(store, "v").at(canonical_offsets(position), SCHEMA)
        except CheckpointGap as error:
            assert "lead from the beginning" in error.detail  # noqa: PT017 - one of the three positions is there
            return
    raise AssertionError("nothing was missed")


def test_parts_are_removed_after_the_merged_piece_exists_and_so_are_dead_ends(tmp_path: Path) -> None:
    totals = ViewTotals(LocalState(tmp_path), "v")
    for i in range(FANOUT):
        take(totals, i, i + 1, piece(("a", 1, 1, "1", 1)))
    take(totals, 3, 99, piece(("a", 1, 1, "1", 1)))
    take(totals, FANOUT, FANOUT + 1, piece(("a", 1, 1, "1", 1)))
    totals.committed(canonical_offsets(FANOUT), epoch=1)
    left = {(p.checkpoints, p.end) for name in LocalState(tmp_path).list("") if (p := TotalsPiece.parse(name))}
    assert sorted(n for n, _ in left) == [1, FANOUT]
    assert table_at(ViewTotals(LocalState(tmp_path), "v"), canonical_offsets(FANOUT + 1)).to_pylist()[0]["n"] == 9


def test_a_crash_between_the_whole_and_the_removal_of_its_parts_does_no_harm(tmp_path: Path) -> None:
    class Undeletable(LocalState):
        def delete(self, name: str) -> None:
            raise OSError(name)

    totals = ViewTotals(Undeletable(tmp_path), "v")
    for i in range(FANOUT):
        take(totals, i, i + 1, piece(("a", 1, 1, "1", 1)))
    with pytest.raises(OSError, match="parquet"):
        totals.committed(canonical_offsets(FANOUT), epoch=1)
    again = ViewTotals(LocalState(tmp_path), "v")
    assert table_at(again, canonical_offsets(FANOUT)).to_pylist()[0]["n"] == FANOUT


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda e: e[0] < e[1]), max_size=15))
def test_a_path_is_found_if_there_is_one_and_is_unbroken(edges: set[tuple[int, int]]) -> None:
    beginning = offsets_digest(None)
    names = {0: beginning} | {i: f"p{i}" for i in range(1, 7)}
    pieces = [TotalsPiece(names[end], names[begin], 1) for begin, end in edges]
    reached = {0}
    for begin, end in sorted(edges):
        if begin in reached:
            reached.add(end)
    path = path_to("p6", pieces)
    assert (path is not None) == (6 in reached)
    if path:
        assert path[0].start == beginning
        assert path[-1].end == "p6"
        assert all(a.end == b.start for a, b in pairwise(path))


FLOATS = [float("-inf"), -1.5, -5e-324, -0.0, 0.0, 5e-324, 2.5, float("inf"), float("nan"), None]


def in_spark(value: float) -> tuple[bool, float]:
    """As Spark orders floats: NaN is above all others."""
    return math.isnan(value), 0.0 if math.isnan(value) else value


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(FLOATS)), min_size=1),
    st.sampled_from([pa.float32(), pa.float64()]),
)
@example([("a", float("nan")), ("a", 5.0)], pa.float64())
@example([("a", 5.0), ("a", float("nan"))], pa.float32())
def test_extremes_of_floats_are_those_of_spark(rows: list[tuple[str, float | None]], kind: pa.DataType) -> None:
    pieces = [
        pa.table({"_calve__g0": [group], "n": [1], "lo0": pa.array([value], kind), "hi1": pa.array([value], kind)})
        for group, value in rows
    ]
    for found in sum_by_group(pieces).to_pylist():
        values = [piece["hi1"][0].as_py() for piece in pieces if piece["_calve__g0"][0].as_py() == found["_calve__g0"]]
        known = [value for value in values if value is not None]
        if not known:
            assert (found["lo0"], found["hi1"]) == (None, None)
            continue
        assert found["lo0"] == pytest.approx(min(known, key=in_spark), rel=0, abs=0, nan_ok=True)
        assert found["hi1"] == pytest.approx(max(known, key=in_spark), rel=0, abs=0, nan_ok=True)


def test_extremes_do_not_depend_on_the_order_of_pieces() -> None:
    zeros = [pa.table({"_calve__g0": ["a"], "n": [1], "lo0": [zero], "hi1": [zero]}) for zero in (0.0, -0.0)]
    for pieces in (zeros, zeros[::-1]):
        (found,) = sum_by_group(pieces).to_pylist()
        assert (math.copysign(1, found["lo0"]), math.copysign(1, found["hi1"])) == (-1, 1)


def test_every_nan_is_the_same() -> None:
    negative = pa.array([-1], pa.int64()).view(pa.float64())
    tables = [pa.table({"_calve__g0": ["a"], "n": [1], "lo0": v, "hi1": v}) for v in (negative, pa.array([1.0]))]
    (found,) = sum_by_group(tables).to_pylist()
    assert found["lo0"] == 1.0
    assert math.isnan(found["hi1"])


def total_at(store: LocalState, position: int) -> int:
    """Rows of group a, as a run that knows nothing yet finds them."""
    table = table_at(ViewTotals(store, "v"), canonical_offsets(position))
    return sum(row["n"] for row in table.to_pylist())


def rows(count: int) -> pa.Table:
    return piece(("a", count, count, "0", 1))


def test_a_fenced_run_does_not_overwrite_the_piece_of_its_successor(tmp_path: Path) -> None:
    """What both joined may have changed between them."""
    store = LocalState(tmp_path)
    fenced, successor = ViewTotals(store, "v"), ViewTotals(store, "v")
    take(fenced, 0, 1, rows(1), epoch=9)
    take(successor, 1, 2, rows(10), epoch=10)
    take(fenced, 1, 2, rows(500), epoch=9)
    assert total_at(store, 2) == 11
    successor.committed(canonical_offsets(2), epoch=10)
    take(successor, 2, 3, rows(1), epoch=10)
    assert total_at(store, 3) == 12


@pytest.mark.parametrize("cuts", [[(1, 4)], [(1, 3), (3, 4)]])
def test_a_fenced_run_that_cuts_its_checkpoints_elsewhere_removes_nothing_of_its_successor(
    tmp_path: Path, cuts: list[tuple[int, int]]
) -> None:
    store = LocalState(tmp_path)
    fenced, successor = ViewTotals(store, "v"), ViewTotals(store, "v")
    take(fenced, 0, 1, rows(1), epoch=9)
    take(successor, 1, 2, rows(10), epoch=10)
    take(successor, 2, 4, rows(10), epoch=10)
    for start, end in cuts:
        take(fenced, start, end, rows(500), epoch=9)
    fenced.committed(canonical_offsets(1), epoch=9)
    assert total_at(store, 4) == 21, "the pieces of the newest epoch count, however few others would lead there"


def test_a_fenced_run_that_merges_leaves_everything_that_its_successor_needs(tmp_path: Path) -> None:
    store = LocalState(tmp_path)
    fenced = ViewTotals(store, "v")
    for i in range(FANOUT):
        take(fenced, i, i + 1, rows(1), epoch=1)
    successor = ViewTotals(store, "v")
    take(successor, FANOUT, FANOUT + 1, rows(1), epoch=2)
    take(successor, FANOUT + 1, FANOUT + 2, rows(1), epoch=2)
    before = set(store.list(""))
    fenced.committed(canonical_offsets(FANOUT), epoch=1)
    assert before <= set(store.list("")), "it saw that there is a newer run"
    assert total_at(store, FANOUT + 2) == FANOUT + 2
    successor.committed(canonical_offsets(FANOUT), epoch=2)
    assert total_at(store, FANOUT + 2) == FANOUT + 2


def test_a_fenced_run_whose_listing_missed_a_merge_of_its_successor_removes_nothing(tmp_path: Path) -> None:
    """Names are not listed in one moment: it may see neither the parts nor the whole."""
    store = LocalState(tmp_path)

    class Torn(LocalState):
        """During one listing the successor merges."""

        torn = False

        def list(self, prefix: str) -> list[str]:
            names = super().list(prefix)
            if self.torn:
                self.torn = False
                successor.committed(canonical_offsets(FANOUT), epoch=2)
                return [name for name in names if name in super(Torn, self).list(prefix)]
            return names

    torn = Torn(tmp_path)
    fenced, successor = ViewTotals(torn, "v"), ViewTotals(store, "v")
    for i in range(FANOUT + 1):
        take(fenced, i, i + 1, rows(1), epoch=1)
    pieces = fenced._pieces()
    torn.torn = True
    pieces = fenced._pieces()
    assert len(pieces) == 1
    fenced._remove([p for p in pieces if path_to(p.start, pieces) is None], 1)
    assert total_at(store, FANOUT + 1) == FANOUT + 1


def test_pieces_that_are_merged_while_they_are_read_are_read_merged(tmp_path: Path) -> None:
    store = LocalState(tmp_path)
    writer = ViewTotals(store, "v")
    for i in range(FANOUT):
        take(writer, i, i + 1, rows(1))

    class Merging(LocalState):
        merged = False

        def read(self, name: str) -> bytes | None:
            if not self.merged:
                self.merged = True
                writer.committed(canonical_offsets(FANOUT), epoch=1)
            return super().read(name)

    table = table_at(ViewTotals(Merging(tmp_path), "v"), canonical_offsets(FANOUT))
    assert table.to_pylist()[0]["n"] == FANOUT


def test_pieces_of_earlier_versions_have_no_epoch(tmp_path: Path) -> None:
    store = LocalState(tmp_path)
    take(ViewTotals(store, "v"), 0, 1, rows(3), epoch=0)
    (name,) = store.list("")
    assert name.count(".") == 3
    take(ViewTotals(store, "v"), 1, 2, rows(4), epoch=5)
    assert total_at(store, 2) == 7
