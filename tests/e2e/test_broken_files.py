"""Unreadable, vanishing and changing files: the sink reports which and why, and continues once it is repaired."""

import gzip
import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from calve import faults
from calve.api.verify import verify
from calve.clock import SystemClock
from calve.errors import SourceLost, TerminalError, UnreadableFile
from calve.source.files.definition import files
from calve.storage.state import open_state
from tests.support.combinations import diagonal
from tests.support.pipelines import Pipelines

LAKE = "CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');"
SOURCE = """
CREATE SOURCE {0} (id BIGINT NOT NULL, s STRING, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '{1}/{0}', FORMAT = '{2}');
CREATE SINK {0} FROM {0} TO ICEBERG CATALOG lake NAMESPACE "x" TABLE "{0}" {3};
"""
LETTERS = "WITH (ON BAD ROW = 'dead letter')"
WINDOWS = "WITH (ON BAD ROW = 'dead letter', COMMIT INTERVAL = '2s', CHECKPOINT INTERVAL = '1s')"
GOOD = {"json": "1.json", "csv": "1.csv", "parquet": "1.parquet"}
MANY = 5_000


@pytest.fixture
def pipelines(tmp_path: Path, spark: SparkSession) -> Iterator[Pipelines]:
    yield Pipelines(tmp_path / "home", spark)
    faults.install(None)


def parquet(path: Path, rows: dict[str, list[Any]]) -> bytes:
    pq.write_table(pa.table(rows), path)
    return path.read_bytes()


def many() -> dict[str, list[Any]]:
    dice = random.Random(7)
    return {"id": list(range(100, 100 + MANY)), "s": [f"{dice.random()}" for _ in range(MANY)]}


def cut(path: Path) -> None:
    path.write_bytes(parquet(path, many())[:-1000])


def no_parquet(path: Path) -> None:
    path.write_bytes(b"this is a text, and long enough to have a footer")


def flipped(path: Path) -> None:
    data = bytearray(parquet(path, many()))
    for at in range(2000, 2400):
        data[at] ^= 0xFF
    path.write_bytes(bytes(data))


def other_types(path: Path) -> None:
    parquet(path, {"id": ["a", "b"], "s": ["x", "y"]})


def same_names(path: Path) -> None:
    parquet(path, {"id": [7, 8], "s": ["x", "y"], "S": ["x", "y"]})


