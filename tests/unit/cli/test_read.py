import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calve.cli.main import app
from calve.errors import InvalidInput
from tests.unit.cli.reading import printed
from tests.unit.iceberg.sample import Sample

HUGE = 200_000


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[Sample]:
    table = Sample(tmp_path)
    table.commit({1: "plain", 2: 'with "quotes", and\nlines', 3: ""})
    table.commit({4: "later"}, [1])
    yield table
    table.close()


def test_json_is_one_object_per_line(sample: Sample) -> None:
    found = [json.loads(line) for line in printed(sample, "--format", "json").splitlines()]
    assert {row["id"]: row["v"] for row in found} == {2: 'with "quotes", and\nlines', 3: "", 4: "later"}


def test_csv_has_a_header_and_quotes_what_needs_it(sample: Sample) -> None:
    head, *lines = printed(sample, "--format", "csv").split("\n", 1)
    assert head == "id,v"
    assert '2,"with ""quotes"", and\nlines"\n3,""\n' in lines[0]


def test_a_table_is_plain_where_there_is_no_terminal(sample: Sample) -> None:
    text = printed(sample)
    assert "\x1b" not in text
    assert "later" in text
    assert "3 rows" in text


def test_a_limit_says_that_there_is_more(sample: Sample) -> None:
    assert "the first 1 row; --limit shows more" in printed(sample, "--limit", "1")
    assert len(printed(sample, "--limit", "2", "--format", "json").splitlines()) == 2


def test_a_limit_reads_no_more_than_it_takes(sample: Sample) -> None:
    newest = max(sample.table.inspect.data_files().to_pylist(), key=lambda file: file["file_path"])
    for file in sample.table.inspect.data_files().to_pylist():
        if file["record_count"] == 3:
            Path(file["file_path"].removeprefix("file://")).unlink()
    assert newest
    assert json.loads(printed(sample, "--limit", "1", "--format", "json")) == {"id": 4, "v": "later"}


def test_explain_says_what_is_read_and_reads_nothing(sample: Sample) -> None:
    for file in sample.table.inspect.files().to_pylist():
        Path(file["file_path"].removeprefix("file://")).unlink()
    lines = dict(line.split(None, 1) for line in printed(sample, "--explain").splitlines())
    assert lines["table"] == "shop.orders"
    assert lines["frontier"] == "[20]"
    assert lines["data"].startswith("2 of 2 files, 4 rows, ")
    assert lines["deletes"].startswith("1 files of equality deletes, 1 rows, ")


def test_time_travel_on_the_command_line(sample: Sample) -> None:
    assert '"plain"' in printed(sample, "--as-of-frontier", "15", "--format", "json")
    first = min(sample.table.metadata.snapshots, key=lambda s: s.sequence_number or 0)
    assert '"plain"' in printed(sample, "--snapshot", str(first.snapshot_id), "--format", "json")
    with pytest.raises(InvalidInput, match="only one point in time"):
        printed(sample, "--snapshot", "1", "--as-of-frontier", "1")


@pytest.mark.long
def test_a_reader_that_closes_the_pipe_ends_it_quietly(tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    sample.commit({n: f"value {n}" for n in range(HUGE)})
    sample.close()
    command = [
        sys.executable,
        "-m",
        "calve.cli.main",
        "read",
        "shop.orders",
        "--home",
        str(tmp_path),
        "--format",
        "csv",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"id,v\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    "command", [["read", "a.b"], ["letters", "s"], ["verify", "s"], ["maintain", "s"], ["connect-info", "a.b"]]
)
def test_a_home_that_is_not_there_is_named_and_not_created(command: list[str], tmp_path: Path) -> None:
    home = tmp_path / "elsewhere" / ".calve"
    refused = CliRunner().invoke(app, [*command, "--home", str(home)])
    assert isinstance(refused.exception, InvalidInput)
    assert refused.exception.primary == f'there is no home folder "{home}"'
    assert "--home" in refused.exception.hint
    assert not home.parent.exists()
