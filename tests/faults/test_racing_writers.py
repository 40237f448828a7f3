"""Several processes of one sink at the same time: one of them holds the fence, and the table is correct."""

import os
import time

import pytest

from tests.faults.harness import Sink, finished

SECONDS = float(os.environ.get("CALVE_RACE_SECONDS", "20"))


@pytest.mark.slow
def test_processes_that_race_for_one_sink_leave_one_right_table(sink: Sink) -> None:
    """A new process starts as soon as one has ended: each takes over from the current holder."""
    sink.changes, sink.per_checkpoint = 6000, 100
    running = [sink.spawn(), sink.spawn()]
    codes = []
    deadline = time.monotonic() + SECONDS
    while running:
        for process in [p for p in running if p.poll() is not None]:
            ended = finished(process)
            running.remove(process)
            codes.append(ended.code)
            assert ended.code in {0, 3}, ended.stderr + str(ended.report)
            if time.monotonic() < deadline and ended.report.get("health") != "sealed":
                running.append(sink.spawn())
        time.sleep(0.05)
    last = sink.run()
    assert last.code == 0, last.stderr
    sink.check(history=False)
