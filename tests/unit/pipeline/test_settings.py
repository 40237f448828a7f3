"""Settings of a sink by keyword: one way to give all of them, checked at once."""

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import calve
from calve.errors import CalveError, InvalidInput
from calve.model.health import Health, Status
from calve.model.spec import PartitionBy
from calve.pipeline.sink import Sink


def defined(home: Path, **settings: Any) -> Sink:
    into = calve.connect(home=home).table("shop.orders")
    return calve.sink(calve.orders(rows=10), name="orders", into=into, key=["id"], **settings)


def refused(home: Path, **settings: Any) -> CalveError:
    with pytest.raises(InvalidInput) as error:
        defined(home, **settings)
    return error.value


def test_every_setting_of_the_methods_is_a_keyword_of_sink(tmp_path: Path) -> None:
    found = defined(
        tmp_path,
        commit_interval="1m",
        checkpoint_interval="20s",
        commit_size="100MB",
        heartbeat="2h",
        partition_by=["bucket(16, id)"],
        deletes="equality",
        state=str(tmp_path / "state"),
    )
    by_methods = (
        defined(tmp_path)
        .options(deletes="equality")
        .commits(size="100MB", heartbeat="2h")
        .partition_by("bucket(16, id)")
        .paced(commit_interval="1m", checkpoint_interval="20s")
    )
    assert found.start_settings["state"] == str(tmp_path / "state")
    settings = {name: value for name, value in found.start_settings.items() if name != "state"}
    assert found.paced(**settings).spec == by_methods.spec
    assert found.spec.partition_by == (PartitionBy("bucket", ("id",), 16),)


def test_settings_are_checked_when_the_sink_is_defined_and_similar_names_are_suggested(tmp_path: Path) -> None:
    error = refused(tmp_path, comit_interval="1m")
    assert error.primary == 'a sink has no setting "comit_interval"'
    assert error.hint == 'Did you mean "commit_interval"?'
    assert "multiple" in refused(tmp_path, commit_interval="1m", checkpoint_interval="7s").primary
    assert "not a duration" in refused(tmp_path, commit_interval=[1]).primary
    assert "invalid value" in refused(tmp_path, deletes="sometimes").primary


def test_a_status_has_times_and_durations() -> None:
    fresh = Status.unknown("s", 1_700_000_000_000)
    status = replace(fresh, last_commit_ms=1_700_000_001_000, lag_ms=1500, frontier="[1700000002000]")
    assert status.updated == dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)
    assert status.last_commit == status.updated + dt.timedelta(seconds=1)
    assert status.lag == dt.timedelta(seconds=1.5)
    assert status.committed_up_to == status.updated + dt.timedelta(seconds=2)
    assert not status.complete
    assert status.since is None
    sealed = replace(status, frontier="[]", last_commit_ms=None, lag_ms=None, updated_ms=10**18)
    assert sealed.complete
    assert (sealed.committed_up_to, sealed.last_commit, sealed.lag) == (None, None, None)
    assert sealed.updated.year == 9999


def test_a_status_is_a_summary_as_text_and_in_a_notebook() -> None:
    status = replace(Status.unknown("s", 0), table="shop.<t>", commits=1200, dead_letters=3, cause="a & b")
    assert str(status) == "s: starting, table shop.<t>, commits 1,200, dead letters 3, cause a & b"
    shown = status._repr_html_()
    assert "<td>shop.&lt;t&gt;</td>" in shown
    assert "<td>a &amp; b</td>" in shown


def test_public_names_are_exported_and_listed() -> None:
    assert calve.Health is Health
    assert calve.Status is Status
    assert set(calve.__all__) <= set(dir(calve))
    assert all(getattr(calve, name).__doc__ for name in calve.__all__)
