"""The steps of a lookup by tasks, without Spark: they find what the driver finds, however the work is divided."""

import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionSpec

from calve.keylookup.index.words import bounds_of_range, range_of
from calve.keylookup.indexed_tasks import TaskAnswer, TaskLookup
from calve.model.spec import KeyIndexUse
from calve.spark.owners import Shuffle
from tests.support.foreign import Row
from tests.support.keyed import KeyedTable
from tests.unit.keylookup.test_index import manifest_of, places
from tests.unit.keylookup.test_random import CASES, SCHEMA, files_of, random_row

Batches = list[pa.RecordBatch]


def shuffled(batches: Iterable[pa.RecordBatch], partitions: int, rng: random.Random) -> list[Batches]:
    """As Spark's shuffle: everything of an owner goes to one partition, in any order."""
    found: list[Batches] = [[] for _ in range(partitions)]
    for batch in batches:
        found[batch.column(1)[0].as_py() * 7 % partitions].append(batch)
    for members in found:
        rng.shuffle(members)
    return found


def run_here(work: TaskLookup, rng: random.Random) -> TaskAnswer:
    """All steps in this process, each as a task gets it."""
    if not work.groups:
        return TaskAnswer()
    work = pickle.loads(pickle.dumps(work))

    def step(
        act: Callable[..., Iterator[tuple[int, object]]], inputs: Sequence[Batches], owners: int
    ) -> Iterator[pa.RecordBatch]:
        for batches in inputs:
            yield from Shuffle(owners).send(act, batches)

    numbers = [[pa.RecordBatch.from_pydict({"owner": [number]})] for number in range(len(work.keys))]
    keys = shuffled(step(work.split_keys, numbers, work.ranges), work.ranges, rng)
    found = shuffled(step(work.find_places, keys, len(work.groups)), len(work.groups), rng)
    answer = TaskAnswer()
    for number, batches in enumerate(found):
        answer = answer.plus(work.write(batches, str(number)))
    return answer


def deleted_by(answer: TaskAnswer) -> list[tuple[str, int]]:
    """What the written files delete, in order."""
    tables = [pq.read_table(file.path.removeprefix("file://")).to_pylist() for file in answer.files]
    return sorted((row["file_path"], row["pos"]) for rows in tables for row in rows)


@pytest.mark.long
@pytest.mark.parametrize(("key", "spec"), CASES, ids=lambda case: "-".join(case) if isinstance(case, list) else "")
def test_tasks_find_every_live_row_once_however_the_work_is_divided(
    key: list[str], spec: PartitionSpec, tmp_path: Path
) -> None:
    rng = random.Random(len(key[0]) + 3 * len(key))
    table = KeyedTable(tmp_path, SCHEMA, key, spec, index=KeyIndexUse.ON)
    for number in range(6):
        changes = {table.key_of(row): row for row in (random_row(rng) for _ in range(rng.choice([1, 5, 40])))}
        rows: list[Row] = list(changes.values())
        if number > 2:
            scan = table.iceberg.plan_keys(table.iceberg.load(), table.keys(rows), ())
            runs = manifest_of(table).runs
            work = TaskLookup.of(scan, runs, table.state, f"n{number}", rng.choice([1, 2, 5]))
            covered = {file.path for run in runs for file in run.files}
            wanted = {place for place in places(table, table.resolved(rows)) if place[0] in covered}
            assert deleted_by(run_here(work, rng)) == sorted(wanted)
        table.apply(files_of(table, rows, rng), rows)
    table.close()


def _table(home: Path) -> tuple[KeyedTable, list[Row]]:
    """A table whose index has the files of all its rows but one, and these rows."""
    table = KeyedTable(home, SCHEMA, ["id"], index=KeyIndexUse.ON)
    rng = random.Random(3)
    rows: list[Row] = [{**random_row(rng), "id": number} for number in range(40)]
    for _ in range(3):
        table.apply([table.data(rows[:20]), table.data(rows[20:])], rows)
    later: list[Row] = [{**rows[0], "id": 15}]
    table.apply([table.data(later)], later)
    return table, rows


def test_a_damaged_part_is_told_to_every_task_so_that_none_takes_its_answer_for_complete(tmp_path: Path) -> None:
    table, rows = _table(tmp_path)
    scan = table.iceberg.plan_keys(table.iceberg.load(), table.keys(rows), ())
    runs = manifest_of(table).runs
    lost = len(runs) - 1
    table.state.put(runs[lost].parts[0].name, b"other")
    work = TaskLookup.of(scan, runs, table.state, "n", 2)
    assert len(work.groups) > 1
    numbers = [pa.RecordBatch.from_pydict({"owner": [number]}) for number in range(len(work.keys))]
    keys = list(Shuffle(work.ranges).send(work.split_keys, numbers))
    places_of = shuffled(Shuffle(len(work.groups)).send(work.find_places, keys), len(work.groups), random.Random(1))
    answers = [work.write(batches, str(number)) for number, batches in enumerate(places_of)]
    assert [answer.lost for answer in answers] == [{lost}] * len(work.groups)
    assert not any(answer.is_complete for answer in answers)
    table.close()


def test_entries_of_another_file_at_the_same_path_are_ignored(tmp_path: Path) -> None:
    table, rows = _table(tmp_path)
    scan = table.iceberg.plan_keys(table.iceberg.load(), table.keys(rows), ())
    runs = manifest_of(table).runs
    known = {file for run in runs for file in run.files}
    assert deleted_by(run_here(TaskLookup.of(scan, runs, table.state, "n", 2), random.Random(1)))
    older = [replace(run, files=tuple(replace(file, size=file.size + 1) for file in run.files)) for run in runs]
    work = replace(TaskLookup.of(scan, runs, table.state, "m", 2), runs=tuple(older))
    assert not {file for run in older for file in run.files} & known
    assert deleted_by(run_here(work, random.Random(1))) == []
    table.close()


def test_keys_that_no_index_can_have_are_told_to_every_task(tmp_path: Path) -> None:
    table, rows = _table(tmp_path)
    runs = manifest_of(table).runs
    long: list[Row] = [{**rows[0], "region": "x" * 300}]
    other = KeyedTable(tmp_path / "other", SCHEMA, ["region"], index=KeyIndexUse.OFF)
    other.apply([other.data(long)], long)
    scan = other.iceberg.plan_keys(other.iceberg.load(), other.keys(long), ())
    work = replace(TaskLookup.of(scan, runs, table.state, "n", 2), groups=(tuple(c.file for c in scan.candidates),))
    answer = run_here(work, random.Random(1))
    assert not answer.is_indexable
    assert not answer.files
    table.close()
    other.close()


@pytest.mark.parametrize("ranges", [1, 2, 3, 7, 64, 1000])
def test_every_hash_belongs_to_the_range_whose_bounds_contain_it(ranges: int) -> None:
    edges = [edge for number in range(ranges) for edge in bounds_of_range(number, ranges)]
    hashes = np.concatenate(
        [np.array(edges, np.uint64), np.random.default_rng(1).integers(0, 1 << 63, 1000, np.uint64)]
    )
    for value, owner in zip(hashes.tolist(), range_of(hashes, ranges).tolist(), strict=True):
        low, high = bounds_of_range(owner, ranges)
        assert low <= value <= high
