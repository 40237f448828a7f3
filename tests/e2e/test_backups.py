"""What docs/backup.md says of homes that are restored in whole or in part."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from calve.errors import SourceLost
from tests.support.pipelines import Pipelines

pytestmark = pytest.mark.embedded

ROWS = [(1, "a"), (2, "b"), (3, "c")]


def test_a_home_that_is_restored_goes_on_and_one_without_its_state_refuses_to(
    tmp_path: Path, spark: SparkSession
) -> None:
    home, inputs = tmp_path / "home", tmp_path / "in"
    inputs.mkdir()

    def run(statements: str = "") -> BaseException | None:
        (result,) = Pipelines(home, spark).run(statements)
        return result.cause

    def rows() -> list[tuple[Any, ...]]:
        return Pipelines(home, spark).rows("shop.t", "id", "v")  # not with a connection to what was there before

    (inputs / "1.json").write_text('{"id": 1, "v": "a"}\n{"id": 2, "v": "old"}\n')
    assert not run(f"""
        CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
        CREATE SOURCE s (id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED)
          FROM FILES (PATH = '{inputs}', FORMAT = 'json');
        CREATE SINK s FROM s TO ICEBERG CATALOG lake NAMESPACE shop TABLE t;
    """)
    shutil.copytree(home, tmp_path / "backup")
    (inputs / "2.json").write_text('{"id": 2, "v": "b"}\n{"id": 3, "v": "c"}\n')
    assert not run()
    assert rows() == ROWS

    newer = tmp_path / "newer"
    home.rename(newer)
    shutil.copytree(tmp_path / "backup", home)
    assert not run()
    assert rows() == ROWS, "the whole home of an earlier moment"

    shutil.rmtree(home)
    shutil.copytree(tmp_path / "backup", home)
    shutil.rmtree(home / "state")
    shutil.copytree(newer / "state", home / "state")
    assert not run()
    assert rows() == ROWS, "an older table with newer state"

    shutil.rmtree(home / "state")
    cause = run()
    assert isinstance(cause, SourceLost)
    assert cause.primary == "the ledger of a file source is incomplete"
