import errno
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from calve.clock import RandomIds, SystemClock
from calve.commit.committer import Signals
from calve.errors import TransientError
from calve.model.checkpoint import canonical_offsets
from calve.model.spec import NoEnvelope, Pace, SinkSpec, TableName
from calve.pipeline.spark_feed import SparkFeed
from calve.pipeline.spark_log import DamagedLog, SparkLog, behind, self_describing
from calve.storage import durable
from tests.support.manual import ManualSink

KAFKA = canonical_offsets([{"orders": {"0": 12, "1": 7}}])


def write(folder: Path, offsets: dict[int, str], commits: list[int]) -> SparkLog:
    (folder / "offsets").mkdir(parents=True)
    (folder / "commits").mkdir()
    (folder / "metadata").write_text('{"id":"query"}')
    for batch, line in offsets.items():
        header = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1000 + batch, "conf": {}})
        (folder / "offsets" / str(batch)).write_text(f"v1\n{header}\n{line}")
        (folder / "offsets" / f".{batch}.crc").write_text("x")
    for batch in commits:
        (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return SparkLog(folder)


def test_an_unused_directory_has_no_position(tmp_path: Path) -> None:
    assert SparkLog(tmp_path / "none").position() is None


def test_a_batch_runs_from_the_offsets_before_it_to_its_own(tmp_path: Path) -> None:
    log = write(tmp_path, {0: '{"logOffset":0}', 1: '{"logOffset":1}'}, [0])
    batch = log.batch(1)
    assert (batch.identity.start, batch.identity.end) == ('[{"logOffset":0}]', '[{"logOffset":1}]')
    assert (batch.identity.query_id, batch.batch_ms) == ("query", 1001)
    assert log.batch(0).identity.start is None


def test_a_planned_batch_without_a_commit_is_what_spark_replays(tmp_path: Path) -> None:
    position = write(tmp_path, {0: "1", 1: "2"}, [0]).position()
    assert position is not None
    assert position.committed == "[1]"
    assert position.planned is not None
    assert position.planned.identity.batch_id == 1


def test_a_source_that_has_no_offset_yet_is_null(tmp_path: Path) -> None:
    assert write(tmp_path, {0: '{"a":{"0":1}}\n-'}, [0]).batch(0).identity.end == '[{"a":{"0":1}},null]'


@pytest.mark.parametrize(
    ("name", "text"),
    [("offsets/1", ""), ("offsets/1", "v1\n{}"), ("offsets/1", "v2\n{}\n1"), ("metadata", '{"id'), ("offsets/9", "v1")],
)
def test_a_truncated_file_is_a_damaged_log_and_not_a_position(name: str, text: str, tmp_path: Path) -> None:
    log = write(tmp_path, {0: "1", 1: "2"}, [0, 1])
    (tmp_path / name).write_text(text)
    with pytest.raises(DamagedLog, match="damaged"):
        log.position()


def test_a_directory_without_its_query_id_is_damaged(tmp_path: Path) -> None:
    log = write(tmp_path, {0: "1"}, [0])
    (tmp_path / "metadata").unlink()
    with pytest.raises(DamagedLog, match="metadata is missing"):
        log.position()


def test_a_new_directory_starts_at_the_given_offsets(tmp_path: Path) -> None:
    log = SparkLog(tmp_path / "new")
    log.start_at(KAFKA, "fresh", 5)
    position = log.position()
    assert position is not None
    assert (position.query_id, position.committed, position.planned) == ("fresh", KAFKA, None)


@pytest.mark.parametrize(
    ("offsets", "answer"),
    [
        (KAFKA, True),
        (None, False),
        ('[{"logOffset":3}]', False),
        ("[7]", False),
        ("[null]", False),
        ('[{"t":{"0":1}},{"logOffset":0}]', False),
        ("[{}]", False),
    ],
)
def test_only_kafkas_offsets_say_everything_about_a_position(offsets: str | None, answer: bool) -> None:  # noqa: FBT001
    assert self_describing(offsets) is answer


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        ('[{"t":{"0":5,"1":7}}]', '[{"t":{"0":5,"1":9,"2":1}}]', ""),
        ('[{"t":{"0":5,"1":7}}]', '[{"t":{"0":4,"1":9}}]', "partition 0 of t ends at 4; 5 was read before"),
        ('[{"t":{"0":5}}]', '[{"u":{"0":9}}]', "partition 0 of t ends at 0; 5 was read before"),
        (None, '[{"t":{"0":5}}]', ""),
        ('[{"logOffset":5}]', '[{"logOffset":4}]', ""),
    ],
)
def test_offsets_that_go_back_are_named(start: str | None, end: str, said: str) -> None:
    assert behind(start, end) == said


@pytest.mark.parametrize("name", ["offsets/1", "metadata", "commits"])
def test_a_file_that_cannot_be_read_now_is_not_a_damaged_log(name: str, tmp_path: Path) -> None:
    log = write(tmp_path, {0: "1", 1: "2"}, [0])
    (tmp_path / name).rename(tmp_path / "aside")
    (tmp_path / name).symlink_to(tmp_path / name)  # a circle, which not even root can follow
    with pytest.raises(TransientError, match="could not use Spark's checkpoint directory"):
        log.position()
    (tmp_path / name).unlink()
    (tmp_path / "aside").rename(tmp_path / name)
    assert log.position() is not None


@pytest.fixture
def feed(tmp_path: Path) -> SparkFeed:
    frame = cast("DataFrame", SimpleNamespace(sparkSession=None))
    return SparkFeed(frame, tmp_path / "spark", Signals(), SystemClock(), RandomIds(), Pace.of(0, 0))


def test_a_full_disk_leaves_no_directories_behind_however_often_the_feed_tries(
    feed: SparkFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_files: Sequence[Path]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(durable, "sync", full)
        for _ in range(3):
            with pytest.raises(TransientError, match="could not sync Spark's checkpoint"):
                feed._new_folder(KAFKA)
    assert feed._current() is None
    assert feed._new_folder(KAFKA).folder.name == "1"


def test_a_transient_failure_of_a_batch_is_over_with_the_next_query(feed: SparkFeed) -> None:
    class Ended:
        isActive = False  # noqa: N815 - Spark's name

        def awaitTermination(self, _seconds: int) -> bool:  # noqa: N802 - Spark's name
            raise StreamingQueryException("the callback failed")

    run = ManualSink(SinkSpec("s", "sink", TableName(("n",), "t"), ("k",), NoEnvelope())).run
    feed._failure = failure = TransientError("the state location does not answer")
    with pytest.raises(TransientError) as raised:
        feed._has_ended(run, cast("StreamingQuery", Ended()))
    assert raised.value is failure
    assert feed.failure is None, "a sink that goes on has not failed, and the next failure has a cause of its own"


def test_a_query_whose_jvm_is_gone_is_stopped(feed: SparkFeed) -> None:
    class Gone:
        @property
        def isActive(self) -> bool:  # noqa: N802 - Spark's name
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nothing listens where the JVM was")

    feed._query = cast("StreamingQuery", Gone())
    feed.stop()
    assert not feed.alive
