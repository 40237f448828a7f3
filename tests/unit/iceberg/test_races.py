"""Several processes on one table."""

from functools import partial
from pathlib import Path

import pytest

from calve.errors import CommitConflict
from tests.support.warm import together
from tests.unit.iceberg.sample import Sample

COMMITS = 12


def write(home: Path, sink: str, first: int) -> int:
    """Commit rows of a writer's own and one that all of them change; returns the number of conflicts."""
    sample = Sample(home, sink_id=sink)
    conflicts = 0
    for key in range(first, first + COMMITS):
        proposal = sample.proposal({key: sink, -1: f"{sink} {key}"}, deletes=[key, -1])
        while True:
            try:
                sample.iceberg.commit(sample.iceberg.load(), proposal)
                break
            except CommitConflict:
                conflicts += 1
    sample.close()
    return conflicts


@pytest.mark.long
def test_writers_that_race_lose_no_row_and_double_none(tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    conflicts = together(*(partial(write, tmp_path, f"sink-{n}", 100 * n) for n in range(3)))
    assert sum(conflicts) > 0
    rows = sample.rows()
    contested = rows.pop(-1)
    assert rows == {100 * n + k: f"sink-{n}" for n in range(3) for k in range(COMMITS)}
    assert contested in {f"sink-{n} {100 * n + COMMITS - 1}" for n in range(3)}
    assert len(sample.iceberg.load().ancestors) == 3 * COMMITS
    sample.close()
