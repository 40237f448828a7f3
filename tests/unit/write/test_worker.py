"""What a task does with a sorted partition, without Spark."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from calve import faults
from calve.errors import TransientError
from calve.model.change import DELETE, OP, UPSERT
from calve.model.files import WriteResult, WriteTarget
from calve.spark.failures import failure_of
from calve.write.data_files import FileNames
from calve.write.worker import TaskPlan, write_partition, write_sorted
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


def test_a_task_writes_rows_and_keys(tmp_path: Path) -> None:
    result = write_partition(plan(target_in(tmp_path)), iter([batch((1, "a", UPSERT))]), "0")
    assert isinstance(result, WriteResult)
    assert len(result.files) == 2


def test_a_task_that_fails_in_the_middle_of_a_file_leaves_no_file(tmp_path: Path) -> None:
    faults.install(faults.parse("task.write:2=error"))
    with pytest.raises(TransientError, match="injected failure"):
        write_partition(plan(target_in(tmp_path)), iter([batch((1, "a", UPSERT))]), "0")
    assert (tmp_path / "data").is_dir(), "a file was begun"
    assert not list(tmp_path.rglob("*.parquet"))


def test_rows_that_stop_midway_leave_no_file(tmp_path: Path) -> None:
    target = target_in(tmp_path)
    small = replace(target, options=replace(target.options, row_group_rows=1))

    def broken() -> Iterator[pa.RecordBatch]:
        yield batch((1, "a", UPSERT), (2, "b", UPSERT), (3, "c", UPSERT))
        assert list(tmp_path.rglob("*.parquet")), "a file was begun"
        raise EOFError

    with pytest.raises(EOFError):
        write_partition(plan(small), broken(), "0")
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_disk_that_gets_full_is_a_transient_error_and_keeps_nothing(tmp_path: Path) -> None:
    target = target_in(tmp_path)
    (tmp_path / "data").mkdir()
    names = FileNames(target, "batch", "0")
    names.fresh()
    Path(names.fresh().removeprefix("file://")).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        write_partition(plan(target), iter([batch((1, "a", UPSERT))]), "0")
    error = failure_of(caught.value, "the batch could not be written")
    assert isinstance(error, TransientError)
    assert error.primary == "the batch could not be written: no space is left"
    assert not list((tmp_path / "data").iterdir())


def test_a_store_that_cannot_be_written_is_a_transient_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    with pytest.raises(OSError) as caught:  # noqa: PT011 - Arrow's words are not ours
        write_partition(plan(target_in(tmp_path)), iter([batch((1, "a", UPSERT))]), "0")
    assert isinstance(failure_of(caught.value, "x"), TransientError)
