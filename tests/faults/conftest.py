"""A fresh sink per test; whatever it started is gone afterwards."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.harness import Sink

MakeSink = Callable[[str], Sink]


@pytest.fixture
def make_sink(tmp_path: Path) -> Iterator[MakeSink]:
    made: list[Sink] = []

    def make(feed: str) -> Sink:
        sink = Sink(tmp_path / "home", feed)
        if feed != "orders":
            sink.provide_files()
        made.append(sink)
        return sink

    yield make
    for process in (p for sink in made for p in sink.processes):
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def sink(make_sink: MakeSink) -> Sink:
    return make_sink("orders")
