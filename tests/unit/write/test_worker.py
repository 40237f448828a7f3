"""What a task does with a sorted partition, without Spark."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from calve import faults
from calve.errors import TransientError, decode
from calve.model.change import DELETE, OP, UPSERT
from calve.model.files import WriteResult
from calve.model.target import WriteTarget
from calve.write.rolling import FileNames
from calve.write.worker import REPORT, TaskFailed, TaskPlan, write_partition, write_sorted
from tests.unit.write.sample import rows_of, target_in


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    yield
    faults.install(None)


def batch(*rows: tuple[int, str | None, int]) -> pa.RecordBatch:
    """Rows of id, status and operation."""
    return pa.record_batch(
        {
            "id": pa.array([r[0] for r in rows], pa.int64()),
            "status": pa.array([r[1] for r in rows], pa.string()),
            "amount": pa.nulls(len(rows), pa.decimal128(12, 2)),
            "updated": pa.nulls(len(rows), pa.timestamp("us", tz="UTC")),
            OP: pa.array([r[2] for r in rows], pa.int8()),
        }
    )


def plan(target: WriteTarget, *, deletes: bool = True) -> TaskPlan:
    return TaskPlan(target, tuple(batch().schema.names), ("id",), last_only=False, deletes=deletes, batch_id="batch")


def test_the_last_change_of_a_key_decides_across_batches(tmp_path: Path) -> None:
    target = target_in(tmp_path)
    batches = [
        batch((1, "a", UPSERT), (1, "b", UPSERT), (2, "a", UPSERT)),
        batch(),
        batch((2, None, DELETE)),
        batch((3, None, DELETE), (3, "back", UPSERT)),
    ]
    result = write_sorted(plan(target), batches, FileNames(target, "batch", "0"))
    assert [(row["id"], row["status"]) for row in rows_of(result.data_files)] == [(1, "b"), (3, "back")]
    assert [row["id"] for row in rows_of(result.delete_files)] == [1, 2, 3]
    assert result.changes == 6


def test_a_table_without_rows_gets_no_deletes(tmp_path: Path) -> None:
    target = target_in(tmp_path)
    batches = [batch((1, "a", UPSERT), (2, None, DELETE))]
    result = write_sorted(plan(target, deletes=False), batches, FileNames(target, "batch", "0"))
    assert [row["id"] for row in rows_of(result.files)] == [1]
    assert not result.delete_files


def test_an_empty_partition_writes_nothing(tmp_path: Path) -> None:
    assert write_sorted(plan(target_in(tmp_path)), [], FileNames(target_in(tmp_path), "batch", "0")).files == ()


def test_a_task_reports_one_pickled_result(tmp_path: Path) -> None:
    (report,) = write_partition(plan(target_in(tmp_path)), iter([batch((1, "a", UPSERT))]))
    result = pickle.loads(report[REPORT][0].as_py())
    assert isinstance(result, WriteResult)
    assert len(result.files) == 2


def test_a_failpoint_in_the_middle_of_a_file_fails_the_task_with_its_error(tmp_path: Path) -> None:
    faults.install(faults.parse("task.write=error"))
    with pytest.raises(TaskFailed) as caught:
        list(write_partition(plan(target_in(tmp_path)), iter([batch((1, "a", UPSERT))])))
    assert decode(str(caught.value)) is not None
    assert list(tmp_path.rglob("*.parquet")), "the file was begun"


def test_a_disk_that_gets_full_is_a_transient_error(tmp_path: Path) -> None:
    target = target_in(tmp_path)
    (tmp_path / "data").mkdir()
    Path(FileNames(target, "batch", "0").fresh().removeprefix("file://")).symlink_to("/dev/full")
    with pytest.raises(TaskFailed) as caught:
        list(write_partition(plan(target), iter([batch((1, "a", UPSERT))])))
    error = decode(str(caught.value))
    assert isinstance(error, TransientError)
    assert error.primary == "the batch could not be written: no space is left"


def test_a_store_that_cannot_be_written_is_a_transient_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    with pytest.raises(TaskFailed) as caught:
        list(write_partition(plan(target_in(tmp_path)), iter([batch((1, "a", UPSERT))])))
    assert isinstance(decode(str(caught.value)), TransientError)
