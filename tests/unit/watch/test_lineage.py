"""An event for OpenLineage after every commit, and no commit that waits for it."""

import json
import threading
from pathlib import Path

import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.transport.transport import Transport

from calve import open_lineage as lineage
from calve.model.health import CommitReport
from calve.open_lineage import emit_lineage
from tests.support.runs import Run, spec_of


def test_every_commit_is_an_event_with_the_version_it_made(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    client = OpenLineageClient(transport=FileTransport(FileConfig(str(file), append=True)))
    run = Run(tmp_path / "home", spec_of("orders"))
    with emit_lineage(client):
        run.commit({1: "a", 2: "b"})
        run.commit({1: "c"})
    run.commit({5: "nobody listens"})
    run.monitor.ended(None, sealed=False, pending=0)
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert [event["eventType"] for event in events] == ["COMPLETE", "COMPLETE"]
    assert {event["job"]["name"] for event in events} == {"orders"}
    assert len({event["run"]["runId"] for event in events}) == 2
    first = events[0]["outputs"][0]
    assert first["name"] == "shop.orders"
    assert first["outputFacets"]["outputStatistics"]["rowCount"] == 2
    reports = run.monitor.recent_commits
    versions = [event["outputs"][0]["facets"]["version"]["datasetVersion"] for event in events]
    assert versions == [str(report.snapshot_id) for report in reports[:2]]
    assert all(isinstance(report, CommitReport) for report in reports)


class Unreachable(Transport):
    """An endpoint that is down."""

    kind = "unreachable"

    def emit(self, event: object) -> None:
        raise OSError(f"connection refused for {type(event).__name__}")


def test_an_endpoint_that_is_down_stops_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("orders"))
    with emit_lineage(OpenLineageClient(transport=Unreachable())):
        assert run.commit({1: "a"}) is not None
    run.monitor.ended(None, sealed=False, pending=0)


def test_a_server_that_does_not_answer_holds_the_end_back_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = threading.Event()

    class Silent(Transport):
        kind = "silent"

        def emit(self, event: object) -> None:
            assert event
            answers.wait(60)

    run = Run(tmp_path, spec_of("orders"))
    monkeypatch.setattr(lineage, "CLOSING_SECONDS", 0.05)
    monkeypatch.setattr(lineage, "WAITING", 3)
    with emit_lineage(OpenLineageClient(transport=Silent())):
        for number in range(6):
            run.commit({number: "a"})
    assert not answers.is_set()
    answers.set()
    assert "5 lineage events were dropped" in caplog.text, "all but the one that is being sent"
    run.monitor.ended(None, sealed=False, pending=0)
