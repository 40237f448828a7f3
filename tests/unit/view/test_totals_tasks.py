"""Totals in parts, without Spark: the steps of tasks give the totals that the driver computes, or none at all."""

import pickle
import random
import tracemalloc
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from calve.errors import CheckpointGap, TerminalError
from calve.keylookup.index.words import range_of
from calve.model.change import BAD
from calve.model.checkpoint import CheckpointIdentity, canonical_offsets, offsets_digest
from calve.reader.resources import NO_MEMORY, MemoryBudget
from calve.spark.owners import Shuffle
from calve.storage.state import LocalState, StateStore
from calve.view import blocks, totals_tasks
from calve.view.blocks import GroupPart, HashSelection, LostPiece, PieceContents, encoded_part, group_hashes, rows_after
from calve.view.sums import add_piece, live_groups, sum_by_group
from calve.view.totals import FANOUT, ManyTotals, TotalsAt, TotalsLimits, TotalsPiece, ViewTotals
from calve.view.totals_tasks import PartsAnswer, TotalsMerge, TotalsUpdate, answer_of

MOMENT = datetime(2024, 2, 29, 12, tzinfo=UTC)
KINDS: list[tuple[pa.DataType, Any]] = [
    (pa.string(), lambda n: "é" * (n % 5) + str(n)),
    (pa.binary(), lambda n: bytes([n % 256]) * (n % 300)),
    (pa.int32(), lambda n: n - 50),
    (pa.int64(), lambda n: n << 40),
    (pa.bool_(), lambda n: n % 2 == 0),
    (pa.float64(), lambda n: n / 8),
    (pa.float32(), lambda n: n / 4),
    (pa.decimal128(20, 2), lambda n: Decimal(n - 40) / 4),
    (pa.date32(), lambda n: date(2024, 1, 1) + timedelta(n)),
    (pa.timestamp("us", tz="UTC"), lambda n: MOMENT + timedelta(minutes=n)),
]


def schema_of(kinds: Sequence[pa.DataType]) -> pa.Schema:
    fields = [pa.field(f"_calve__g{number}", kind) for number, kind in enumerate(kinds)]
    return pa.schema(
        [*fields, ("n", pa.int64()), ("c0", pa.int64()), ("s0", pa.decimal128(38, 2)), ("lo1", pa.int64())]
    )


def random_piece(rng: random.Random, schema: pa.Schema, live: dict[tuple[Any, ...], int], *, inserts: bool) -> pa.Table:
    """Additions that keep every group at zero rows or above; `live` becomes the rows after them.

    Only inserts have minima: views with deletes are refused if they need some.
    """
    makers = dict(KINDS)
    kinds = [field.type for field in schema if field.name.startswith("_calve__g")]
    rows = {}
    for _ in range(rng.randint(1, 60)):
        number = rng.randint(0, 120)
        group = tuple(None if rng.random() < 0.1 else makers[kind](number) for kind in kinds)
        count = rng.choice([0 if inserts else -live.get(group, 0), 1, 2, 5]) if group not in rows else 0
        if count:
            live[group] = live.get(group, 0) + count
            rows[group] = (count, count, Decimal(count) / 4, rng.randint(0, 9) if inserts else None)
    values = [dict(zip(schema.names, (*group, *rest), strict=True)) for group, rest in rows.items()]
    return pa.Table.from_pylist(values, schema=schema)


def run_here(update: TotalsUpdate, piece: pa.Table, rng: random.Random) -> PartsAnswer:
    """Both steps in this process, each as a task gets it."""
    update = pickle.loads(pickle.dumps(update))
    rows = piece.append_column(BAD, pa.nulls(piece.num_rows, pa.string()))
    moved: list[list[pa.RecordBatch]] = [[] for _ in range(rng.randint(1, update.ranges))]
    for batch in rows.to_batches(max_chunksize=max(1, piece.num_rows // 3)):
        for part in Shuffle(update.ranges).send(update.split, [batch]):
            moved[part.column(1)[0].as_py() * 7 % len(moved)].append(part)
    for members in moved:
        rng.shuffle(members)
    return answer_of([update.write(batches, str(number)) for number, batches in enumerate(moved)], update.store)


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=repr)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 4)


