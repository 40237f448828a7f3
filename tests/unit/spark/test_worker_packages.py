import re
import tomllib

import pytest
from typer.testing import CliRunner

from calve.cli.main import app
from calve.errors import InvalidInput
from calve.spark import worker_packages
from calve.spark.worker_packages import WorkerExtra, worker_requirements
from tests.support.readers import ROOT


def test_workers_get_the_versions_of_this_environment_and_nothing_of_spark_or_the_command_line() -> None:
    lines = worker_requirements([])
    assert all(re.fullmatch(r"[a-z0-9-]+==\S+", line) for line in lines)
    names = {line.partition("==")[0] for line in lines}
    assert names >= {"pyarrow", "pyiceberg", "numpy", "pydantic", "pydantic-core", "typing-extensions"}
    assert not names & {"pyspark", "py4j", "pandas", "typer", "prompt-toolkit", "duckdb", "boto3", "confluent-kafka"}


def test_the_command_adds_what_extras_need() -> None:
    result = CliRunner().invoke(app, ["worker-requirements", "--extra", "kafka", "--extra", "aws"])
    assert result.exit_code == 0
    assert result.stdout.splitlines() == list(worker_requirements([WorkerExtra.KAFKA, WorkerExtra.AWS]))
    names = set(re.findall(r"^[a-z0-9-]+", result.stdout, re.MULTILINE))
    assert {"boto3", "botocore", "confluent-kafka", "fastavro"} <= names


def test_an_extra_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_packages, "_EXTRAS", {WorkerExtra.KAFKA: ("no-such-package",)})
    with pytest.raises(InvalidInput, match="no-such-package is not installed here") as raised:
        worker_requirements([WorkerExtra.KAFKA])
    assert raised.value.hint == 'pip install "calve[kafka]"'


def test_extras_are_those_of_the_project() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, packages in worker_packages._EXTRAS.items():
        assert {re.split(r"[<>=]", one)[0] for one in extras[extra]} == set(packages)
