"""A disk that gets full while a batch is written: nothing of the failed attempt stays, and the next one succeeds."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from calve.clock import RandomIds
from calve.errors import TransientError
from calve.model.change import BAD, OP, UPSERT
from calve.model.checkpoint import RowKind, SizeHint
from calve.storage.state import open_state
from calve.write.batch import write_batch
from calve.write.staging import StageFolder, stage_batch
from tests.integration.write.test_batch import WAYS, written
from tests.integration.write.test_writers import target_for
from tests.unit.write.sample import rows_of

ROWS = 100_000
"""Some six megabytes of values that do not compress."""
KIND = RowKind("", "", ("id",), ("id",), "Upsert", append=False, time_column=None)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of its own, too small for a batch."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def changes(spark: SparkSession, rows: int = ROWS, parts: int = 2) -> DataFrame:
    return spark.range(0, rows, 1, parts).selectExpr(
        "id",
        "sha2(cast(id as string), 256) AS noise",
        f"CAST({UPSERT} AS TINYINT) AS {OP}",
        "id AS _calve_order_0",
        f"CAST(NULL AS STRING) AS {BAD}",
    )


def used(folder: Path) -> int:
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def enlarge(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_that_fills_the_disk_leaves_no_file_of_it(spark: SparkSession, disk: Path, way: str) -> None:
    frame = changes(spark)
    for _ in range(2):
        with pytest.raises(TransientError, match="the batch could not be written: no space is left"):
            written(frame, disk, way)
        assert not list(disk.rglob("*.parquet"))
        assert used(disk) < 64 << 10, "a retry finds as much room as the first attempt did"
    enlarge(disk)
    result = written(frame, disk, way)
    assert sorted(row["id"] for row in rows_of(result.data_files)) == list(range(ROWS))
    assert len(list(disk.rglob("*.parquet"))) == len(result.files)


@pytest.mark.parametrize("size", [SizeHint(rows=ROWS), SizeHint(rows=10 * ROWS)], ids=["driver", "tasks"])
def test_a_stage_that_fills_the_disk_leaves_no_file_of_it(spark: SparkSession, disk: Path, size: SizeHint) -> None:
    frame = changes(spark)
    folder = StageFolder(open_state(str(disk)), "stage")
    for _ in range(2):
        with pytest.raises(TransientError, match="could not write the state record") as failed:
            stage_batch(frame, target_for(frame, ["id"], disk), folder, KIND, size=size)
        assert "No space left" in failed.value.detail
        assert used(disk) < 64 << 10
    enlarge(disk)
    staged = stage_batch(frame, target_for(frame, ["id"], disk), folder, KIND, size=size)
    assert staged.rows == ROWS
    assert len(list(disk.rglob("*.parquet"))) == len(staged.files)


def test_the_files_of_a_batch_that_succeeds_stay(spark: SparkSession, disk: Path) -> None:
    enlarge(disk)
    frame = changes(spark, 10)
    result = write_batch(frame, target_for(frame, ["id"], disk), deletes=True, size=SizeHint(rows=10), ids=RandomIds())
    assert len(list(disk.rglob("*.parquet"))) == len(result.files) == 2