@pytest.mark.parametrize("seed", range(12))
def test_tasks_compute_the_totals_that_the_driver_computes(tmp_path: Path, seed: int) -> None:
    rng, store = random.Random(seed), LocalState(tmp_path)
    kinds = rng.sample([kind for kind, _ in KINDS], rng.randint(1, 3))
    schema, live = schema_of(kinds), dict[tuple[Any, ...], int]()
    totals, pieces = schema.empty_table(), list[PieceContents]()
    for number in range(8):
        piece = random_piece(rng, schema, live, inserts=seed % 2 == 0)
        update = TotalsUpdate(store, "v", tuple(pieces), schema, rng.choice([1, 2, 5]), f"parts/{number}")
        answer = run_here(update, piece, rng)
        totals, touched = add_piece(totals, piece, "v")
        found = [rows_after(store, part) for part in answer.parts]
        assert in_order(pa.concat_tables([schema.empty_table(), *found])) == in_order(touched)
        record = PieceContents.of_parts(f"r{number}", answer.parts, "")
        pieces.append(record if rng.random() < 0.7 else plain(store, f"r{number}", piece))
        if len(pieces) > 3 and rng.random() < 0.5:
            merge = TotalsMerge(
                store, "v", tuple(pieces), whole=True, ranges=rng.choice([1, 3]), stem=f"parts/m{number}"
            )
            merged = [merge.task(at, f"{at}/0") for at in range(merge.ranges)]
            pieces = [PieceContents.of_parts(f"m{number}", answer_of(merged, store).parts, "")]
        whole = live_groups(sum_by_group([schema.empty_table(), *tables_of(pieces, store)]), "v")
        assert in_order(whole) == in_order(totals)


def plain(store: StateStore, name: str, rows: pa.Table) -> PieceContents:
    contents = PieceContents.of_rows(name, rows, "")
    store.put(name, contents.encoded(rows))
    return contents


def tables_of(pieces: Sequence[PieceContents], store: StateStore) -> Iterator[pa.Table]:
    for piece in pieces:
        yield from piece.tables(store)


@pytest.mark.parametrize(("kind", "make"), KINDS, ids=[str(kind) for kind, _ in KINDS])
def test_a_hash_depends_on_the_group_and_on_nothing_beside_it(kind: pa.DataType, make: Any) -> None:
    values = [make(n) for n in range(40)] + [None]
    table = pa.table({"_calve__g0": pa.array(values, kind), "n": range(41)})
    hashes = group_hashes(table)
    assert len(set(hashes.tolist())) == len(set(values))
    for row in (0, 7, 40):
        assert group_hashes(table.slice(row, 1)).tolist() == hashes[row : row + 1].tolist()
    chunks = pa.concat_tables([table.slice(0, 3), table.slice(3)])
    assert group_hashes(chunks).tolist() == hashes.tolist()
    spread = np.bincount(range_of(group_hashes(pa.table({"_calve__g0": range(4000)})), 4), minlength=4)
    assert spread.min() > 800


def test_hashes_are_those_that_stored_parts_are_sorted_by() -> None:
    """Another function would not find what is stored."""
    table = pa.table({"_calve__g0": ["a", "", None, "anna"], "_calve__g1": [1, 2, 3, None]})
    assert group_hashes(table).tolist() == [
        5096408954919516742,
        2359578160264495009,
        1705668957364015467,
        13378693283790025627,
    ]


def test_hashing_needs_little_memory_beside_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [str(n) * (n % 40) for n in range(100_000)]
    table = pa.table({"_calve__g0": pa.array([*texts, None])}).slice(3)
    tracemalloc.start()
    hashes = group_hashes(table)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 6 * table.nbytes
    monkeypatch.setattr(blocks, "_TEXT_BYTES", 64)
    assert group_hashes(table.slice(0, 1000)).tolist() == hashes[:1000].tolist()


def part_of(store: LocalState, rows: pa.Table, after: pa.Table | None = None) -> GroupPart:
    part, data = encoded_part("parts/p", rows, after)
    store.put(part.name, data)
    return part


def rows_of(numbers: Sequence[int]) -> pa.Table:
    schema = schema_of([pa.int64()])
    values = [dict(zip(schema.names, (n, 1, 1, Decimal(n), n), strict=True)) for n in numbers]
    return pa.Table.from_pylist(values, schema=schema)


