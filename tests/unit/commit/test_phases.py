from pathlib import Path

import pytest

from calve import metrics
from calve.commit.ports import Stopwatch
from calve.model.spec import NoEnvelope, SinkSpec, TableName
from calve.pipeline.monitor import RunMonitor
from tests.support.clocks import ManualClock


def test_phases_within_a_phase_count_once_also_if_they_fail(tmp_path: Path) -> None:
    spec = SinkSpec("phases", "phases", TableName(("b",), "phases"), ("id",), NoEnvelope())
    clock = ManualClock()
    timed = Stopwatch(clock, RunMonitor(spec, clock, tmp_path / "status.json", lambda: None))
    within = Stopwatch(clock, timed.monitor)

    def fail() -> None:
        with within("index"):
            clock.seconds += 4
            with timed("plan"):
                clock.seconds += 8
            raise OSError("gone")

    with timed("lookup"):
        clock.seconds += 1
        with within("plan"):
            clock.seconds += 2
        with pytest.raises(OSError, match="gone"):
            fail()
        clock.seconds += 16
    samples = (sample for metric in metrics.PHASE_SECONDS.collect() for sample in metric.samples)
    spent = {s.labels["phase"]: s.value for s in samples if s.name.endswith("_sum") and s.labels["sink"] == "phases"}
    assert {name: seconds for name, seconds in spent.items() if seconds} == {"lookup": 17, "plan": 10, "index": 4}
