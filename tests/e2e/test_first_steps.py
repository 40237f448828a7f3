"""What a new user encounters: a misspelt folder, a restart without work, a name that is taken."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import calve
from calve.cli.main import app
from calve.errors import InvalidInput, TransientError
from calve.model.health import Health
from calve.pipeline import supervisor
from calve.watch.status_files import read_statuses
from tests.support.pipelines import Pipelines

pytestmark = pytest.mark.embedded


def test_a_missing_folder_is_no_success_and_its_sink_goes_on_once_it_is_there(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_WAIT", 0.01)
    pipelines = Pipelines(tmp_path / "home", spark)
    (tmp_path / "orders").mkdir()
    (result,) = pipelines.run(f"""
        CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
        CREATE SOURCE s (id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED)
          FROM FILES (PATH = '{tmp_path}/ordres', FORMAT = 'json');
        CREATE SINK s FROM s TO ICEBERG CATALOG lake NAMESPACE shop TABLE t;
    """)
    assert f'there is no folder {tmp_path}/ordres. Did you mean "orders"?' in "".join(caplog.messages)
    assert result.exit_code == 1
    assert isinstance(result.cause, TransientError)
    assert result.cause.primary == f"the folder {tmp_path}/ordres did not exist"
    (status,) = read_statuses(pipelines.home)
    assert (status.health, "did not exist" in status.cause) == (Health.HALTED, True)

    (tmp_path / "ordres").mkdir()
    (tmp_path / "ordres" / "1.json").write_text('{"id": 1, "v": "a"}\n')
    (result,) = pipelines.run()
    assert result.exit_code == 0, result.cause
    assert pipelines.rows("shop.t", "id", "v") == [(1, "a")]


def test_a_restart_without_work_keeps_what_the_status_said(tmp_path: Path, spark: SparkSession) -> None:
    pipelines = Pipelines(tmp_path / "home", spark)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"id": 1, "v": "a"}\n{"id": "bad", "v": "b"}\n{"id": 3, "v": "c"}\n')
    (result,) = pipelines.run(f"""
        CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
        CREATE SOURCE s (id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED)
          FROM FILES (PATH = '{tmp_path}/in', FORMAT = 'json');
        CREATE SINK s FROM s TO ICEBERG CATALOG lake NAMESPACE shop TABLE t WITH (ON BAD ROW = 'dead letter');
    """)
    assert result.exit_code == 0, result.cause
    (before,) = read_statuses(pipelines.home)
    assert (before.rows, before.dead_letters, before.commits > 0) == (2, 1, True)
    printed = CliRunner().invoke(app, ["letters", "s", "--format", "json", "--home", str(pipelines.home)]).stdout
    (letter,) = [json.loads(line) for line in printed.splitlines()]
    assert json.loads(letter["value"]) == {"id": "bad", "v": "b"}
    assert letter["file"].endswith("1.json")
    (result,) = pipelines.run()
    assert result.exit_code == 0, result.cause
    (after,) = read_statuses(pipelines.home)
    same = replace(after, updated_ms=before.updated_ms, epoch=before.epoch, input=before.input, minted=before.minted)
    assert (same.commits, same.rows, same.dead_letters) == (before.commits, 2, 1)
    assert (same.last_snapshot_id, same.last_commit_ms) == (before.last_snapshot_id, before.last_commit_ms)
    pipelines.apply("DROP SINK s")
    assert read_statuses(pipelines.home) == []


def test_one_name_is_not_given_to_two_tables_at_once(tmp_path: Path, spark: SparkSession) -> None:
    lake = calve.connect(home=tmp_path / "home")
    endless = calve.orders(rows=10, changes=None, per_checkpoint=10)
    first = calve.sink(endless, name="r", into=lake.table("shop.a"), key=["id"]).start()
    try:
        with pytest.raises(InvalidInput, match='another sink "r" is running') as raised:
            calve.sink(calve.orders(rows=1), name="r", into=lake.table("shop.b"), key=["id"]).start()
        assert raised.value.detail == "It writes to table shop.a, this one to shop.b."
    finally:
        first.stop()
    second = calve.sink(calve.orders(rows=1, changes=0), name="r", into=lake.table("shop.b"), key=["id"]).start()
    assert second.await_termination(120)
    assert spark.version