def test_a_task_reads_only_the_blocks_of_its_groups(tmp_path: Path) -> None:
    class Counted(LocalState):
        asked = 0

        def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None:
            self.asked += sum(length for _, length in ranges)
            return super().read_ranges(name, ranges)

    store, rows = Counted(tmp_path), rows_of(range(1000))
    piece = PieceContents.of_parts("r", [part_of(store, rows)], "")
    wanted = rows.filter(pa.array([row["_calve__g0"] in (5, 700) for row in rows.to_pylist()]))
    found = pa.concat_tables(piece.tables(store, HashSelection.of(group_hashes(wanted))))
    assert in_order(found) == in_order(wanted)
    few = store.asked
    assert len(pa.concat_tables(piece.tables(store))) == 1000
    assert few * 5 < store.asked - few


@pytest.mark.parametrize("place", ["first block", "after", "footer", "truncated", "missing", "another"])
def test_a_damaged_part_is_detected_and_its_piece_is_lost(tmp_path: Path, place: str) -> None:
    store, rows = LocalState(tmp_path), rows_of(range(50))
    part = part_of(store, rows, rows)
    data = bytearray(store.read(part.name) or b"")
    at = {"first block": 40, "after": part.end + 40, "footer": len(data) - 3}.get(place)
    if at is not None:
        data[at] ^= 1
        store.put(part.name, bytes(data))
    elif place == "truncated":
        store.put(part.name, bytes(data[:-8]))
    elif place == "missing":
        store.delete(part.name)
    else:
        store.put(part.name, encoded_part("parts/q", rows, rows)[1])
    if place == "after":
        assert len(pa.concat_tables(PieceContents.of_parts("r", [part], "").tables(store))) == 50
        with pytest.raises(blocks.DamagedPart):
            rows_after(store, part)
    else:
        with pytest.raises(LostPiece):
            PieceContents.of_parts("r", [part], "").tables(store)
        update = TotalsUpdate(store, "v", (PieceContents.of_parts("r", [part], ""),), rows.schema, 2, "parts/n")
        with pytest.raises(LostPiece):
            run_here(update, rows_of([7, 8, 9]), random.Random(1))
        assert not [name for name in store.list("") if name.startswith("parts/n")], "nothing is left of the others"


def test_more_rows_removed_than_there_are_is_an_error_of_the_task_and_leaves_no_part(tmp_path: Path) -> None:
    store, rows = LocalState(tmp_path), rows_of([1])
    update = TotalsUpdate(store, "v", (), rows.schema, 1, "parts/n")
    with pytest.raises(TerminalError, match="more rows were removed"):
        run_here(update, rows.set_column(1, "n", pa.array([-1])), random.Random(1))
    assert store.list("") == []


# ---- pieces of both kinds


def identity(start: int, end: int) -> CheckpointIdentity:
    return CheckpointIdentity("q", start, canonical_offsets(start) if start else None, canonical_offsets(end))


def put_parts(totals: ViewTotals, number: int, piece: pa.Table, epoch: int = 1) -> tuple[GroupPart, ...]:
    """What a checkpoint by tasks does, in this process."""
    before = totals.at(identity(number, number + 1).start, piece.schema)
    pieces = before.pieces if isinstance(before, ManyTotals) else ()
    update = TotalsUpdate(totals.store, "v", pieces, piece.schema, 2, f"parts/{epoch}-{number}")
    parts = run_here(update, piece, random.Random(number)).parts
    totals.record_parts(identity(number, number + 1), parts, f"s{number}", epoch=epoch)
    return parts


MANY = TotalsLimits(NO_MEMORY, small=0)
BEGINNING = offsets_digest(None)


def sum_at(store: LocalState, position: int, limits: TotalsLimits = MANY) -> tuple[int, str]:
    """Rows of all groups, as a run that knows nothing yet finds them, and what static tables they stem from."""
    found = ViewTotals(store, "v", limits=limits).at(canonical_offsets(position), rows_of([]).schema)
    tables = [found.table] if isinstance(found, TotalsAt) else list(tables_of(found.pieces, store))
    assert isinstance(found, TotalsAt) == (limits is not MANY)
    return sum(sum(table["n"].to_pylist()) for table in tables), found.static


