import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyspark.sql import SparkSession

import calve
from calve.clock import SystemClock
from calve.errors import BadRow, InvalidInput, SourceLost, TerminalError
from calve.model.checkpoint import Offsets
from calve.records.frames import SOURCE_FILE, SOURCE_PROBLEM
from calve.source.files.definition import FileSource, files
from calve.storage.state import LocalState
from tests.support.changes import until_done
from tests.support.readers import duckdb_rows

SCHEMA = "id BIGINT, value STRING"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "in [brackets] and spaces"
    folder.mkdir()
    return folder


def put(folder: Path, name: str, *rows: dict[str, Any], mtime: int | None = None) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(r) for r in rows))
    if mtime is not None:
        os.utime(path, (mtime, mtime))
    return path


def opened(folder: Path, tmp_path: Path, **options: Any) -> FileSource:
    return files(folder, format="json", schema=SCHEMA, **options).open(LocalState(tmp_path / "state"), SystemClock())


def ids(spark: SparkSession, source: FileSource, start: Offsets, end: Offsets) -> list[int]:
    return sorted(r.id for r in source.frame(spark, start, end).collect())


def test_every_file_is_read_once_whatever_its_time_stamp(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    source = opened(folder, tmp_path)
    assert source.next_end(None) is None
    put(folder, "b.json", {"id": 1}, mtime=2000)
    put(folder, "a.json", {"id": 2}, mtime=2000)
    first = source.next_end(None)
    assert ids(spark, source, None, first) == [1, 2]
    assert source.next_end(first) is None
    put(folder, "deep/late.json", {"id": 3}, mtime=1000)  # copied with its old time
    put(folder, "same.json", {"id": 4}, mtime=2000)
    second = source.next_end(first)
    assert ids(spark, source, first, second) == [3, 4]
    again = opened(folder, tmp_path)  # a restart
    assert again.next_end(second) is None
    assert ids(spark, again, None, first) == [1, 2], "a range is the same every time"


NAMES = (
    *("10:30.json", "a%20b.json", "%.json", "%zz.json", "a#b.json", "a?b.json", "a b.json", " a.json", "a\nb.json"),
    *("a\tb.json", "ü.json", "u\u0308.json", "[1].json", "{b}.json", "*.json", "a\\b.json", "a'b\".json", "k=v.json"),
    *("a,b;c&d.json", "\U0001f600.json", "\u202e.json", "a\x1b[31m.json", f"{'x' * 250}.json", "ends with a dot."),
)


def test_a_file_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for number, name in enumerate(NAMES):
        put(folder, name, {"id": number}, {"id": -1, "value": ["no", "text"], "more": 1}, {"id": "x"})
    source = opened(folder, tmp_path)
    rows = source.frame(spark, None, source.next_end(None)).collect()
    assert sorted(row.id for row in rows if row.id is not None and row.id >= 0) == list(range(len(NAMES)))
    named = {row[SOURCE_FILE] for row in rows if row[SOURCE_PROBLEM] is not None}
    assert {unquote(file).removeprefix("file://") for file in named} == {f"{folder}/{name}" for name in NAMES}


@pytest.mark.parametrize("format", ["parquet", "orc", "csv"])
def test_a_colon_in_a_name_is_read_in_every_format(
    spark: SparkSession,
    tmp_path: Path,
    format: str,  # noqa: A002 - the option's name
) -> None:
    path = tmp_path / "in" / "2024-01-01T10:30:00"
    path.parent.mkdir()
    match format:
        case "parquet":
            pq.write_table(pa.table({"id": [7]}), path)
        case "orc":
            orc.write_table(pa.table({"id": [7]}), path)
        case _:
            path.write_text("7\n")
    schema = "id BIGINT" if format == "csv" else None
    source = files(path.parent, format=format, schema=schema).open(LocalState(tmp_path / "state"), SystemClock())
    assert ids(spark, source, None, source.next_end(None)) == [7]


def test_checkpoints_take_files_in_order_and_no_more_than_they_may(folder: Path, tmp_path: Path) -> None:
    for number in range(5):
        put(folder, f"{number}.json", {"id": number}, mtime=1000 + number)
    source = opened(folder, tmp_path, max_files_per_checkpoint=2)
    sizes, end = [], source.next_end(None)
    while end is not None:
        sizes.append(source.size(None, end).bytes)
        end = source.next_end(end)
    assert len(sizes) == 3


def test_hidden_and_unfinished_files_are_left_alone(folder: Path, tmp_path: Path) -> None:
    for name in ("_SUCCESS", ".hidden.json", "a.json.tmp", "_temporary/0/x.json", "b.json._COPYING_"):
        put(folder, name, {"id": 1})
    assert opened(folder, tmp_path).next_end(None) is None


def test_a_file_that_grew_after_it_was_read_is_an_error(folder: Path, tmp_path: Path) -> None:
    put(folder, "a.json", {"id": 1})
    source = opened(folder, tmp_path)
    end = source.next_end(None)
    put(folder, "a.json", {"id": 1}, {"id": 2})
    with pytest.raises(TerminalError, match="changed after it was read"):
        source.next_end(end)


def test_a_file_that_was_removed_before_it_was_read_is_named(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    path = put(folder, "a.json", {"id": 1})
    source = opened(folder, tmp_path)
    end = source.next_end(None)
    path.unlink()
    with pytest.raises(SourceLost, match=r"a\.json"):
        source.frame(spark, None, end)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "xml"}, "unknown file format"),
        ({"format": "json"}, "need a schema"),
        ({"format": "parquet", "max_files_per_checkpoint": 0}, "at least 1"),
    ],
)
def test_a_file_source_that_cannot_work_is_refused(folder: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        files(folder, **options)


def sink(folder: Path, tmp_path: Path) -> Any:
    lake = calve.connect(home=tmp_path / "home")
    source = files(folder, format="json", schema=SCHEMA, max_files_per_checkpoint=1)
    return calve.sink(source, name="f", into=lake.table("x.f"), key=["id"]).start()


def rows(tmp_path: Path) -> dict[int, str]:
    location = calve.connect(home=tmp_path / "home").open().load_table("x.f").metadata_location
    return {r["id"]: r["value"] for r in duckdb_rows(location)}


@pytest.mark.parametrize("point", ["ledger.before", "ledger.after"])
def test_a_sink_that_died_around_its_ledger_reads_every_file_once(
    spark: SparkSession, folder: Path, tmp_path: Path, point: str
) -> None:
    del spark
    for number in range(4):
        put(folder, f"{number}.json", {"id": number % 3, "value": str(number)}, mtime=1000 + number)
    until_done(lambda: sink(folder, tmp_path), [(point, 2), (point, 1)], bounded=False)
    assert rows(tmp_path) == {0: "3", 1: "1", 2: "2"}


def test_a_malformed_line_halts_the_sink_and_a_mended_file_lets_it_go_on(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    del spark
    put(folder, "1.json", {"id": 1, "value": "a"}, mtime=1000)
    bad = folder / "2.json"
    bad.write_text('{"id": "abc", "value": 1}\n')
    query = sink(folder, tmp_path)
    with pytest.raises(BadRow):
        query.await_caught_up(60)
    assert rows(tmp_path) == {1: "a"}
    bad.unlink()
    put(folder, "3.json", {"id": 2, "value": "b"})
    again = sink(folder, tmp_path)
    again.await_caught_up(60)
    again.stop()
    assert rows(tmp_path) == {1: "a", 2: "b"}


@pytest.mark.parametrize(("form", "in_memory"), [("parquet", 4), ("orc", 4), ("json", 1), ("csv", 1), ("text", 1)])
def test_a_backlog_is_read_in_checkpoints_that_fit_a_share_of_memory(tmp_path: Path, form: str, in_memory: int) -> None:
    folder = tmp_path / "backlog"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.{form}").write_bytes(b"x" * 100)  # which nobody reads
    share = 3 * in_memory * 100

    def taken(limit: int, *, whole: bool = False, most: int = 1000) -> int:
        source = files(folder, format=form, schema="value STRING", max_files_per_checkpoint=most).open(
            LocalState(tmp_path / f"state{limit}{whole}{most}"), SystemClock()
        )
        source.limit(lambda: limit)
        source.next_end(None, whole=whole)
        return 5 - source.unread

    assert taken(share) == 3
    assert taken(share - 1) == 2
    assert taken(share, most=2) == 2
    assert taken(share, whole=True) == 5
    assert taken(1) == 1, "there is always one"


def test_a_checkpoint_that_was_begun_keeps_its_files_whatever_the_limit_is_now(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "backlog"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.text").write_text(f"{number}")
    limits = [3, 1]
    source = files(folder, format="text").open(LocalState(tmp_path / "state"), SystemClock())
    source.limit(lambda: limits[0])
    end = source.next_end(None)
    limits.pop(0)
    again = files(folder, format="text").open(LocalState(tmp_path / "state"), SystemClock())
    again.limit(lambda: limits[0])
    assert [row["value"] for row in again.frame(spark, None, end).orderBy("value").collect()] == ["0", "1", "2"]
    assert again.next_end(end) is not None
    assert again.unread == 0
