"""Metrics: what is documented exists, labels are bounded, Prometheus and OpenTelemetry read them."""

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from calve import metrics
from calve.cli.exports import serve_metrics, write_metrics
from calve.errors import CommitConflict, CommitUnknown, FencedError, InvalidInput, TransientError
from calve.maintain.compact import Compacted
from calve.model.health import PHASES, SIZE_BOUNDS, Health, Status, TableHealth
from calve.otel import bridge
from tests.support.runs import Run, spec_of

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "examples" / "monitoring"
NAMED = re.compile(r"\bcalve_[a-z0-9_]+")
SUFFIX = re.compile(r"_(total|bucket|sum|count|created)$")
DECLARED = {metric.name for metric in metrics.STATES} | {metric._name for metric in metrics.EVENTS}

FULL = replace(
    Status.unknown('odd "name"\n\\', 1_000),
    health=Health.STALLED,
    frontier="[900]",
    minted="[950]",
    input="[1000]",
    last_commit_ms=400,
    lag_ms=100,
    current_ms=900,
    polled_ms=950,
    unread=7,
    unread_most=5,
    retention_left=40,
    source_keeps_ms=10_000,
    source_parts=3,
    heartbeat_ms=1_000,
    since_ms=500,
    state_sizes=(("records", 5),),
    table_health=TableHealth(
        1, 1, 3, 100, 2, 60, 1, 1, 4, 25, 0, sizes=tuple((bound, 1) for bound in (*SIZE_BOUNDS, 0))
    ),
)


def test_every_metric_of_the_page_exists_and_every_metric_is_on_the_page() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert set(re.findall(r"^\| `(calve_\w+)`", page, re.MULTILINE)) == DECLARED


def test_the_other_pages_name_existing_metrics_only() -> None:
    text = "".join(page.read_text() for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
    named = {SUFFIX.sub("", name) for name in re.findall(r"`(calve_\w+)(?:\{[^`]*)?`", text)}
    columns = {"calve_diff", "calve_time", "calve_diff_2", "calve_time_2"}  # of the records of a log
    assert named - DECLARED - columns == set()


@pytest.mark.parametrize("name", ["grafana-dashboard.json", "alerts.yaml"])
def test_dashboard_and_alerts_name_existing_metrics_and_label_values_only(name: str) -> None:
    text = (MONITORING / name).read_text()
    body = json.loads(text) if name.endswith(".json") else yaml.safe_load(text)
    queries = list(expressions(body))
    assert len(queries) > 9
    for query in queries:
        named = {SUFFIX.sub("", found) for found in NAMED.findall(query)}
        assert named, query
        assert named <= DECLARED, query
        for label, values in re.findall(r'(\w+)=~?"([^"]*)"', query):
            if label != "sink":
                assert set(values.split("|")) <= set(metrics.LABELS[label]), query


def test_alert_rules_have_the_form_that_prometheus_expects() -> None:
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+[smhd]", rule.get("for", "1m"))


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    panels = json.loads((MONITORING / "grafana-dashboard.json").read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells


def expressions(body: object) -> Iterator[str]:
    if isinstance(body, dict):
        for key, value in body.items():
            if key == "expr" and isinstance(value, str):
                yield value
            else:
                yield from expressions(value)
    elif isinstance(body, list):
        for value in body:
            yield from expressions(value)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path, spec_of("watched"))
    yield made
    made.monitor.ended(None, sealed=False, pending=0)
    metrics.LIVE.remove(str(tmp_path / "status-watched.json"))


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Samples by name and labels, as Prometheus reads them."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(text: str, name: str, **labels: str) -> float:
    return parsed(text)[name, tuple(sorted({"sink": "watched", **labels}.items()))]


def test_the_endpoint_shows_what_a_run_did(run: Run, tmp_path: Path) -> None:
    before = metrics.COMMIT_ATTEMPTS.labels("watched", "conflict")._value.get()
    run.commit({1: "a", 2: "b"})
    run.monitor.failed_attempt(CommitConflict("another writer was faster"))
    run.commit({1: "c"})
    run.monitor.table_looked_at(run.table.health(run.spec.write))
    with serve_metrics("127.0.0.1", 0) as url:
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url) as answer:  # noqa: S310 - its own
            text = answer.read().decode()
    assert value(text, "calve_changes_total") == 3
    assert value(text, "calve_commits_total") == 2
    assert value(text, "calve_commit_conflicts_total") == 1
    assert value(text, "calve_commit_attempts_total", outcome="committed") == 2
    assert value(text, "calve_commit_attempts_total", outcome="conflict") == before + 1
    assert value(text, "calve_written_rows_total", content="data") == 3
    assert value(text, "calve_written_rows_total", content="position_deletes") == 1
    assert value(text, "calve_table_data_files") == 2
    assert value(text, "calve_table_rows") == 3
    assert value(text, "calve_table_deleted_share") == pytest.approx(1 / 3)
    assert value(text, "calve_table_small_files") == 2
    assert value(text, "calve_table_files_by_size", up_to=str(1 << 20)) == 2
    assert value(text, "calve_table_snapshots") >= 3
    assert 0 <= value(text, "calve_seconds_since_commit") < 60
    assert value(text, "calve_phase_seconds_count", phase="commit") == 2
    assert value(text, "calve_phase_seconds_count", phase="load") == 2
    assert value(text, "calve_health", state="running") == 1
    assert value(text, "calve_health", state="stalled") == 0
    assert value(text, "calve_up") == 1
    file = tmp_path / "out" / "calve.prom"
    file.parent.mkdir()
    with write_metrics(file, every=0.01):
        run.commit({3: "d"})
    assert value(file.read_text(), "calve_commits_total") == 3
    assert [path.name for path in file.parent.iterdir()] == ["calve.prom"]