def test_totals_that_do_not_fit_are_left_in_the_store_and_counted_in_the_budget_if_they_do(tmp_path: Path) -> None:
    store, memory = LocalState(tmp_path), MemoryBudget(800_000)
    totals = ViewTotals(store, "v", limits=TotalsLimits(memory, small=10))
    rows = rows_of(range(500))
    before = totals.at(None, rows.schema)
    assert isinstance(before, TotalsAt)
    whole, _ = add_piece(before.table, rows, "v")
    totals.record(identity(0, 1), rows, TotalsAt(whole, ""), epoch=1)
    assert memory.taken == whole.nbytes
    assert isinstance(totals.at(canonical_offsets(1), rows.schema), TotalsAt)
    more = rows_of(range(500, 5000))
    whole, _ = add_piece(whole, more, "v")
    totals.record(identity(1, 2), more, TotalsAt(whole, ""), epoch=1)
    assert memory.taken == 0
    assert isinstance(totals.at(canonical_offsets(2), rows.schema), ManyTotals)
    again = ViewTotals(store, "v", limits=TotalsLimits(memory, small=10))
    assert isinstance(again.at(canonical_offsets(2), rows.schema), ManyTotals)
    del totals, again
    assert memory.taken == 0


def test_a_view_that_fits_reads_pieces_of_parts_as_well(tmp_path: Path) -> None:
    store = LocalState(tmp_path)
    totals = ViewTotals(store, "v", limits=MANY)
    for number in range(3):
        put_parts(totals, number, rows_of(range(number, number + 9)))
    assert sum_at(store, 3) == (27, "s2")
    assert sum_at(store, 3, TotalsLimits(MemoryBudget(1 << 20))) == (27, "s2")


def test_parts_without_a_record_do_not_count_and_a_later_run_removes_them(tmp_path: Path) -> None:
    store = LocalState(tmp_path)
    first = ViewTotals(store, "v", limits=MANY)
    put_parts(first, 0, rows_of(range(9)))
    run_here(TotalsUpdate(store, "v", (), rows_of([]).schema, 2, "parts/lost"), rows_of(range(50)), random.Random(1))
    assert sum_at(store, 1) == (9, "s0")
    later = ViewTotals(store, "v", limits=MANY)
    put_parts(later, 1, rows_of(range(9)), epoch=2)
    later.committed(canonical_offsets(1), epoch=2)
    assert [name for name in store.list("parts") if "lost" in name], "a successor might be about to name them"
    later.committed(canonical_offsets(2), epoch=2)
    assert not [name for name in store.list("parts") if "lost" in name]
    assert sum_at(store, 2) == (18, "s1")


def test_parts_that_a_failed_attempt_left_are_removed_by_the_same_run(tmp_path: Path) -> None:
    store = LocalState(tmp_path)
    totals = ViewTotals(store, "v", limits=MANY)
    for number in range(FANOUT - 1):
        if number in {2, 4}:
            update = TotalsUpdate(store, "v", (), rows_of([]).schema, 2, f"parts/lost{number}")
            run_here(update, rows_of(range(50)), random.Random(1))
        put_parts(totals, number, rows_of(range(9)))
        totals.committed(canonical_offsets(number + 1), epoch=1)
    assert not [name for name in store.list("parts") if "lost" in name]
    assert sum_at(store, FANOUT - 1) == (9 * (FANOUT - 1), f"s{FANOUT - 2}")


def test_parts_that_are_listed_before_the_record_that_names_them_stay(tmp_path: Path) -> None:
    store = LocalState(tmp_path)
    totals = ViewTotals(store, "v", limits=MANY)
    put_parts(totals, 0, rows_of(range(9)))
    totals.committed(canonical_offsets(1), epoch=1)
    put_parts(totals, 1, rows_of(range(9)))
    update = TotalsUpdate(store, "v", (), rows_of([]).schema, 2, "parts/late")
    parts = run_here(update, rows_of(range(9)), random.Random(1)).parts
    totals.committed(canonical_offsets(2), epoch=1)
    totals.record_parts(identity(2, 3), parts, "late", epoch=1)
    totals.committed(canonical_offsets(3), epoch=1)
    put_parts(totals, 3, rows_of(range(9)))
    totals.committed(canonical_offsets(4), epoch=1)
    assert sum_at(store, 4) == (36, "s3")


def test_parts_that_the_record_of_a_lost_piece_names_stay(tmp_path: Path) -> None:
    store = LocalState(tmp_path)
    totals = ViewTotals(store, "v", limits=MANY)
    (kept, data), (gone, _) = (encoded_part(f"parts/{name}", rows_of(range(9))) for name in ("kept", "gone"))
    name = TotalsPiece("elsewhere", BEGINNING, 3, 1).name
    store.put(kept.name, data)
    store.put(name, PieceContents.of_parts(name, [kept, gone], "").encoded())
    totals._lose(name)
    for number in range(4):
        put_parts(totals, number, rows_of(range(9)))
        totals.committed(canonical_offsets(number + 1), epoch=1)
    assert kept.name in store.list("parts")


