"""A fresh sink per test; whatever it started is gone afterwards."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.faults.harness import Sink


class MakeSink(Protocol):
    """Makes a sink in a folder of its own, with its input."""

    def __call__(self, feed: str, changes: int = 1600) -> Sink: ...


@pytest.fixture
def make_sink(tmp_path: Path) -> Iterator[MakeSink]:
    made: list[Sink] = []

    def make(feed: str, changes: int = 1600) -> Sink:
        sink = Sink(tmp_path / "home", feed, changes=changes)
        if feed not in {"orders", "windows"}:
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
