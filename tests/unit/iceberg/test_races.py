"""Several processes on one table."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.iceberg.sample import Sample

ROOT = Path(__file__).parents[3]
COMMITS = 12

WRITER = """
import sys
from pathlib import Path
from calve.errors import CommitConflict
from tests.unit.iceberg.sample import Sample
home, sink, first, commits = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
sample = Sample(home, sink_id=sink)
print("ready", flush=True)
sys.stdin.readline()
conflicts = 0
for key in range(first, first + commits):
    proposal = sample.proposal({key: sink, -1: f"{sink} {key}"}, deletes=[key, -1])
    while True:
        try:
            sample.iceberg.commit(sample.iceberg.load(), proposal)
            break
        except CommitConflict:
            conflicts += 1
print(conflicts)
sample.close()
"""


@pytest.mark.long
def test_writers_that_race_lose_no_row_and_double_none(tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), f"sink-{n}", str(100 * n), str(COMMITS)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(3)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    conflicts = [int(writer.communicate(timeout=120)[0]) for writer in writers]
    assert sum(conflicts) > 0
    rows = sample.rows()
    contested = rows.pop(-1)
    assert rows == {100 * n + k: f"sink-{n}" for n in range(3) for k in range(COMMITS)}
    assert contested in {f"sink-{n} {100 * n + COMMITS - 1}" for n in range(3)}
    assert len(sample.iceberg.load().ancestors) == 3 * COMMITS
    sample.close()
