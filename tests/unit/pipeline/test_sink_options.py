import inspect
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import calve
from calve.errors import InvalidInput
from calve.model.spec import HOUR_MS, CompactionOptions, DayHours, Deletes, RetentionOptions, RowOrder
from calve.pipeline.sink import Sink
from calve.plan.catalogue import SINK


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    into = calve.connect(home=tmp_path).table("shop.orders")
    return calve.sink(calve.orders(), name="orders", into=into, key=["id"])


def test_rows_are_deleted_by_position_unless_told_otherwise(sink: Sink) -> None:
    assert sink.spec.deletes is Deletes.POSITION
    equality = sink.options(deletes="equality")
    assert equality.spec.deletes is Deletes.EQUALITY
    assert equality.options(compression="zstd").spec.deletes is Deletes.EQUALITY, "other options leave it"


@pytest.mark.parametrize("encoding", ["vectors", "places"])
def test_an_encoding_that_cannot_be_written_is_refused(sink: Sink, encoding: str) -> None:
    with pytest.raises(InvalidInput, match=f'invalid value deletes="{encoding}"') as told:
        sink.options(deletes=encoding)
    assert told.value.hint in {"Expected one of 'position', 'equality', 'vector'.", "Did you mean 'vector'?"}


def test_vectors_need_format_version_3(sink: Sink) -> None:
    with pytest.raises(InvalidInput, match="deletion vectors need format version 3"):
        sink.options(deletes="vector")
    assert sink.options(deletes="vector", format_version=3).spec.deletes is Deletes.VECTOR
    assert sink.options(format_version=3).options(deletes="vector").spec.format_version == 3
    assert sink.options(deletes="vector", readers="databricks").spec.table_format == 3
    with pytest.raises(InvalidInput, match="could not be read by all of them"):
        sink.options(readers="databricks").options(format_version=2)
    with pytest.raises(InvalidInput, match="invalid format_version 4"):
        sink.options(format_version=4)


ONLY_PYTHON = {"self", "version"}
SHORTER = {"size": "commit_size", "column": "time_column", "state": "state_location"}


@pytest.mark.parametrize("method", [Sink.options, Sink.commits, Sink.times, Sink.start], ids=lambda m: m.__name__)
def test_every_keyword_is_a_declared_option(method: Callable[..., object]) -> None:
    keywords = set(inspect.signature(method).parameters) - ONLY_PYTHON
    assert {SHORTER.get(keyword, keyword) for keyword in keywords} <= {setting.keyword for setting in SINK.settings}


def test_limits_of_what_may_wait_are_options(sink: Sink) -> None:
    assert sink.spec.max_pending_batches == 100
    limited = sink.options(max_pending_batches=3, max_staged_size="2MB")
    assert (limited.spec.max_pending_batches, limited.spec.staged_limit) == (3, 2_000_000)
    other = limited.options(compression="zstd").spec
    assert (other.max_pending_batches, other.max_staged_size) == (3, 2_000_000), "other options leave them"


def test_rows_with_times_of_their_own_have_no_limit_unless_one_is_given(sink: Sink) -> None:
    assert sink.spec.staged_limit == 8_000_000_000
    timed = sink.times("updated_at")
    assert timed.spec.staged_limit is None
    assert timed.options(max_staged_size=5).spec.staged_limit == 5


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("name", ["max_pending_batches", "max_staged_size"])
def test_a_limit_of_nothing_is_refused(sink: Sink, name: str, value: int) -> None:
    with pytest.raises(InvalidInput, match=f"{name} must be at least 1") as told:
        sink.options(**{name: value})  # type: ignore[arg-type]
    assert told.value.detail == f"Got {value}."


def test_a_size_that_is_none_is_refused(sink: Sink) -> None:
    with pytest.raises(InvalidInput, match='"large" is not a size'):
        sink.options(max_staged_size="large")


def test_a_way_to_recover_that_is_none_is_refused(sink: Sink) -> None:
    with pytest.raises(InvalidInput, match='invalid value recovery="again"'):
        sink.start(commit_interval="1m", recovery="again")
    with pytest.raises(InvalidInput, match='recovery="replay" stages nothing'):
        sink.times("updated_at").start(commit_interval="1m", recovery="replay")


def test_retention_is_an_option(sink: Sink) -> None:
    assert sink.spec.retention == RetentionOptions()
    grace = timedelta(hours=2)
    kept = sink.options(snapshot_retention="6h", min_snapshots=5, thin_snapshots="off", removal_grace=grace)
    assert kept.spec.retention == RetentionOptions(6 * HOUR_MS, 5, thin=False, grace_ms=2 * HOUR_MS)
    assert kept.options(compression="zstd").spec.retention == kept.spec.retention, "other options leave it"
    assert sink.options(snapshot_retention="5s").spec.retention.max_age_ms == 5000, "raised when it is applied"
    with pytest.raises(InvalidInput, match="removal_grace is out of range"):
        sink.options(removal_grace="59m")
    with pytest.raises(InvalidInput, match='invalid value thin_snapshots="daily"'):
        sink.options(thin_snapshots="daily")


def test_compactions_have_options(sink: Sink) -> None:
    assert sink.spec.compaction == CompactionOptions()
    hours = {"maintenance_cores": 0.25, "maintenance_hours": "22:00-6:30", "sort_by": "zorder(id, v)"}
    kept = sink.options(expected_reads=5, deleted_share=0.1, small_files=8, **hours)  # type: ignore[arg-type]
    assert kept.spec.compaction == CompactionOptions(
        5.0, 0.1, 8, DayHours(22 * 60, 6 * 60 + 30), 0.25, RowOrder(("id", "v"), interleaved=True)
    )
    assert kept.options(compression="zstd").spec.compaction == kept.spec.compaction, "other options leave it"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"expected_reads": -1}, "expected_reads is out of range"),
        ({"deleted_share": 1.5}, "deleted_share is out of range"),
        ({"maintenance_cores": "half"}, "maintenance_cores must be a number"),
        ({"maintenance_cores": 1.5}, "maintenance_cores is out of range"),
        ({"maintenance_cores": float("nan")}, "maintenance_cores is out of range"),
        ({"expected_reads": float("inf")}, "expected_reads is out of range"),
        ({"small_files": 1}, "small_files must be at least 2"),
        ({"maintenance_hours": "late"}, '"late" is not a part of the day'),
        ({"sort_by": "zorder(id)"}, "a Z-order has 2 to 8 columns"),
        ({"maintenance_hours": "22:00-24:01"}, "is not a part of the day"),
        ({"maintenance_hours": "24:00-00:00"}, "is not a part of the day"),
        ({"maintenance_hours": "7:00-07:00"}, "is not a part of the day"),
    ],
)
def test_options_of_compactions_that_make_no_sense_are_refused(sink: Sink, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        sink.options(**given)


def test_hours_may_contain_midnight() -> None:
    minute = 60_000
    night, day = DayHours.parse("22:00-06:00"), DayHours.parse("6:00 - 22:00")
    for hour, inside in ((0, True), (5, True), (6, False), (21, False), (22, True), (23, True)):
        at = (24 * 400 + hour) * 60 * minute
        assert (night.contains(at), day.contains(at)) == (inside, not inside)
    assert str(night) == "22:00-06:00"