def cut_gzip_json(path: Path) -> None:
    lines = "".join(json.dumps({"id": i, "s": s}) + "\n" for i, s in zip(*many().values(), strict=True))
    data = gzip.compress(lines.encode())
    path.write_bytes(data[: len(data) // 2])


def cut_gzip_csv(path: Path) -> None:
    data = gzip.compress("".join(f"{i},{s}\n" for i, s in zip(*many().values(), strict=True)).encode())
    path.write_bytes(data[: len(data) // 2])


def no_gzip(path: Path) -> None:
    path.write_text('{"id": 7, "s": "x"}\n')


BROKEN: dict[str, tuple[str, str, Callable[[Path], None], str]] = {
    "cut": ("parquet", "2.parquet", cut, "is not a Parquet file"),
    "magic": ("parquet", "2 %41.parquet", no_parquet, "is not a Parquet file"),
    "flipped": ("parquet", "2.parquet", flipped, "FAILED_TO_UNCOMPRESS"),
    "types": ("parquet", "2.parquet", other_types, "column: [id], physicalType: BINARY"),
    "names": ("parquet", "2.parquet", same_names, 'duplicate field(s) "s": [s, S]'),
    "gz": ("json", "2.json.gz", cut_gzip_json, "EOFException: Unexpected end of input stream"),
    "gzcsv": ("csv", "2.csv.gz", cut_gzip_csv, "EOFException: Unexpected end of input stream"),
    "nogz": ("json", "2.json.gz", no_gzip, "not a gzip file"),
}


def good(folder: Path, form: str, number: int) -> None:
    path = folder / f"{number}.{form}"
    match form:
        case "json":
            path.write_text(json.dumps({"id": number, "s": "good"}) + "\n")
        case "csv":
            path.write_text(f"{number},good\n")
        case _:
            parquet(path, {"id": [number], "s": ["good"]})


def make(tmp_path: Path, *options: str) -> str:
    """All broken files, each in a folder of its own beside a good one, and their sinks, with options in turns."""
    for name, (form, file, write, _) in BROKEN.items():
        (tmp_path / name).mkdir()
        good(tmp_path / name, form, 1)
        write(tmp_path / name / file)
    sinks = zip(BROKEN.items(), cycle(options or [""]))
    return LAKE + "".join(SOURCE.format(name, tmp_path, form, turn) for (name, (form, *_)), turn in sinks)


def test_a_broken_file_halts_its_sink_and_is_named_and_a_restart_goes_on_once_it_is_mended(
    pipelines: Pipelines, tmp_path: Path
) -> None:
    causes = {result.name: result.cause for result in pipelines.run(make(tmp_path))}
    for name, (_, file, _, words) in BROKEN.items():
        cause = causes[name]
        assert isinstance(cause, UnreadableFile), name
        assert cause.primary == "a file of the input cannot be read"
        assert str(tmp_path / name / file) in cause.detail, name
        assert words in cause.detail
        assert "rename" in cause.hint or "rewrite the file" in cause.hint or "dead letter" in cause.hint
        assert pipelines.rows(f"x.{name}") == []
    assert not list((tmp_path / "home").rglob("calve-*.parquet")), "what was written of such a batch is removed"

    for name, (form, file, *_) in BROKEN.items():
        (tmp_path / name / file).unlink()
        good(tmp_path / name, form, 2)
    assert [(r.cause, r.pending) for r in pipelines.run()] == [(None, 0)] * len(BROKEN)
    for name in BROKEN:
        assert pipelines.rows(f"x.{name}") == [(1, "good"), (2, "good")], name


@pytest.mark.parametrize(
    "options",
    [(LETTERS, WINDOWS), *(pytest.param((options,), marks=pytest.mark.soak) for options in (LETTERS, WINDOWS))],
    ids=["in turns", "letters", "windows"],
)
def test_a_broken_file_is_one_dead_letter_and_the_others_arrive(
    pipelines: Pipelines, tmp_path: Path, options: Sequence[str]
) -> None:
    text = make(tmp_path, *options)
    assert [(r.cause, r.pending) for r in pipelines.run(text)] == [(None, 0)] * len(BROKEN)
    for name, (form, file, _, words) in BROKEN.items():
        assert pipelines.rows(f"x.{name}") == [(1, "good")], name
        ((path, value, reason, detail),) = pipelines.rows(f"x.{name}_dead_letters", "file", "value", "reason", "detail")
        assert (path, value, reason) == (str(tmp_path / name / file), None, "a file of the input cannot be read")
        assert words in detail
        good(tmp_path / name, form, 3)
    assert [(r.cause, r.pending) for r in pipelines.run()] == [(None, 0)] * len(BROKEN)
    for name in BROKEN:
        assert pipelines.rows(f"x.{name}") == [(1, "good"), (3, "good")], name
        assert len(pipelines.rows(f"x.{name}_dead_letters", "file")) == 1, "it is read once"
    assert verify(pipelines.place, "gz").none
    assert verify(pipelines.place, "cut").none


def test_empty_files_and_folders_named_like_files_have_no_rows(pipelines: Pipelines, tmp_path: Path) -> None:
    for name, form in (("a", "json"), ("b", "csv"), ("c", "parquet")):
        (tmp_path / name / f"x.{form}").mkdir(parents=True)
        (tmp_path / name / f"empty.{form}").write_bytes(b"")
        good(tmp_path / name, form, 1)
        good(tmp_path / name / f"x.{form}", form, 2)
        pipelines.apply((LAKE if name == "a" else "") + SOURCE.format(name, tmp_path, form, ""))
    assert [r.cause for r in pipelines.run()] == [None] * 3
    for name in "abc":
        assert pipelines.rows(f"x.{name}") == [(1, "good"), (2, "good")]


def between_listing_and_reading(action: Callable[[], object]) -> None:
    """Do something once, after the frame was made and before it is read."""
    done: list[bool] = []

    def hook(point: str) -> None:
        if point in {"files.before", "stage.before"} and not done:
            done.append(True)
            action()

    faults.install(hook)


BY_WINDOW = "WITH (COMMIT INTERVAL = '2s', CHECKPOINT INTERVAL = '1s')"


@diagonal(change=["deleted", "longer"], form=["json", "parquet"], options=["", BY_WINDOW])
def test_a_file_that_changes_while_it_is_read_is_never_half_in_the_table(
    pipelines: Pipelines, tmp_path: Path, form: str, change: str, options: str
) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    good(folder, form, 1)
    good(folder, form, 2)
    path = folder / f"2.{form}"

    def grow() -> None:
        if form == "json":
            path.write_text("".join(json.dumps({"id": i, "s": "long"}) + "\n" for i in range(2, 500)))
        else:
            parquet(path, {"id": list(range(2, 500)), "s": ["long"] * 498})

    between_listing_and_reading(path.unlink if change == "deleted" else grow)
    (result,) = pipelines.run(LAKE + SOURCE.format("a", tmp_path, form, options))
    assert isinstance(result.cause, SourceLost)
    assert str(path) in result.cause.detail
    assert pipelines.rows("x.a") == []
    left = [p for folder in ("warehouse", "state") for p in (tmp_path / "home" / folder).rglob("*.parquet")]
    assert not left, "nothing of that batch stays"
    (result,) = pipelines.run()
    assert result.cause is None
    expected = [(1, "good")] if change == "deleted" else [(1, "good"), *((i, "long") for i in range(2, 500))]
    assert pipelines.rows("x.a") == expected


def test_json_that_is_nested_too_deeply_halts_the_sink_and_a_restart_goes_on(
    pipelines: Pipelines, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "1.json"
    path.write_text('{"id": 1, "s": ' + "[" * 600 + "]" * 600 + "}\n")
    (result,) = pipelines.run(LAKE + SOURCE.format("a", tmp_path, "json", ""))
    assert isinstance(result.cause, TerminalError)
    path.unlink()
    good(tmp_path / "a", "json", 2)
    (result,) = pipelines.run()
    assert (result.cause, pipelines.rows("x.a")) == (None, [(2, "good")])


def test_columns_of_files_that_cannot_be_read_are_told_at_the_start(pipelines: Pipelines, tmp_path: Path) -> None:
    pipelines.apply(LAKE)
    for name, write, words in (("a", cut, "is not a Parquet file"), ("b", same_names, "`s` already exists")):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "1.parquet")
        source = files(tmp_path / name, format="parquet").open(open_state(str(tmp_path / "state")), SystemClock())
        with pytest.raises(TerminalError) as refused:
            source.schema(pipelines.place.spark())
        assert words in refused.value.detail
        assert refused.value.hint
