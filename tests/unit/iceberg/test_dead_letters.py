"""Letters are kept once, whoever adds them and how often."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from calve import faults
from calve.catalog.connect import connect_embedded
from calve.clock import RandomIds, SystemClock
from calve.errors import BadRow, TransientError
from calve.iceberg.small_tables.dead_letters import LetterTable
from calve.model.change import Letter, Origin
from calve.model.spec import TableName

NAME = TableName(("x",), "letters")


def opened(home: Path, sink: str = "s") -> LetterTable:
    return LetterTable(connect_embedded(home), NAME, sink, SystemClock(), RandomIds())


def kept(home: Path) -> int:
    return int(connect_embedded(home).load_table(NAME.identifier).scan().to_arrow().num_rows)


def letter(offset: int, value: bytes = b"?", topic: str = "it's") -> Letter:
    return Letter(Origin(topic, 0, offset, value=value), BadRow("no", detail="because", hint="do"))


def test_a_letter_is_known_by_its_place_and_its_bytes_and_its_sink(tmp_path: Path) -> None:
    table = opened(tmp_path)
    assert table.add([letter(1), letter(2)], "q/0") == 2
    assert table.add([letter(2), letter(3), letter(1)], "q/1") == 1
    assert table.add([letter(1, b"another record at the same place"), letter(1, topic="other")], "q/2") == 2
    assert opened(tmp_path, "another sink").add([letter(1)], "q/0") == 1
    assert kept(tmp_path) == 6


def test_a_line_that_is_in_a_file_twice_is_two_letters(tmp_path: Path) -> None:
    table = opened(tmp_path)
    line = Letter(Origin(file="a.json", value=b"x"), BadRow("no"))
    assert table.add([line, line], "q/0") == 2
    assert table.add([line, line], "q/0") == 0
    assert table.add([Letter(Origin(value=b"x"), BadRow("no"))] * 2, "q/0") == 2
    assert kept(tmp_path) == 4


def test_writers_that_race_add_each_letter_once(tmp_path: Path) -> None:
    tables = [opened(tmp_path) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        added = list(pool.map(lambda table: table.add([letter(n) for n in range(5)], "q/0"), tables))
    assert sum(added) == kept(tmp_path) == 5


def test_an_addition_whose_answer_was_lost_is_found_when_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = opened(tmp_path)
    monkeypatch.setattr(faults, "_hook", faults.parse("deadletter.after=error"))
    with pytest.raises(TransientError):
        table.add([letter(1)], "q/0")
    assert table.add([letter(1), letter(2)], "q/0") == 1
    assert kept(tmp_path) == 2


@pytest.mark.parametrize(
    "file", ["it's.json", "two\nlines.json", "a\ttab.json", "back\\slash.json", 'a "b".json', "%20ü"]
)
def test_a_letter_of_a_file_with_any_name_is_found_again(tmp_path: Path, file: str) -> None:
    table = opened(tmp_path, f"sink of {file}")
    assert table.add([Letter(Origin(file=file), BadRow("no"))], "q/0") == 1
    assert table.add([Letter(Origin(file=file), BadRow("no"))], "q/1") == 0


def test_letters_of_many_partitions_and_files_are_found_again(tmp_path: Path) -> None:
    table = opened(tmp_path)
    places = [Origin("t", partition, 7) for partition in range(500)] + [Origin(file=str(n)) for n in range(500)]
    letters = [Letter(origin, BadRow("no")) for origin in places]
    assert (table.add(letters, "q/0"), table.add(letters, "q/1")) == (1000, 0)
