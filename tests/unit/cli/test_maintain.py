"""`calve maintain`: what it does, what it would do, what it refuses."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calve.cli.main import app
from calve.errors import InvalidInput
from tests.unit.iceberg.sample import Sample


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


def test_files_become_few_and_a_second_time_there_is_nothing_to_do(sample: Sample) -> None:
    assert said(sample, "shop.orders", "--dry-run") == [
        "compact: 2 files with 3 rows would be rewritten as 1",
        "convert: 1 files of equality deletes would be converted",
    ]
    assert len(sample.table.inspect.data_files()) == 2, "nothing was done"
    first, second = said(sample, "shop.orders")
    assert first.startswith("compact: 2 files with 3 rows became 1 with 2, snapshot ")
    assert second == "convert: nothing to do", "a compaction applies all deletes"
    assert len(sample.table.inspect.files()) == 1
    assert said(sample, "shop.orders") == ["compact: nothing to do", "convert: nothing to do"]


def test_single_jobs_are_done_by_name(sample: Sample) -> None:
    (line,) = said(sample, "shop.orders", "--only", "convert")
    assert line.startswith("convert: 1 files of equality deletes became 1 of 1 position deletes, snapshot ")
    assert len(sample.table.inspect.data_files()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shop.orders", "--only", "compact, polish"], 'unknown maintenance job "polish"'),
        (["orders_sink"], 'there is no sink "orders_sink"'),
        (["shop.nothing"], "shop.nothing"),
    ],
)
def test_what_is_not_there_is_refused_by_name(sample: Sample, arguments: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        said(sample, *arguments)
