"""A new sink per test; everything it started is ended afterwards.

Tests that use `where` run with two catalogs, the embedded one and a REST catalog with everything in S3, and with three
encodings of deletes, by position, by vectors (format version 3) and by equality. `make test` runs only those marked
`representative` with servers, and all with deletes by position; `make soak` runs all combinations. Tests marked
`embedded` are about local files, those marked `remote` about servers, those marked `positions` about deletes by
position, whichever way they are written, those marked `version_2` about tables without vectors.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest
from pyspark.sql import SparkSession

from calve import faults
from calve.lake import Lake
from tests.faults.harness import Sink, end
from tests.faults.process import GENERATED
from tests.faults.where import Where


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "where" in metafunc.fixturenames:
        marks = {mark.name for mark in metafunc.definition.iter_markers()}
        catalogs = [name for name, other in (("embedded", "remote"), ("rest", "embedded")) if other not in marks]
        without = {"vector": "version_2", "equality": "positions"}
        encodings = [name for name in ("position", "vector", "equality") if without.get(name) not in marks]
        usual = {"embedded", "rest"} if marks & {"representative", "remote"} else {"embedded"}
        places = [
            pytest.param(
                (catalog, deletes),
                marks=[] if catalog in usual and deletes == "position" else [pytest.mark.slow],
                id=catalog if deletes == "position" else f"{catalog} {deletes}",
            )
            for catalog in catalogs
            for deletes in encodings
        ]
        metafunc.parametrize("where", places, indirect=True)


@pytest.fixture
def where(request: pytest.FixtureRequest) -> Where:
    catalog, deletes = request.param
    place = Where() if catalog == "embedded" else Where.of(request.getfixturevalue("lakehouse"))
    return replace(place, deletes=deletes)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    faults.install(None)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, where: Where) -> Lake:
    del spark  # the active session
    return where.lake(tmp_path / "home")


class MakeSink(Protocol):
    """Makes a sink in a folder of its own, with its input."""

    def __call__(self, feed: str, changes: int = 1600) -> Sink: ...


@pytest.fixture
def make_sink(tmp_path: Path, where: Where) -> Iterator[MakeSink]:
    made: list[Sink] = []

    def make(feed: str, changes: int = 1600) -> Sink:
        sink = Sink(tmp_path / "home", feed, changes=changes, where=where)
        if feed not in GENERATED:
            sink.provide_files()
        made.append(sink)
        return sink

    yield make
    end(process for sink in made for process in sink.processes)


@pytest.fixture
def sink(make_sink: MakeSink) -> Sink:
    return make_sink("orders")
