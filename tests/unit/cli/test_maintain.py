"""`calve maintain`: what it does, what it would do, what it refuses."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calve.cli.main import app
from calve.errors import InvalidInput
from calve.iceberg.files.names import own_name, table_mark
from tests.support.readers import duckdb_rows
from tests.unit.iceberg.sample import SINK, Sample


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[Sample]:
    table = Sample(tmp_path)
    table.commit({1: "a", 2: "b"})
    table.commit({3: "c"}, [1])
    yield table
    table.close()


def said(sample: Sample, *arguments: str) -> list[str]:
    result = CliRunner().invoke(app, ["maintain", *arguments, "--home", str(sample.home)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout.splitlines()


def results(lines: list[str]) -> list[str]:
    """The lines about results, without the table of numbers."""
    return lines[: lines.index("")]


def test_files_become_few_and_a_second_time_there_is_nothing_to_do(sample: Sample) -> None:
    assert results(said(sample, "shop.orders", "--dry-run")) == [
        "compact: 2 files with 3 rows would be rewritten as 1",
        "convert: 1 files of deletes would be converted",
        "manifests: 2 manifests with 2 files would become 1",
    ]
    assert len(sample.table.inspect.data_files()) == 2, "nothing was done"
    lines = said(sample, "shop.orders", "--quiet")
    assert lines[0].startswith("compact: 2 files with 3 rows became 1 with 2, snapshot ")
    assert lines[1] == "convert: nothing to do", "a compaction applies all deletes"
    assert lines[2] == "manifests: nothing to do"
    heading, *table = lines[4:]
    assert heading.split() == [
        "job",
        "files",
        "before",
        "after",
        "size",
        "before",
        "after",
        "rows",
        "before",
        "after",
        "seconds",
    ]
    numbers = table[0].split()
    assert (numbers[:3], numbers[-3:-1]) == (["compact", "3", "1"], ["3", "2"]), "files and rows, before and after"
    assert len(sample.table.inspect.files()) == 1
    again = results(said(sample, "shop.orders", "--quiet"))
    assert again == [f"{job}: nothing to do" for job in ("compact", "convert", "manifests")]


def test_single_jobs_are_done_by_name(sample: Sample) -> None:
    line = said(sample, "shop.orders", "--only", "convert", "--quiet")[0]
    assert line.startswith("convert: 1 files of equality deletes became 1 of 1 position deletes, snapshot ")
    assert len(sample.table.inspect.data_files()) == 2


def test_orphans_go_after_two_runs_and_the_table_reads_as_before(sample: Sample) -> None:
    name = own_name(table_mark(sample.table.metadata.table_uuid), "00000-left.parquet")
    left = Path(sample.table.location().removeprefix("file://")) / "data" / name
    left.write_bytes(b"left behind")
    orphans = ("shop.orders", "--only", "orphans", "--older-than", "0s", "--force", "--quiet")
    first = said(sample, *orphans)
    assert f"the state of sink {SINK} is out of reach" in first[1], "this sink never stated where its records are"
    assert said(sample, "shop.orders", "--only", "manifests", "--forget", SINK, "--quiet")[0] == (
        f"sink {SINK} is excluded from table shop.orders"
    )
    before = len(sample.table.inspect.data_files())
    second = said(sample, *orphans)
    assert second[0].startswith("orphans: 1 files (11 B) of "), second[0]
    assert not left.exists()
    assert len(sample.table.inspect.data_files()) == before
    assert duckdb_rows(sample.table.metadata_location)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shop.orders", "--only", "compact, polish"], 'unknown maintenance job "polish"'),
        (["orders_sink"], 'there is no sink "orders_sink"'),
        (["shop.nothing"], "shop.nothing"),
        (["shop.orders", "--older-than", "a while"], "--older-than is not a duration"),
        (["shop.orders", "--forget", "nobody"], 'names no sink "nobody"'),
    ],
)
def test_what_is_not_there_is_refused_by_name(sample: Sample, arguments: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        said(sample, *arguments)
