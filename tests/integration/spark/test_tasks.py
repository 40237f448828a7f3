"""Work by Spark tasks: values in order; errors as they are; what the other tasks made is handed back."""

import gc
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from calve.errors import CalveError, SourceLost, TerminalError, TransientError
from calve.spark.tasks import Tasks
from calve.spark.workers import TASK_MODULES
from tests.support.readers import ROOT

PRIMARY = "the work could not be done"


def doubled(work: int, attempt: str) -> tuple[int, str]:
    return 2 * work, attempt


def made(folder: str, work: int, _attempt: str) -> str:
    """A file, or the failure that the number stands for."""
    match work:
        case 0:
            raise TransientError("later")
        case 1:
            raise SourceLost("gone", detail="d ⟧", hint="h")
        case 2:
            raise OSError(28, "No space left on device", "/x")
        case 3:
            raise ModuleNotFoundError("No module named 'calve'")
    path = Path(folder) / str(work)
    path.touch()
    return str(path)


def failed(spark: SparkSession, folder: Path, *works: int) -> CalveError:
    tasks = Tasks[str](PRIMARY, lambda path: Path(path).unlink())
    with pytest.raises(CalveError) as caught:
        tasks.run(spark, works, partial(made, str(folder)))
    return caught.value


def test_values_come_in_the_order_of_the_work(spark: SparkSession) -> None:
    found = Tasks[tuple[int, str]](PRIMARY, lambda _: None).run(spark, list(range(5)), doubled)
    assert [value for value, _ in found] == [0, 2, 4, 6, 8]
    assert len({attempt for _, attempt in found}) == 5, "no two tasks have the same name"


def test_what_finished_tasks_made_is_removed_when_another_fails(spark: SparkSession, tmp_path: Path) -> None:
    assert isinstance(failed(spark, tmp_path, 7, 0, 8, 9), TransientError)
    assert not list(tmp_path.iterdir())
    Tasks[str](PRIMARY, lambda _: None).run(spark, [7, 8], partial(made, str(tmp_path)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7", "8"]


def test_an_error_of_a_task_arrives_as_it_is_and_permanent_ones_come_first(spark: SparkSession, tmp_path: Path) -> None:
    error = failed(spark, tmp_path, 0, 1, 7)
    assert (type(error), error.primary, error.detail, error.hint) == (SourceLost, "gone", "d ⟧", "h")
    error = failed(spark, tmp_path, 2)
    assert (type(error), error.primary) == (TransientError, f"{PRIMARY}: no space is left")


def test_executors_without_calve_are_not_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    error = failed(spark, tmp_path, 3)
    assert isinstance(error, TerminalError)
    assert error.primary == 'Spark\'s executors cannot import the package "calve"'


def test_a_new_worker_has_imported_what_runs_in_tasks(spark: SparkSession) -> None:
    def loaded(_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pickled by value, so that it imports nothing of the tests."""
        yield pa.RecordBatch.from_pydict({"name": [name for name in TASK_MODULES if name in sys.modules]})

    rows = spark.range(0, 1, 1, 1).mapInArrow(loaded, "name string").collect()
    assert tuple(row["name"] for row in rows) == TASK_MODULES


def test_garbage_collections_of_a_worker_leave_out_what_it_was_forked_with(spark: SparkSession) -> None:
    def counted(_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()], "others": [len(gc.get_objects())]})

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(counted, "frozen bigint, others bigint").collect()
    assert row["frozen"] > 10 * row["others"]


LOST = """
import os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
from calve.spark.session import embedded_session
from calve.spark.failures import CAUGHT, failure_of
from tests.support.jvm import QUICK

spark = embedded_session(Path(sys.argv[1]), master="local[1]", conf=QUICK)
spark.range(1).collect()
jvm = spark.sparkContext._gateway.proc
os.killpg(os.getpgid(jvm.pid), signal.SIGKILL) if os.getpgid(jvm.pid) != os.getpgid(0) else jvm.kill()
jvm.wait()
for _ in range(2):
    try:
        spark.range(1).collect()
    except CAUGHT as error:
        found = failure_of(error, "x")
        sys.stdout.write(f"{type(found).__name__}: {found.primary} / {found.hint}\\n")
sys.stdout.flush()
os._exit(0)
"""


def test_a_jvm_that_is_gone_is_told_as_such(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOST, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stdout.splitlines() if "Error: " in line]
    assert len(lines) == 2, done.stdout + done.stderr
    for line in lines:
        assert line == "TerminalError: Spark has stopped / Start the sink again: it resumes where it stopped."
