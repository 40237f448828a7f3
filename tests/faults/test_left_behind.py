"""`--until-caught-up` and a sink that cannot catch up."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from calve import faults
from calve.runtime.supervisor import Ending
from tests.support.pipelines import Pipelines

PIPELINE = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE orders FROM LOAD GENERATOR orders (ROWS = 10, UPDATES = 0);
CREATE SINK s FROM orders TO ICEBERG CATALOG lake NAMESPACE shop TABLE orders;
"""


def test_a_sink_that_is_given_up_before_anything_was_recorded_is_not_done(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calve.runtime.supervisor.PATIENCE", 0.0)
    faults.install(faults.parse("files.before=error*"))
    (result,) = Pipelines(tmp_path / "home", spark).run(PIPELINE)
    assert (result.ending, result.exit_code) == (Ending.FAILED, 1)
    assert str(result.cause).startswith("the sink did not catch up")
    assert "injected failure at files.before" in str(result.cause)