def test_a_repeated_checkpoint_replaces_the_parts_of_its_first_attempt(tmp_path: Path) -> None:
    store = LocalState(tmp_path)
    totals = ViewTotals(store, "v", limits=MANY)
    put_parts(totals, 0, rows_of(range(9)))
    old = set(store.list("parts"))
    update = TotalsUpdate(store, "v", (), rows_of([]).schema, 2, "parts/again")
    parts = run_here(update, rows_of(range(20)), random.Random(1)).parts
    totals.record_parts(identity(0, 1), parts, "s", epoch=1)
    assert not old & set(store.list("parts"))
    assert sum_at(store, 1) == (20, "s")


def test_a_piece_whose_part_is_missing_is_absent_and_another_path_is_taken_if_there_is_one(tmp_path: Path) -> None:
    store = LocalState(tmp_path)
    totals = ViewTotals(store, "v", limits=MANY)
    put_parts(totals, 0, rows_of(range(9)))
    put_parts(totals, 1, rows_of(range(9)))
    both = rows_of(range(9))
    parts = run_here(TotalsUpdate(store, "v", (), both.schema, 1, "parts/w"), both, random.Random(1)).parts
    totals.record_parts(CheckpointIdentity("q", 0, None, canonical_offsets(2)), parts, "whole", epoch=2)
    assert sum_at(store, 2) == (9, "whole"), "the newest epoch counts"
    store.delete(parts[0].name)
    fits = TotalsLimits(MemoryBudget(1 << 20))
    assert sum_at(store, 2, fits) == (18, "s1")
    for part in store.list("parts"):
        store.delete(part)
    with pytest.raises(CheckpointGap, match="missing or damaged"):
        sum_at(store, 2, fits)


def test_a_damaged_record_of_rows_is_detected(tmp_path: Path) -> None:
    store = LocalState(tmp_path)
    totals = ViewTotals(store, "v")
    rows = rows_of(range(200))
    totals.record(identity(0, 1), rows, TotalsAt(rows, ""), epoch=1)
    (name,) = store.list("")
    data = bytearray(store.read(name) or b"")
    data[100] ^= 1
    store.put(name, bytes(data))
    with pytest.raises(CheckpointGap, match="missing or damaged"):
        sum_at(store, 1, TotalsLimits(MemoryBudget(1 << 20)))


def test_a_record_that_names_parts_has_none_of_the_columns_of_totals(tmp_path: Path) -> None:
    """A version that knows no parts has to fail, and not to find nothing."""
    store = LocalState(tmp_path)
    put_parts(ViewTotals(store, "v", limits=MANY), 0, rows_of(range(9)))
    (name,) = [name for name in store.list("") if TotalsPiece.parse(name)]
    with pytest.raises((ValueError, pa.ArrowException)):
        sum_by_group([rows_of([]), pq.read_table(pa.BufferReader(store.read(name) or b""))])


def merged_here(merge: TotalsMerge, _spark: object) -> tuple[GroupPart, ...]:
    """A merge in this process instead of Spark tasks."""
    return answer_of([merge.task(at, f"{at}/0") for at in range(merge.ranges)], merge.store).parts


def test_merges_of_parts_keep_the_sum_and_remove_parts_after_their_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalState(tmp_path)

    monkeypatch.setattr(TotalsMerge, "run", merged_here)
    monkeypatch.setattr(totals_tasks, "RANGE_ROWS", 20)
    totals = ViewTotals(store, "v", limits=MANY, spark=cast("SparkSession", object()))
    for number in range(FANOUT + 2):
        put_parts(totals, number, rows_of(range(number, number + 9)))
        totals.committed(canonical_offsets(number + 1), epoch=1)
    pieces = [piece for name in store.list("") if (piece := TotalsPiece.parse(name))]
    assert sorted(piece.checkpoints for piece in pieces) == [1, 1, FANOUT]
    named = {part.name for piece in pieces for part in blocks.read_piece(store, piece.name)[0].parts or ()}
    assert set(store.list("parts")) == named
    assert sum_at(store, FANOUT + 2) == (9 * (FANOUT + 2), f"s{FANOUT + 1}")


