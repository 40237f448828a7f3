"""An event for OpenLineage after every commit, and no commit that waits for it."""

import json
from pathlib import Path

from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.transport.transport import Transport

from calve.lineage import emit_lineage
from calve.model.health import CommitReport
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
