"""Version hints: DuckDB reads a table of the home's catalog by its folder; no hint is left behind another commit."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from calve.catalog.connect import connect_embedded
from calve.catalog.version_hint import VERSION_HINT, HomeCatalog, write_hint
from tests.unit.iceberg.sample import NAME, Sample


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[Sample]:
    table = Sample(tmp_path)
    table.commit({1: "a"})
    yield table
    table.close()


def hint_of(sample: Sample) -> Path:
    return Path(sample.table.metadata_location.removeprefix("file://")).parent / VERSION_HINT


def current(sample: Sample) -> str:
    return Path(sample.table.metadata_location).name.removesuffix(".metadata.json")


def test_a_hint_names_the_newest_metadata_file_after_every_commit(sample: Sample) -> None:
    for number in range(3):
        sample.commit({number + 2: "b"})
        assert hint_of(sample).read_text() == current(sample)
    assert not list(hint_of(sample).parent.glob(f".{VERSION_HINT}*"))


def test_a_hint_that_a_dead_process_left_behind_is_corrected_when_the_table_is_loaded(sample: Sample) -> None:
    hint_of(sample).write_text("00000-gone")
    again = connect_embedded(sample.home)
    again.load_table(NAME.identifier)
    again.close()
    assert hint_of(sample).read_text() == current(sample)


def test_a_slow_writer_does_not_put_an_older_hint_in_place_of_a_newer_one(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = connect_embedded(sample.home)
    table = other.load_table(NAME.identifier)
    overtaken: list[str] = []

    def overtake(location: str) -> None:
        if not overtaken:
            overtaken.append(location)
            with table.transaction() as transaction:
                transaction.set_properties({"note": "committed in between"})
        write_hint(location)

    monkeypatch.setattr("calve.catalog.version_hint.write_hint", overtake)
    sample.commit({2: "b"})
    assert overtaken
    assert hint_of(sample).read_text() == current(sample)
    assert overtaken[0].rpartition("/")[2] != f"{current(sample)}.metadata.json"
    other.close()


def test_a_hint_that_cannot_be_written_does_not_fail_the_commit(
    sample: Sample, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_location: str) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("calve.catalog.version_hint.write_hint", full)
    before = current(sample)
    sample.commit({2: "b"})
    assert current(sample) != before
    assert isinstance(sample.catalog, HomeCatalog)
    assert "version hint" in caplog.text
