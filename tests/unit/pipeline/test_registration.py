"""Tables are registered with the metastore, however many sinks do so at once, and again after a failure."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from calve.analyze.table_subject import KIND
from calve.iceberg.planning.facts import TableSummary
from calve.metastore.config import MetastoreConfig
from calve.metastore.metastore import Metastore
from calve.metastore.tables import MetadataType, TableId, open_tables
from calve.model.health import Status
from calve.model.spec import NoEnvelope, SinkSpec, TableName
from calve.pipeline.registration import EVERY, FIRST, RegisteredTable, TableRegistration
from tests.support.clocks import ManualClock

SINKS = 24


def registration(home: Path, clock: ManualClock, name: str = "t") -> TableRegistration:
    spec = SinkSpec("id", name, TableName(("x",), name), ("k",), NoEnvelope())
    summary = TableSummary("file:///somewhere", {"type": "struct", "fields": []}, 1, 1, 1, True, 1, 1)  # noqa: FBT003
    return TableRegistration(RegisteredTable(home, TableId("p", "w", name), spec, lambda: summary), clock)


def status(commits: int) -> Status:
    return replace(Status.unknown("s", now_ms=1), commits=commits)


def registered(home: Path) -> set[str | None]:
    with Metastore(MetastoreConfig.load(home, os.environ), clock=ManualClock()) as metastore:
        found = open_tables(metastore).read(MetadataType.TABLE)
    return {unit.table_name for unit in found if unit.table_type == KIND}


def test_sinks_that_register_at_once_are_all_registered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registrations = [registration(tmp_path, ManualClock(), f"t{number}") for number in range(SINKS)]
    together = Barrier(SINKS)

    def register(one: TableRegistration) -> None:
        together.wait()
        one.finish(status(1))

    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(SINKS) as pool:
        list(pool.map(register, registrations))
    assert not caplog.messages
    assert registered(tmp_path) == {f"t{number}" for number in range(SINKS)}


def test_a_registration_that_failed_is_repeated_without_another_commit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    one = registration(tmp_path, clock)
    (tmp_path / "metastore").write_text("in the way")
    clock.seconds = FIRST
    one.register_if_due(status(1))
    assert "could not register table x.t with the metastore" in caplog.text
    (tmp_path / "metastore").unlink()
    one.register_if_due(status(1))
    assert registered(tmp_path) == set(), "not before the interval is over"
    clock.seconds += EVERY
    one.register_if_due(status(1))
    assert registered(tmp_path) == {"t"}