def test_the_driver_has_a_few_of_the_pieces_that_it_merges_in_memory(tmp_path: Path) -> None:
    class Watched(LocalState):
        most = 0

        def read(self, name: str) -> bytes | None:
            self.most = max(self.most, pa.total_allocated_bytes())
            return super().read(name)

    store, rows = Watched(tmp_path), rows_of(range(20_000))
    limits = TotalsLimits(MemoryBudget(8 << 20))
    totals = ViewTotals(store, "v", limits=limits)
    for number in range(FANOUT):
        totals.record(identity(number, number + 1), rows, TotalsAt(rows, ""), epoch=1)
    store.most, before = 0, pa.total_allocated_bytes()
    totals.committed(canonical_offsets(FANOUT), epoch=1)
    assert 0 < store.most - before < 4 * limits.most < FANOUT * rows.nbytes
    assert sum_at(store, FANOUT, limits) == (20_000 * FANOUT, "")


def test_pieces_whose_sum_does_not_fit_the_driver_are_merged_by_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TotalsMerge, "run", merged_here)
    store, pieces = LocalState(tmp_path), [rows_of(range(100 * n, 100 * n + 100)) for n in range(FANOUT)]
    limits = TotalsLimits(NO_MEMORY, small=3 * pieces[0].nbytes)
    totals = ViewTotals(store, "v", limits=limits, spark=cast("SparkSession", object()))
    for number, rows in enumerate(pieces):
        totals.record(identity(number, number + 1), rows, TotalsAt(rows, "s"), epoch=1)
    totals.committed(canonical_offsets(FANOUT), epoch=1)
    (name,) = [name for name in store.list("") if TotalsPiece.parse(name)]
    assert blocks.read_piece(store, name)[0].parts
    assert sum_at(store, FANOUT) == (100 * FANOUT, "s")


def test_checkpoints_that_touch_no_group_are_merged(tmp_path: Path) -> None:
    store = LocalState(tmp_path)
    totals = ViewTotals(store, "v", limits=MANY)
    for number in range(FANOUT):
        totals.record_parts(identity(number, number + 1), (), "s", epoch=1)
    totals.committed(canonical_offsets(FANOUT), epoch=1)
    assert len(store.list("")) == 1
    assert sum_at(store, FANOUT, TotalsLimits(MemoryBudget(1 << 20))) == (0, "s")


def test_large_records_of_earlier_checkpoints_are_split_into_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalState(tmp_path)

    monkeypatch.setattr(TotalsMerge, "run", merged_here)
    before, rows = ViewTotals(store, "v"), rows_of(range(100))
    before.record(identity(0, 1), rows, TotalsAt(rows, "old"), epoch=1)
    after = ViewTotals(store, "v", limits=MANY, spark=cast("SparkSession", object()))
    put_parts(after, 1, rows_of(range(9)), epoch=2)
    after.committed(canonical_offsets(1), epoch=2)
    pieces = [piece for name in store.list("") if (piece := TotalsPiece.parse(name))]
    assert {piece.epoch for piece in pieces} == {2}
    assert all(blocks.read_piece(store, piece.name)[0].parts is not None for piece in pieces)
    assert sum_at(store, 2) == (109, "s1")


def test_a_piece_that_an_older_run_left_without_its_parts_does_not_keep_others_from_being_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TotalsMerge, "run", merged_here)
    store = LocalState(tmp_path)
    totals = ViewTotals(store, "v", limits=MANY, spark=cast("SparkSession", object()))
    count = FANOUT + 3
    for number in range(count):
        put_parts(totals, number, rows_of(range(9)))
    totals.committed(canonical_offsets(1), epoch=1)
    broken, _ = encoded_part("parts/gone", rows_of(range(9)))
    name = TotalsPiece(offsets_digest(canonical_offsets(3)), BEGINNING, 3, 1).name
    store.put(name, PieceContents.of_parts(name, [broken], "").encoded())
    for _ in range(2):
        assert name in store.list("")
        totals.committed(canonical_offsets(count), epoch=1)
    found = [piece for record in store.list("") if record != name and (piece := TotalsPiece.parse(record))]
    assert [piece.checkpoints for piece in found] == [count]
    assert sum_at(store, count)[0] == 9 * count
