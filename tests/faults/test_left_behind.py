"""`--until-caught-up` and a sink that cannot catch up."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from calve import faults
from calve.pipeline.supervisor import Ending
from tests.faults.where import TABLE, Where
from tests.support.pipelines import Pipelines

SOURCE = "CREATE SOURCE orders FROM LOAD GENERATOR orders (ROWS = 10, UPDATES = 0);"


def test_a_sink_that_is_given_up_before_anything_was_recorded_is_not_done(
    spark: SparkSession, tmp_path: Path, where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calve.pipeline.supervisor.PATIENCE", 0.0)
    faults.install(faults.parse("files.before=error*"))
    pipelines = Pipelines(tmp_path / "home", spark, where.environment)
    (result,) = pipelines.run(where.connections + SOURCE + where.sink("orders", TABLE))
    assert (result.ending, result.exit_code) == (Ending.FAILED, 1)
    assert str(result.cause).startswith("the sink did not catch up")
    assert "injected failure at files.before" in str(result.cause)
