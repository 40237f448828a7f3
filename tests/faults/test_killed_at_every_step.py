"""SIGKILL right before and right after every durable step, then a restart: the table is as if nothing had happened."""

import pytest

from tests.faults.conftest import MakeSink
from tests.faults.harness import KILLED, Sink

STEPS = [
    "claim.before",
    "claim.after",
    "adopt.before",
    "adopt.after",
    "files.before:2",
    "files.after:2",
    "manifests.after:2",
    "record.before:2",
    "record.after:2",
    "manifest-list.before:3",
    "manifest-list.after:3",
    "commit.before:3",
    "commit.after:1",
    "commit.after:3",
    "receipt.before:2",
    "receipt.after:2",
    "state.put:2",
    "state.put:4",
]


@pytest.mark.parametrize("step", STEPS)
def test_a_sink_killed_at(step: str, sink: Sink) -> None:
    assert sink.run(f"{step}=kill").code == KILLED
    ended = sink.run()
    assert ended.code == 0, ended.stderr
    assert ended.report["health"] == "sealed"
    sink.check()


@pytest.mark.parametrize("step", ["record.before:3", "record.after:3", "spark-commit.before:3", "files.after:3"])
@pytest.mark.parametrize("feed", ["stream", "partitions"])
def test_a_stream_killed_at(step: str, feed: str, make_sink: MakeSink) -> None:
    sink = make_sink(feed)
    assert sink.run(f"{step}=kill").code == KILLED
    ended = sink.run()
    assert ended.code == 0, ended.stderr + str(ended.report)
    sink.check()


def test_a_sink_killed_again_and_again_gets_there(sink: Sink) -> None:
    for step in (
        "record.after:2",
        "commit.after:2",
        "adopt.before",
        "receipt.before:1",
        "files.after:2",
        "claim.after",
    ):
        assert sink.run(f"{step}=kill").code == KILLED
    assert sink.run().code == 0
    sink.check(spark=True)
