import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calve.cli.main import app
from calve.errors import InvalidInput
from tests.unit.cli.reading import printed
from tests.unit.iceberg.sample import Sample


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[Sample]:
    table = Sample(tmp_path)
    table.commit({1: "a", 2: "b"})
    table.commit({2: "bb", 3: "c"}, [1, 2])
    table.commit({3: "cc"}, [3])
    yield table
    table.close()


def changes(sample: Sample, *options: str) -> list[tuple[str, int, str | None, int]]:
    lines = printed(sample, "--changes", "--format", "json", *options).splitlines()
    found = [json.loads(line) for line in lines]
    return [(row["_change_type"], row["id"], row["v"], row["_commit_version"]) for row in found]


def test_changes_are_printed_net_or_step_by_step_with_or_without_former_rows(sample: Sample) -> None:
    first = str(sample.table.metadata.snapshots[0].snapshot_id)
    assert sorted(changes(sample, "--since", first)) == [
        ("delete", 1, None, 2),
        ("insert", 3, "cc", 3),
        ("update_postimage", 2, "bb", 2),
    ]
    assert ("update_preimage", 2, "b", 2) in changes(sample, "--since", first, "--before")
    assert changes(sample, "--since", "[20]", "--every-step", "--before") == [
        ("update_preimage", 3, "c", 3),
        ("update_postimage", 3, "cc", 3),
    ]
    assert sorted(changes(sample, "--until", "[10]")) == [("insert", 1, "a", 1), ("insert", 2, "b", 1)]
    assert "_change_type" in printed(sample, "--changes", "--since", first)


def test_the_plan_says_what_is_read(sample: Sample) -> None:
    text = printed(sample, "--changes", "--since", "[10]", "--explain")
    assert "2 of 2 snapshots may change rows" in text
    assert "2 files that enter or leave the table" in text
    assert "2 files of equality deletes, 3 rows" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--since", "5"], "need --changes"),
        (["--before"], "need --changes"),
        (["--changes", "--snapshot", "5"], "between two snapshots"),
        (["--changes", "--since", "5"], "has no snapshot 5"),
    ],
)
def test_options_that_do_not_go_together_are_refused(sample: Sample, options: list[str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        printed(sample, *options)


def test_a_folder_has_no_changes(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="neither a connection nor snapshots"):
        CliRunner().invoke(app, ["read", f"{tmp_path}/", "--changes"], catch_exceptions=False)
