"""Tasks that are tried again, and batches that Spark does not let the driver take."""

import pickle
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from calve.model.checkpoint import Staged
from calve.model.files import WriteResult
from tests.integration.write.another_session import ROWS
from tests.support.warm import WarmProcess
from tests.unit.write.sample import local, rows_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, warm_process: type[WarmProcess]) -> Path:
    folder = tmp_path_factory.mktemp("another")
    process = warm_process("tests.integration.write.another_session", [str(folder)], {})
    _, printed = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    return folder


@pytest.fixture
def loaded(folder: Path) -> tuple[dict[str, WriteResult], Staged]:
    found: tuple[dict[str, WriteResult], Staged] = pickle.loads((folder / "results").read_bytes())
    return found


@pytest.fixture
def results(loaded: tuple[dict[str, WriteResult], Staged]) -> dict[str, WriteResult]:
    return loaded[0]


def check_rows(result: WriteResult) -> None:
    assert result.changes == ROWS
    for files in (result.data_files, result.delete_files):
        assert sorted(row["id"] for row in rows_of(files)) == list(range(ROWS))


def test_an_attempt_that_fails_midway_removes_its_own_files(folder: Path, results: dict[str, WriteResult]) -> None:
    result = results["retried"]
    check_rows(result)
    there = set((folder / "retried" / "data").iterdir())
    reported = {local(file) for file in result.files}
    assert reported == there, "the first attempts, which had begun files, left none behind"


def test_a_batch_that_the_driver_may_not_take_is_written_by_tasks(results: dict[str, WriteResult]) -> None:
    result = results["large"]
    check_rows(result)
    (file,) = result.data_files
    assert pq.read_metadata(local(file)).created_by.startswith("parquet-mr"), "it is Spark's own"


def test_changes_that_the_driver_may_not_take_are_staged_by_tasks(
    folder: Path, loaded: tuple[dict[str, WriteResult], Staged]
) -> None:
    _, staged = loaded
    assert staged.rows == ROWS
    assert len(staged.files) > 1, "one for each task"
    files = sorted(path.relative_to(folder / "state").as_posix() for path in (folder / "state").rglob("*.parquet"))
    assert files == sorted(staged.files), "and none of the attempt in the driver"
    ids = [number for name in staged.files for number in pq.read_table(folder / "state" / name)["id"].to_pylist()]
    assert sorted(ids) == list(range(ROWS))
