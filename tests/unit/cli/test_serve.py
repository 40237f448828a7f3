"""`calve serve` as a process."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from calve.cli.options import PageOptions
from calve.cli.serve import page_beside, run_page
from calve.cli.show import console
from calve.errors import InvalidInput
from calve.model.health import Health
from tests.support.homes import status_of, write

TOKEN = "a-long-random-text-4711"  # noqa: S105 - of a page that exists in this test alone


def test_a_page_that_other_machines_reach_is_not_started_without_a_token(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="needs a token") as refused:
        run_page(console(), tmp_path, PageOptions("0.0.0.0", 0))  # noqa: S104 - it is refused
    assert "CALVE_TOKEN" in refused.value.hint
    assert refused.value.exit_code == 2


@pytest.mark.long
def test_the_command_serves_page_metrics_and_health_and_ends_well(tmp_path: Path) -> None:
    write(tmp_path, status_of("orders", Health.RUNNING, rows=7), status_of("refunds", Health.HALTED, cause="so"))
    command = [sys.executable, "-m", "calve.cli.main", "serve", "--port", "0", "--home", str(tmp_path)]
    environment = {**os.environ, "CALVE_TOKEN": TOKEN}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = process.stdout.readline()
        address = re.match(r"http://127\.0\.0\.1:\d+/", said)
        assert address, (said, process.stderr.read())
        headers = {"Authorization": f"Bearer {TOKEN}"}
        found = {
            path: requests.get(address[0] + path, headers=headers, timeout=30) for path in ("", "metrics", "healthz")
        }
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        errors = process.stderr.read()
    assert "<title>calve</title>" in found[""].text
    assert (found["healthz"].status_code, found["healthz"].json()["wrong"]) == (503, {"refunds": "halted"})
    sinks = {
        s.labels["sink"] for family in text_string_to_metric_families(found["metrics"].text) for s in family.samples
    }
    assert sinks == {"orders", "refunds"}
    assert TOKEN not in said + errors
    assert errors == ""


def test_a_run_serves_the_page_while_it_lasts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, status_of("orders", Health.RUNNING))
    with page_beside(console(), tmp_path, PageOptions("127.0.0.1", 0)):
        address = capsys.readouterr().out.split()[0]
        assert requests.get(f"{address}api/state", timeout=10).json()["sinks"][0]["name"] == "orders"
        assert requests.get(f"{address}metrics", timeout=10).status_code == 200
    with pytest.raises(requests.ConnectionError):
        requests.get(address, timeout=10)
