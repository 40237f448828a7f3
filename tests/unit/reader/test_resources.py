"""The memory that caches of all sinks of a process share."""

import gc
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from calve.errors import InvalidInput
from calve.iceberg.files.position_deletes import RowPositions
from calve.iceberg.files.vectors import DeletedRows
from calve.keylookup.index.parts import Parts
from calve.model.checkpoint import canonical_offsets
from calve.model.scan import ScanFile
from calve.reader import resources
from calve.reader.key_positions import KeyMemory, MemoryLimits, RowFlags
from calve.reader.resources import CACHE_MEMORY, MemoryBudget, memory_on, process_memory
from calve.spark import session
from calve.spark.session import machine_cpus, machine_memory
from calve.storage.state import LocalState
from calve.view.totals import ManyTotals, TotalsAt, TotalsLimits, ViewTotals
from tests.unit.keylookup.test_index_parts import entries_of
from tests.unit.view.test_totals_tasks import identity, rows_of

GB = 1 << 30
LONG = 30.0


def test_caches_share_one_budget_and_give_back_what_they_drop(tmp_path: Path) -> None:
    entries, _ = entries_of(list(range(1000)))
    budget = MemoryBudget(2 * entries.size)
    first, second = (Parts(LocalState(tmp_path / name), budget) for name in ("a", "b"))
    first.put("1", entries)
    first.put("2", entries)
    second.put("3", entries)
    assert budget.taken == 2 * entries.size, "the third one found no room"
    first.retain({"1"})
    assert budget.taken == entries.size
    second.put("4", entries)
    assert budget.taken == 2 * entries.size
    del first
    gc.collect()
    assert budget.taken == entries.size, "a sink that is gone holds nothing"


def test_what_is_remembered_of_files_comes_from_the_same_budget() -> None:
    limits = MemoryLimits(positions=100)
    budget = MemoryBudget(10 * 8)
    one, other = KeyMemory(limits, budget), KeyMemory(limits, budget)
    rows = DeletedRows(ScanFile("d", 1, 9, 1), BitMap64([3]), added=np.array([3]))
    one.wrote_vector("v1", rows, 8 * 8)
    assert budget.taken == 72
    other.wrote_vector("v2", rows, 8)
    assert budget.taken == 72, "there was no room left"
    one.retain((), ())
    assert budget.taken == 0
    other.wrote_vector("v2", rows, 8)
    assert budget.taken == 16


def test_closed_caches_hold_nothing_and_keep_nothing_any_more(tmp_path: Path) -> None:
    entries, _ = entries_of(list(range(1000)))
    budget, file = MemoryBudget(GB), ScanFile("d", 1, 9, 1)
    parts, memory = Parts(LocalState(tmp_path), budget), KeyMemory(MemoryLimits(GB, GB, GB), budget)
    known, column = memory.of(file.path), pa.chunked_array([pa.array(range(9))])
    for closed in (False, True):
        part = parts.put(f"{closed}", entries)
        assert len(parts.whole(part)) == 1000
        memory.wrote("p", [RowPositions(file, np.array([1]))])
        memory.wrote_vector("v", DeletedRows(file, BitMap64([3]), added=np.array([3])), 8)
        memory.wrote_ids(f"ids {closed}", np.arange(9))
        memory.keep_columns(known, (int(closed), (1,)), {1: column})
        assert (budget.taken == 0) == closed
        parts.close()
        memory.close()
        assert budget.taken == 0
    assert memory.written_in("p") is None
    assert not memory.knows_ids("ids False")
    del parts, memory
    gc.collect()
    assert budget.taken == 0, "nothing is given back twice"


def test_totals_of_a_view_whose_run_has_ended_hold_nothing_and_are_left_in_the_store(tmp_path: Path) -> None:
    budget, rows = MemoryBudget(GB), rows_of(range(500))
    totals = ViewTotals(LocalState(tmp_path), "v", limits=TotalsLimits(budget, small=10))
    totals.record(identity(0, 1), rows, TotalsAt(rows, ""), epoch=1)
    assert budget.taken
    totals.close()
    assert not budget.taken
    totals.record(identity(1, 2), rows, TotalsAt(rows, ""), epoch=1)
    assert isinstance(totals.at(canonical_offsets(2), rows.schema), ManyTotals)
    assert not budget.taken