def test_labels_are_bounded_whatever_happens(run: Run) -> None:
    class OfAUser(CommitUnknown):
        """Not one of calve's."""

    monitor = run.monitor
    run.commit({1: "a"})
    for error in (TransientError("x"), OfAUser("x"), CommitConflict("x"), OSError("x"), ValueError("y")):
        monitor.failed_attempt(error)
    for phase in PHASES:
        monitor.phase(phase, 0.1)
    monitor.compacted(Compacted(1, 2, 1, 5, 4))
    for outcome in metrics.MAINTENANCE_OUTCOMES:
        monitor.maintained("compact", outcome, 1.0)
    monitor.stalled("the catalog is down")
    for failure in (FencedError("x"), RuntimeError("x"), InvalidInput("x"), ZeroDivisionError()):
        monitor.ended(failure, sealed=False, pending=0)
    samples = [sample for metric in metrics.REGISTRY.collect() for sample in metric.samples]
    assert any(sample.labels.get("error") == "unexpected" for sample in samples)
    for sample in samples:
        for label, found in sample.labels.items():
            if label not in {"sink", "le"}:
                assert found in metrics.LABELS[label], sample


def test_statuses_of_other_processes_are_exported_alike() -> None:
    registry = CollectorRegistry()
    registry.register(metrics.StatusCollector(lambda: [FULL], lambda: 3_000))
    text = generate_latest(registry).decode()
    families = {family.name for family in text_string_to_metric_families(text)}
    assert families == {metric.name for metric in metrics.STATES}
    found = parsed(text)
    labels = (("sink", FULL.sink),)
    assert found["calve_lag_seconds", labels] == 2.1
    assert found["calve_seconds_since_poll", labels] == 2.05
    assert found["calve_retention_left", labels] == 40
    assert found["calve_retention_left_seconds", labels] == 7.9
    assert found["calve_seconds_since_commit", labels] == 2.6
    assert found["calve_heartbeat_age_seconds", labels] == 2.0
    assert found["calve_state_since_seconds", labels] == 2.5
    assert found["calve_up", labels] == 0
    assert found["calve_health", (("sink", FULL.sink), ("state", "stalled"))] == 1
    assert found["calve_state_bytes", labels] == 5
    assert found["calve_table_files_by_size", (("sink", FULL.sink), ("up_to", "inf"))] == 1
    assert not [name for name, _ in parsed(_text(Status.unknown("s", 0))) if name == "calve_lag_seconds"]


def _text(status: Status) -> str:
    registry = CollectorRegistry()
    registry.register(metrics.StatusCollector(lambda: [status], lambda: 1))
    return generate_latest(registry).decode()


def test_opentelemetry_gets_the_same_values() -> None:
    registry = CollectorRegistry()
    registry.register(metrics.StatusCollector(lambda: [FULL], lambda: 3_000))
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    bridge(provider.get_meter("calve"), registry)
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: {
            tuple(sorted((point.attributes or {}).items())): point.value
            for point in metric.data.data_points
            if isinstance(point, NumberDataPoint)
        }
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert found["calve_seconds_since_commit"] == {(("sink", FULL.sink),): 2.6}
    assert found["calve_commits"] == {(("sink", FULL.sink),): 0}
    assert found["calve_health"][("sink", FULL.sink), ("state", "stalled")] == 1
    assert {metric.name for metric in metrics.STATES} == found.keys()
    provider.shutdown()


def test_histograms_become_two_counters_for_opentelemetry(run: Run) -> None:
    run.commit({1: "a"})
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    bridge(provider.get_meter("calve"))
    data = reader.get_metrics_data()
    assert data is not None
    names = {m.name for r in data.resource_metrics for scope in r.scope_metrics for m in scope.metrics}
    assert {"calve_commit_seconds_count", "calve_commit_seconds_sum"} <= names
    provider.shutdown()


def test_a_port_that_is_taken_and_a_file_that_cannot_be_written_are_invalid_input(tmp_path: Path) -> None:
    with serve_metrics("127.0.0.1", 0) as url:
        port = int(url.rsplit(":", 1)[1].split("/")[0])
        with pytest.raises(InvalidInput, match="cannot serve metrics"), serve_metrics("127.0.0.1", port):
            pass
    with pytest.raises(InvalidInput, match="cannot write the metrics file"), write_metrics(tmp_path / "no" / "x.prom"):
        pass
    with pytest.raises(InvalidInput, match=r"does not end in \.prom"), write_metrics(tmp_path / "x.txt"):
        pass
