"""The files that a task stages."""

from pathlib import Path

import pyarrow as pa
import pytest

from calve.storage.state import LocalState
from calve.write import staging
from calve.write.staging import StageFolder


@pytest.mark.parametrize(("width", "rows_per_file"), [(1, 1000), (100, 200)], ids=["rows", "bytes"])
def test_a_file_ends_at_a_number_of_rows_or_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, rows_per_file: int
) -> None:
    monkeypatch.setattr(staging, "_ROWS_PER_FILE", 1000)
    monkeypatch.setattr(staging, "_BYTES_PER_FILE", 20_000)
    batches = [pa.record_batch({"c0": ["x" * width] * 100}) for _ in range(20)]
    store = LocalState(tmp_path)
    staged = staging._stage_partition(StageFolder(store, "stage"), ("name",), iter(batches), "")
    assert staged.rows == 2000
    assert len(staged.files) == 2000 // rows_per_file
    assert staging.schema_of(store, staged.files[0]).names == ["name"]


def test_wide_rows_end_a_file_long_before_a_million_of_them(tmp_path: Path) -> None:
    batch = pa.record_batch({"c0": ["x" * 1024] * 1024})
    staged = staging._stage_partition(StageFolder(LocalState(tmp_path), "stage"), ("name",), iter([batch] * 300), "")
    assert staged.rows == 300 * 1024
    assert len(staged.files) == 3, "of 128 MB in memory"
