"""What a window of many checkpoints leaves: files by bytes, however often it was staged."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import ByteType, LongType, StructField, StructType

from calve.clock import RandomIds
from calve.model.change import OP, ORDER_PREFIX, UPSERT
from calve.model.checkpoint import CheckpointEntry, CheckpointIdentity, RowKind
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


def test_a_window_of_a_hundred_checkpoints_has_as_many_files_as_its_bytes_need(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = open_state(f"file://{tmp_path}/state")
    folder = StageFolder(store, "stage")
    staged = [folder.put(changes(at)) for at in range(CHECKPOINTS)]
    entries = [
        CheckpointEntry(CheckpointIdentity("q", at, str(at), str(at + 1)), at, None, part)
        for at, part in enumerate(staged)
    ]
    columns = spark.createDataFrame([], "id BIGINT, status STRING, amount DOUBLE, customer BIGINT")
    for target_file_size in (512 << 20, 16 << 20):
        target = target_for(columns, ["id"], tmp_path / "table", target_file_size=target_file_size)
        kind = RowKind(target.schema_json, BESIDE, ("id",), ("id",), "Upsert", append=False, time_column=None)
        frame = StagedBatch(store, [StagedRows(entry, kind) for entry in entries], target, WINDOW).frame(spark)
        result = write_batch(frame, target, deletes=False, size=size_of(staged), ids=RandomIds())
        assert sum(file.record_count for file in result.data_files) == CHECKPOINTS * ROWS
        written = sum(file.size for file in result.data_files)
        assert written > 16 << 20
        assert len(result.data_files) == -(-written // target_file_size)
