from pathlib import Path

import pytest

from calve.runtime.session import driver_memory, local_cores
from calve.runtime.workers import archives_of_spark

GIB = 1 << 30


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[*]", 8),
        ("local[2,4]", 2),
        ("local[*, 4]", 8),
        ("local-cluster[2,1,512]", 8),
    ],
)
def test_a_local_master_says_how_many_tasks_run_at_once(master: str, cores: int) -> None:
    assert local_cores(master, 8) == cores


@pytest.mark.parametrize(("machine", "heap"), [(1 * GIB, 1 * GIB), (3 * GIB, 3 * GIB // 2), (64 * GIB, 4 * GIB)])
def test_the_heap_is_half_of_the_machine_within_bounds(machine: int, heap: int) -> None:
    assert driver_memory(machine) == heap


def test_only_archives_of_spark_itself_leave_the_import_path(tmp_path: Path) -> None:
    home = tmp_path / "pyspark"
    linked = tmp_path / "linked"
    linked.symlink_to(home)
    ours = [f"{home}/python/lib/pyspark.zip", f"{linked}/jars/spark-core.jar"]
    theirs = ["", str(home), "/usr/lib/python311.zip", f"{tmp_path}/userFiles/mine.zip"]
    assert archives_of_spark([*theirs[:2], *ours, *theirs[2:]], home) == ours
