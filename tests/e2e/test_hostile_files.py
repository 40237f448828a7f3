"""A folder of hostile files: every line becomes a row of the table, or a dead letter that contains it."""

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from calve.cli.main import app
from calve.errors import BadRow, TerminalError
from tests.support.pipelines import Pipelines

STATEMENTS = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE upserts (id STRING NOT NULL, text STRING, at TIMESTAMP, amount DECIMAL(38,2), tags MAP<STRING, STRING>,
    PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '{0}/in', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq, DELETE WHEN op = 'd');
CREATE SOURCE lines (id STRING NOT NULL, text STRING, at TIMESTAMP, amount DECIMAL(38,2), tags MAP<STRING, STRING>)
  FROM FILES (PATH = '{0}/in', FORMAT = 'json') ENVELOPE NONE;
"""
SINK = """CREATE SINK {0} FROM {0} TO ICEBERG CATALOG lake NAMESPACE "x" TABLE "{0}" KEY (id)
  WITH (ON BAD ROW = 'dead letter');"""

EDGE = "a" * 15 + "\ud7ff"
GOOD: dict[str, bytes] = {
    "edge": b'"text": "' + f"{EDGE}b".encode() + b'"',
    "escape": b'"text": "' + b"a" * 15 + b'\\ud7ffc"',
    "last": b'"text": "' + "\U0010ffff".encode() * 17 + b'"',
    "zero": b'"text": "a\\u0000b"',
    "long": b'"text": "' + b"z" * 100_000 + b'"',
    "pair": b'"text": "\\ud83d\\ude00"',
    "deep": b'"more": ' + b"[" * 300 + b"]" * 300,
    "first moment": b'"at": "0001-01-01T00:00:00Z"',
    "last moment": b'"at": "9999-12-31T23:59:59.999999Z"',
    "most digits": b'"amount": "' + b"9" * 36 + b'.99"',
    "key": b'"tags": {"": "", "\\ud83d\\ude00": null}',
}
BAD: dict[str, bytes] = {
    "half": b'"text": "\\ud800"',
    "half of a key": b'"tags": {"\\udfff": "x"}',
    "half of a value": b'"tags": {"x": "\\udfff"}',
    "before": b'"at": "0001-01-01T00:00:00+14:00"',
    "after": b'"at": "9999-12-31T23:59:59-14:00"',
    "digits": b'"amount": "' + b"1" * 50_000 + b'x"',
    "bytes": b'"amount": {"scale": 2, "value": "' + b"/w" * 50_000 + b'"}',
    "scale": b'"amount": {"scale": -1000000000, "value": "AQ=="}',
    "number": b'"amount": 1e1000000000',
    "nested": b'"text": ' + b"[" * 600 + b"]" * 600,
    "nested number": b'"amount": ' + b"[" * 600 + b"]" * 600,
    "very nested": b'"text": ' + b"[" * 100_000,
    "no text": b'"text": "\xff\xfe"',
    "twice": b'"text": "a", "text": "b"',
}
BAD_OF_UPSERTS = {
    "order": b'"seq": "\\ud800"',
    "no order": b'"seq": [1]',
    "condition": b'"op": "\\udc00"',
}
NAMES = ("10:30.json", "a%20b #?.json", "a\nb.json", "[1]*{x}.json", "\u202e\U0001f600.json", f"{'x' * 240}.json")


def line(name: str, rest: bytes) -> bytes:
    order = b"" if b'"seq"' in rest else b'"seq": 1, '
    return b'{"id": "' + name.encode() + b'", ' + order + rest + b"}"


@pytest.fixture
def pipelines(tmp_path: Path, spark: SparkSession) -> Pipelines:
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [line(name, rest) for name, rest in (GOOD | BAD | BAD_OF_UPSERTS).items()]
    for number, name in enumerate(NAMES):
        (folder / name).write_bytes(b"\n".join(lines[number :: len(NAMES)]) + b"\n\n \n")
    (folder / "loop").symlink_to(".")
    (folder / "again.json").symlink_to(NAMES[0])
    (folder / "nowhere.json").symlink_to("nowhere")
    (folder / ".hidden.json").write_bytes(b"{")
    (folder / "unfinished.json.tmp").write_bytes(b"{")
    os.mkfifo(folder / "pipe.json")
    found = Pipelines(tmp_path / "home", spark)
    found.apply(STATEMENTS.format(tmp_path))
    return found


def test_every_hostile_line_is_a_row_or_a_letter(pipelines: Pipelines) -> None:
    pipelines.apply(SINK.format("upserts") + SINK.format("lines"))
    assert [(r.name, r.cause, r.pending) for r in pipelines.run()] == [("upserts", None, 0), ("lines", None, 0)]
    letters = {"upserts": BAD | BAD_OF_UPSERTS, "lines": BAD}
    for name, bad in letters.items():
        good = (GOOD | BAD | BAD_OF_UPSERTS).keys() - bad.keys()
        assert {row[0] for row in pipelines.rows(f"x.{name}", "id")} == good
        kept = pipelines.rows(f"x.{name}_dead_letters", "value", "reason", "file")
        assert [row[0] for row in kept] == sorted(line(name, rest) for name, rest in bad.items())
        assert all(row[1] and row[2] for row in kept)
    assert ("edge", f"{EDGE}b") in pipelines.rows("x.upserts", "id", "text")
    assert ("long", "z" * 100_000) in pipelines.rows("x.lines", "id", "text")
    shown = CliRunner().invoke(app, ["status", "--home", str(pipelines.home)], catch_exceptions=False)
    assert f"{len(BAD):,} records could not be converted to changes" in shown.output


def test_a_hostile_line_stops_a_sink_that_shall_halt_with_words_that_can_be_printed(
    pipelines: Pipelines, tmp_path: Path
) -> None:
    for file in (tmp_path / "in").iterdir():
        file.unlink()
    (tmp_path / "in" / "1.json").write_bytes(line("half", BAD["half"]))
    pipelines.apply("""CREATE SINK s FROM upserts TO ICEBERG CATALOG lake NAMESPACE "x" TABLE "t";""")
    (result,) = pipelines.run()
    assert isinstance(result.cause, BadRow)
    assert result.cause.primary == r'column "text" is "\ud800", which is not STRING'
    assert "ON BAD ROW = 'dead letter'" in result.cause.hint
    shown = CliRunner().invoke(app, ["status", "--home", str(pipelines.home)], catch_exceptions=False)
    assert r'column "text" is "\ud800"' in shown.output


def test_a_name_that_is_not_utf_8_halts_the_sink_and_is_shown(pipelines: Pipelines, tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path / "in") + b"/\xff.json")
    Path(odd).write_bytes(line("odd", b'"text": "x"'))
    pipelines.apply(SINK.format("lines"))
    (result,) = pipelines.run()
    assert isinstance(result.cause, TerminalError)
    assert result.cause.primary == "the name of a file is not valid UTF-8"
    assert r"/in/\xff.json" in result.cause.detail
    Path(odd).rename(tmp_path / "in" / "even.json")
    assert [(r.cause, r.pending) for r in pipelines.run()] == [(None, 0)]
    assert ("odd",) in pipelines.rows("x.lines", "id")
