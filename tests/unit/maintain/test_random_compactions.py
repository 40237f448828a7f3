"""Random batches go on while compactions run: rows found by index and by scan are those of a dictionary, always."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.partitioning import PartitionSpec

from calve.clock import RandomIds, SystemClock
from calve.iceberg.planning.compaction_groups import BY_HAND, CompactionPolicy
from calve.keylookup.index import key_index
from calve.keylookup.index.manifest import Run
from calve.maintain import rewrite
from calve.maintain.beside import ProcessesBeside
from calve.maintain.compact import CompactionScope, Compactor, RewrittenFiles
from calve.maintain.convert import ConversionTools
from calve.model.spec import KeyIndexUse, RowOrder, TableName, WriteOptions
from tests.support.compaction import rewritten
from tests.support.foreign import NAME, Row, in_order
from tests.support.keyed import KeyedTable, no_session
from tests.support.readers import duckdb_rows
from tests.unit.keylookup.test_random import CASES, SCHEMA, check_vectors, files_of, random_row

pytestmark = pytest.mark.long

POLICIES = [
    BY_HAND,
    CompactionPolicy(deleted_share=0.2, fan=3, rows=10_000),
    CompactionPolicy(deleted_share=0.5, fan=2, rows=20),
]

SOME_SMALL = 4_500
"""Bytes: some files of these tables are smaller, others are not."""

ORDERS = [
    RowOrder(),
    RowOrder(("v", "at")),
    RowOrder(("region", "V", "price", "day", "at", "raw"), interleaved=True),
]


SPILLING = {"HELD_BYTES": 0, "SLICE_BYTES": 500, "SLICE_ROWS": 7}
"""Unsorted rows wait in a file instead of memory, in small portions and slices."""


@pytest.fixture
def set_sizes(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, int]], None]:
    """Sets sizes of `rewrite`."""

    def set_them(sizes: dict[str, int]) -> None:
        for name, value in sizes.items():
            monkeypatch.setattr(rewrite, name, value)

    return set_them


def compactor(table: KeyedTable, rng: random.Random) -> Compactor:
    """With files of any size, so that some groups give several."""
    options = WriteOptions(target_file_size=rng.choice([2_000, 4_000, 1_000_000]))
    scope = CompactionScope(TableName.parse(NAME), options=options, order=rng.choice(ORDERS))
    return Compactor(table.ref.lake.open(), scope, ConversionTools(no_session, SystemClock(), RandomIds()))


def change(table: KeyedTable, rng: random.Random, *, equality: bool) -> None:
    changes = {table.key_of(row): row for row in (random_row(rng) for _ in range(rng.choice([1, 5, 40])))}
    gone = [row for row in changes.values() if rng.random() < 0.3]
    kept: list[Row] = [row for row in changes.values() if row not in gone]
    table.apply(files_of(table, kept, rng), kept, gone, equality=equality)


RUNS = [
    pytest.param(
        key,
        spec,
        seed,
        3 if seed % 3 == 2 else 2,
        id=f"{'-'.join(key)}-{number}-{seed}",
        marks=() if seed < 3 and (number + seed) % 3 == 0 else pytest.mark.soak,
    )
    for number, (key, spec) in enumerate(CASES)
    for seed in range(13)
]
"""Every key with one of three kinds of changes: by position, by equality, and in format version 3."""


@pytest.mark.parametrize(("key", "spec", "seed", "version"), RUNS)
def test_rows_changed_between_plan_and_commit_of_a_compaction_are_as_they_were_changed(
    key: list[str],
    spec: PartitionSpec,
    seed: int,
    version: int,
    tmp_path: Path,
    set_sizes: Callable[[dict[str, int]], None],
) -> None:
    rng = random.Random(seed)
    set_sizes({"SMALL_BYTES": rng.choice([0, SOME_SMALL, 1 << 20]), **(SPILLING if seed % 2 else {})})
    table = KeyedTable(tmp_path, SCHEMA, key, spec, version=version)
    waiting: list[tuple[Compactor, RewrittenFiles]] = []
    committed = 0
    steps = 10
    while steps > 0 or not committed:  # every step may be unlucky: others took the files of all that waited
        steps -= 1
        assert steps > -50, "no compaction was ever committed"
        if rng.random() < 0.5:
            table.resolver = table.new_resolver(rng.choice([KeyIndexUse.ON, KeyIndexUse.OFF]))
        change(table, rng, equality=version == 2 and seed % 4 == 0 and rng.random() < 0.4)
        if rng.random() < 0.7:
            one = compactor(table, rng)
            plan = one.plan(rng.choice(POLICIES))
            if plan is not None:
                waiting.append((one, rewritten(one, plan)))
        if waiting and rng.random() < 0.5:
            one, ready = waiting.pop(rng.randrange(len(waiting)))
            learnt = table.resolver.prepared([file for group in ready.groups for file in group.files])
            if one.commit(ready) is not None:
                committed += 1
                table.resolver.adopt(learnt)
            assert in_order(table.rows()) == in_order(table.contents.values())
        if version == 3:
            check_vectors(table)
    change(table, rng, equality=False)
    assert in_order(duckdb_rows(table.table.metadata_location)) == in_order(table.contents.values())
    table.close()


@pytest.mark.parametrize("beside", [False, True])
def test_keys_of_new_files_are_in_the_index_before_a_batch_asks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, beside: bool
) -> None:
    """Whether this process indexes them, or one beside it."""
    rng = random.Random(6)
    table = KeyedTable(tmp_path, SCHEMA, ["id"], index=KeyIndexUse.ON)
    processes, calls = ProcessesBeside(1), list[object]()

    def call(work: Callable[[], tuple[Run, ...]]) -> tuple[Run, ...]:
        calls.append(work)
        return processes.call(work)

    if beside:
        monkeypatch.setattr(key_index, "APART_ROWS", 0)
        table.resolver = table.new_resolver(apart=call)
    for _ in range(3):
        change(table, rng, equality=False)
    one = compactor(table, random.Random(1))
    plan = one.plan(BY_HAND)
    assert plan is not None
    ready = rewritten(one, plan)
    (file,) = ready.groups[0].files
    learnt = table.resolver.prepared([file])
    assert len(calls) == beside
    processes.close()
    assert one.commit(ready) is not None
    table.resolver.adopt(learnt)
    place, aside = Path(file.path.removeprefix("file://")), tmp_path / "aside"
    place.rename(aside)
    gone = list(table.contents.values())[:3]
    table.apply([], [], gone)
    aside.rename(place)
    assert in_order(duckdb_rows(table.table.metadata_location)) == in_order(table.contents.values())
    table.close()