def test_a_cache_may_be_collected_while_its_budget_is_changed(tmp_path: Path) -> None:
    budget = MemoryBudget(1000)
    caches = [Parts(LocalState(tmp_path), budget)]

    class Size(int):
        """Collects the cache when it is added."""

        def __radd__(self, other: int) -> int:
            caches.clear()
            gc.collect()
            return other + int(self)

    thread = threading.Thread(target=budget.grow, args=(Size(8),), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it waits for itself"
    assert budget.taken == 8


def test_all_sinks_of_a_process_get_the_same_budget() -> None:
    assert process_memory() is process_memory()


def test_sinks_that_start_at_once_get_the_same_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = 8

    def give_way() -> int:
        return sum(1 for _ in range(1000)) * GB

    def first(start: threading.Barrier) -> MemoryBudget:
        start.wait(LONG)
        return process_memory()

    monkeypatch.setattr(resources, "machine_memory", give_way)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(20):
                monkeypatch.setattr(resources, "_process_memory", cache(resources._process_memory.__wrapped__))
                budgets = list(pool.map(first, [threading.Barrier(threads)] * threads))
                assert all(budget is budgets[0] for budget in budgets)
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize(("machine", "caches"), [(GB, GB // 4), (24 * GB, 2 * GB), (512 * GB, 4 * GB)])
def test_caches_take_a_twelfth_of_the_memory_within_bounds(machine: int, caches: int) -> None:
    assert memory_on(machine) == caches


def test_the_budget_of_a_process_can_be_set_and_must_be_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_MEMORY, "300MB")
    monkeypatch.setattr(resources, "_process_memory", resources._process_memory.__wrapped__)
    assert process_memory().most == 300_000_000
    monkeypatch.setenv(CACHE_MEMORY, "much")
    with pytest.raises(InvalidInput, match='"much" is not a size'):
        process_memory()


def test_the_limit_of_a_container_counts_as_the_memory_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    physical = machine_memory()
    new, old = tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"
    monkeypatch.setattr(session, "_CONTAINER_LIMITS", (new, old))
    new.write_text("max\n")
    old.write_text("9223372036854771712\n")
    assert machine_memory() >= physical, "neither is a limit"
    new.write_text(f"{GB}\n")
    assert machine_memory() == GB
    new.unlink()
    old.write_text(f"{2 * GB}\n")
    assert machine_memory() == 2 * GB


def test_a_container_has_the_cpus_of_its_quota_and_not_those_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    new, quota, period = tmp_path / "cpu.max", tmp_path / "cpu.cfs_quota_us", tmp_path / "cpu.cfs_period_us"
    monkeypatch.setattr(session, "_CPU_QUOTAS", ((new,), (quota, period)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: frozenset(range(64)))
    assert machine_cpus() == 64
    new.write_text("max 100000\n")
    quota.write_text("-1\n")
    period.write_text("100000\n")
    assert machine_cpus() == 64, "neither is a limit"
    new.write_text("250000 100000\n")
    assert machine_cpus() == 3
    new.unlink()
    quota.write_text("50000\n")
    assert machine_cpus() == 1
    quota.write_text("800000\n")
    assert machine_cpus() == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: frozenset({3, 5}))
    assert machine_cpus() == 2


@pytest.mark.parametrize("rows", [1, 8, 9, 1000])
def test_flags_of_rows_are_those_that_were_set(rows: int) -> None:
    rng = np.random.default_rng(rows)
    flags, wanted = RowFlags(rows), np.zeros(rows, bool)
    for _ in range(3):
        positions = rng.integers(0, rows + 5, 40)
        before = flags.copy()
        flags.set(positions)
        assert np.array_equal(before.at(np.arange(rows)), wanted), "a copy does not change"
        wanted[positions[positions < rows]] = True
        assert np.array_equal(flags.at(np.arange(rows)), wanted)
