"""The newest dead letters, without the rest of their table."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import requests

from calve.api import letters
from calve.api.letters import newest_letters
from calve.errors import BadRow
from calve.iceberg.planning.table_scan import Scan
from calve.iceberg.planning.travel import AsOf
from calve.iceberg.schema.readable import ReadTarget
from calve.iceberg.small_tables.dead_letters import LetterTable
from calve.model.change import Letter, Origin
from calve.model.health import Health
from calve.model.scan import FileSplit
from calve.reader.deletes import TaskDeletes
from calve.reader.rows import read_split
from tests.support.homes import add_letters, bad_amount, served, sinks_in_many_states, status_of, write
from tests.support.pipelines import eventually
from tests.support.runs import Run, spec_of


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, spec_of("orders"))


def found(run: Run, most: int = 20, sink: str = "orders") -> list[letters.LetterNote]:
    table = run.catalog.load_table(run.spec.table.dead_letters.identifier)
    return newest_letters(Scan.of(table, AsOf()), sink, most)


def test_the_newest_letters_of_a_sink_come_with_place_reason_and_hint_and_without_their_records(run: Run) -> None:
    add_letters(run, [bad_amount(n, f"x{n}") for n in range(5)])
    add_letters(run, [bad_amount(9, "of another sink")], sink="other")
    add_letters(run, [Letter(Origin(file="in/a.json"), BadRow("the file is damaged"))])
    notes = found(run, most=3)
    assert [note.place for note in notes] == [
        "file in/a.json",
        "topic orders partition 1 offset 4",
        "topic orders partition 0 offset 3",
    ]
    assert notes[1].detail == 'Got "x4".'
    assert "Mend the record" in notes[1].hint
    assert notes[0].at_ms >= notes[1].at_ms >= notes[2].at_ms
    assert not [note for note in found(run) if "secret" in repr(note)]
    assert len(found(run)) == 6


def test_long_texts_are_clipped(run: Run) -> None:
    add_letters(run, [bad_amount(1, "9" * 100_000)])
    (note,) = found(run)
    assert len(note.detail) == letters.MOST_TEXT
    assert note.detail.endswith("…")


def test_only_the_newest_files_are_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(split: FileSplit, target: ReadTarget, deletes: TaskDeletes) -> Iterator[pa.RecordBatch]:
        read.append(split.file.path)
        return read_split(split, target, deletes)

    monkeypatch.setattr("calve.reader.worker.read_split", counted)
    add_letters(run, [bad_amount(n, "x") for n in range(8)])
    assert len(found(run, most=2)) == 2
    assert len(read) == 2
    read.clear()
    monkeypatch.setattr(letters, "MOST_FILES", 3)
    assert len(found(run, most=100)) == len(read) == 3
    monkeypatch.setattr(letters, "MOST_ROWS", 1)
    assert len(found(run, most=100)) == 1
    read.clear()
    assert found(run, sink="zebra") == []
    assert read == [], "by the bounds of their files"


def test_one_file_with_many_letters_shows_the_newest_of_them(run: Run) -> None:
    table = LetterTable(run.catalog, run.spec.table.dead_letters, "orders", run.clock, run.ids)
    table.add([bad_amount(n, "x") for n in range(500)], "checkpoint 1")
    assert len(found(run)) == 20


@pytest.mark.long
def test_letters_are_on_the_page_and_new_ones_follow(tmp_path: Path) -> None:
    run = sinks_in_many_states(tmp_path)
    with served(tmp_path) as page:

        def shown() -> list[str]:
            assert requests.get(page.url + "api/state", timeout=10).status_code == 200
            body = requests.get(page.url + "api/sinks/orders", timeout=10).json()
            return [letter["detail"] for letter in body["letters"]]

        eventually(lambda: shown() == ['Got "–".', 'Got "n/a".', 'Got "1.000.0".', 'Got "12,50".'])
        add_letters(run, [bad_amount(120_400, "new")])
        last = run.now.metadata.current_snapshot_id
        status = status_of("orders", Health.RUNNING, dead_letters=5, last_snapshot_id=last)
        write(tmp_path, replace(status, counts="offsets"))
        eventually(lambda: shown()[:1] == ['Got "new".'])


def test_a_sink_whose_dead_letter_table_does_not_exist_has_none(tmp_path: Path) -> None:
    run = Run(tmp_path, spec_of("orders"))
    receipt = run.commit({1: "a"})
    assert receipt is not None
    write(tmp_path, status_of("orders", Health.RUNNING, dead_letters=1, last_snapshot_id=receipt.snapshot_id))
    with served(tmp_path) as page:

        def details() -> dict[str, object]:
            requests.get(page.url + "api/state", timeout=10)
            body = requests.get(page.url + "api/sinks/orders", timeout=10).json()
            assert body["letters"] == []
            found: dict[str, object] = body["details"]
            return found

        eventually(lambda: details()["found"] is True)
        assert details()["error"] == ""
