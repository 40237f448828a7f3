"""What a window of many checkpoints leaves, and how much of it is read into memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import ByteType, LongType, StructField, StructType

from calve.clock import RandomIds
from calve.model.change import OP, ORDER_PREFIX, UPSERT
from calve.model.checkpoint import CheckpointEntry, CheckpointIdentity, RowKind, Staged
from calve.model.files import WriteTarget
from calve.model.frontier import BatchDescription, Frontier
from calve.storage.state import open_state
from calve.write.batch import write_batch
from calve.write.staging import StagedBatch, StagedRows, StageFolder, size_of
from tests.integration.write.test_writers import target_for

CHECKPOINTS, ROWS = 100, 10_000
ORDER = f"{ORDER_PREFIX}0"
BESIDE = StructType([StructField(OP, ByteType()), StructField(ORDER, LongType())]).json()
WINDOW = BatchDescription(Frontier(0), Frontier(CHECKPOINTS))


def changes(at: int) -> pa.Table:
    """The changes of a checkpoint, with values that hardly compress."""
    texts = np.random.default_rng(at).bytes(16 * ROWS).hex()
    ids = np.arange(at * ROWS, (at + 1) * ROWS)
    status = [texts[i : i + 32] for i in range(0, len(texts), 32)]
    ops = np.full(ROWS, UPSERT, np.int8)
    return pa.table({"id": ids, "status": status, "amount": ids * 0.1, "customer": ids, OP: ops, ORDER: ids})


def entries_of(parts: list[Staged]) -> list[CheckpointEntry]:
    return [
        CheckpointEntry(CheckpointIdentity("q", at, str(at), str(at + 1)), at, None, part)
        for at, part in enumerate(parts)
    ]


def target_of(spark: SparkSession, folder: Path, **options: Any) -> tuple[WriteTarget, RowKind]:
    columns = spark.createDataFrame([], "id BIGINT, status STRING, amount DOUBLE, customer BIGINT")
    target = target_for(columns, ["id"], folder, **options)
    return target, RowKind(target.schema_json, BESIDE, ("id",), ("id",), "Upsert", append=False, time_column=None)


def test_a_window_that_takes_more_bytes_in_memory_than_it_may_is_not_read_to_its_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = open_state(f"file://{tmp_path}/state")
    folder = StageFolder(store, "stage")
    rows = changes(0).set_column(1, "status", pa.array(["new" * 100] * ROWS))
    staged = [folder.put(rows) for _ in range(3)]
    assert sum(part.bytes for part in staged) < rows.nbytes, "its values repeat"
    target, kind = target_of(spark, tmp_path / "table")
    batch = StagedBatch(store, [StagedRows(entry, kind) for entry in entries_of(staged)], target, WINDOW)
    found = batch.in_memory(4 * rows.nbytes)
    assert found is not None
    assert found.rows.num_rows == 3 * ROWS
    assert found.rows["status"].unique().to_pylist() == ["new" * 100]
    store.delete(staged[2].files[0])  # which is never asked for
    assert batch.in_memory(rows.nbytes) is None


def test_a_window_of_a_hundred_checkpoints_has_as_many_files_as_its_bytes_need(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = open_state(f"file://{tmp_path}/state")
    folder = StageFolder(store, "stage")
    staged = [folder.put(changes(at)) for at in range(CHECKPOINTS)]
    for target_file_size in (512 << 20, 16 << 20):
        target, kind = target_of(spark, tmp_path / "table", target_file_size=target_file_size)
        rows = [StagedRows(entry, kind) for entry in entries_of(staged)]
        frame = StagedBatch(store, rows, target, WINDOW).frame(spark)
        result = write_batch(frame, target, deletes=False, size=size_of(staged), ids=RandomIds())
        assert sum(file.record_count for file in result.data_files) == CHECKPOINTS * ROWS
        written = sum(file.size for file in result.data_files)
        assert written > 16 << 20
        assert len(result.data_files) == -(-written // target_file_size)
