"""Letters are kept once, whoever adds them and how often."""

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from calve import faults
from calve.catalog.connect import connect_embedded
from calve.clock import RandomIds, SystemClock
from calve.errors import BadRow, InvalidInput, TransientError
from calve.iceberg.small_tables import dead_letters
from calve.iceberg.small_tables.dead_letters import SCHEMA, LetterTable
from calve.model.change import Letter, Origin
from calve.model.spec import HOUR_MS, RetentionOptions, TableName
from tests.support.clocks import ManualClock
from tests.support.foreign import NAME as FOREIGN
from tests.support.foreign import ForeignTable
from tests.support.readers import duckdb_rows

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


def test_a_table_of_letters_that_was_dropped_is_named(tmp_path: Path) -> None:
    table = opened(tmp_path)
    connect_embedded(tmp_path).drop_table(NAME.identifier)
    with pytest.raises(InvalidInput, match=r'table "x\.letters" does not exist'):
        table.add([letter(1)], "q/0")
    with pytest.raises(InvalidInput, match=r'table "x\.letters" does not exist'):
        table.withdraw("q/0")


@pytest.mark.parametrize(
    "file", ["it's.json", "two\nlines.json", "a\ttab.json", "back\\slash.json", 'a "b".json', "%20ü"]
)
def test_a_letter_of_a_file_with_any_name_is_found_again(tmp_path: Path, file: str) -> None:
    table = opened(tmp_path, f"sink of {file}")
    assert table.add([Letter(Origin(file=file), BadRow("no"))], "q/0") == 1
    assert table.add([Letter(Origin(file=file), BadRow("no"))], "q/1") == 0


@pytest.mark.long
def test_letters_of_many_partitions_and_files_are_found_again(tmp_path: Path) -> None:
    table = opened(tmp_path)
    places = [Origin("t", partition, 7) for partition in range(500)] + [Origin(file=str(n)) for n in range(500)]
    letters = [Letter(origin, BadRow("no")) for origin in places]
    assert (table.add(letters, "q/0"), table.add(letters, "q/1")) == (1000, 0)


def offsets(home: Path, sink: str = "s") -> list[int]:
    rows = connect_embedded(home).load_table(NAME.identifier).scan().to_arrow().to_pylist()
    return sorted(row["offset"] for row in rows if row["sink"] == sink)


def digests(*letters: Letter) -> set[str]:
    return {one.origin.digest for one in letters}


def test_removed_letters_leave_those_of_other_sinks_and_times(tmp_path: Path) -> None:
    table, other = opened(tmp_path), opened(tmp_path, "another sink")
    table.add([letter(1), letter(2), letter(2), letter(3)], "q/0")
    other.add([letter(1), letter(2)], "q/0")
    until = datetime.now(UTC)
    assert table.remove(digests(letter(1), letter(2)), until) == 3
    assert (offsets(tmp_path), offsets(tmp_path, "another sink")) == ([3], [1, 2])
    table.add([letter(1)], "q/1")
    assert table.remove(digests(letter(1)), until - timedelta(days=1)) == 0, "met again, it is another letter"
    assert (offsets(tmp_path), kept(tmp_path)) == ([1, 3], 4)


def test_a_removal_whose_answer_was_lost_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(tmp_path)
    table.add([letter(1), letter(2)], "q/0")
    monkeypatch.setattr(faults, "_hook", faults.parse("metastore.after=error"))
    now = datetime.now(UTC)
    with pytest.raises(TransientError):
        table.remove(digests(letter(1)), now)
    monkeypatch.setattr(faults, "_hook", None)
    assert table.remove(digests(letter(1)), now) == 0
    assert offsets(tmp_path) == [2]


def test_removals_and_additions_that_race_lose_nothing(tmp_path: Path) -> None:
    opened(tmp_path).add([letter(n) for n in range(6)], "q/0")
    now = datetime.now(UTC)
    removals = [lambda n=n: opened(tmp_path).remove(digests(letter(n), letter(n + 1)), now) for n in (0, 2)]
    additions = [lambda n=n: opened(tmp_path).add([letter(n)], "q/1") for n in (10, 11)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda work: work(), [*removals, *additions])) == [2, 2, 1, 1]
    assert offsets(tmp_path) == [4, 5, 10, 11]


def test_letters_of_a_checkpoint_that_was_never_recorded_are_withdrawn(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.add([letter(1)], "q/0")
    of_view, of_file = Letter(Origin(value=b"{}"), BadRow("no")), Letter(Origin(file="a.gz"), BadRow("no"))
    table.add([letter(2), letter(3), of_view, of_file], "q/1")
    opened(tmp_path, "another sink").add([letter(2)], "q/1")
    assert table.withdraw("q/1", kept=digests(letter(3))) == 1
    left = connect_embedded(tmp_path).load_table(NAME.identifier).scan().to_arrow().to_pylist()
    assert sorted((row["sink"], row["offset"] or 0) for row in left) == [
        ("another sink", 2),
        ("s", 0),
        ("s", 0),
        ("s", 1),
        ("s", 3),
    ]


def test_letters_that_another_engine_deleted_do_not_come_back(tmp_path: Path) -> None:
    foreign = ForeignTable(tmp_path, SCHEMA)
    name = TableName.parse(FOREIGN)
    table = LetterTable(foreign.catalog, name, "s", SystemClock(), RandomIds())
    now = datetime.now(UTC)
    rows = [{"sink": "s", **vars(letter(n).origin), "reason": "no", "met_at": now} for n in range(4)]
    file = foreign.data(rows)
    foreign.commit(file)
    foreign.commit(foreign.positions([(file, 1)]))
    for n in range(10, 30):  # more manifests than a commit leaves as they are
        table.add([letter(n)], "q/1")
    assert table.remove(digests(letter(0)), now) == 1
    left = [row["offset"] for row in duckdb_rows(foreign.table.metadata_location)]
    assert sorted(left) == [2, 3, *range(10, 30)]
    foreign.close()


def test_many_small_additions_become_one_file_and_each_letter_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "FILES_MERGED", 4)
    table, other = opened(tmp_path), opened(tmp_path, "another sink")
    first: dict[tuple[str, int], object] = {}
    sizes = []
    for number in range(12):
        assert (other if number % 3 == 0 else table).add([letter(number)], f"q/{number}") == 1
        now = connect_embedded(tmp_path).load_table(NAME.identifier)
        found = {(row["sink"], row["offset"]): row for row in duckdb_rows(now.metadata_location)}
        assert found == found | first, "letters that were there are unchanged"
        assert len(found) == number + 1
        first = dict(found)
        sizes.append(len(list(now.scan().plan_files())))
    assert sizes == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4]
    assert table.add([letter(number) for number in range(12) if number % 3], "q/again") == 0
    assert table.remove(digests(letter(1)), datetime.now(UTC)) == 1
    assert kept(tmp_path) == 11


def test_large_files_of_letters_are_not_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "FILES_MERGED", 3)
    table = opened(tmp_path)
    table.add([letter(0, bytes(random.Random(0).randbytes(dead_letters.SMALL_FILE_BYTES)))], "q/0")
    for number in range(1, 5):
        table.add([letter(number)], f"q/{number}")
    files = list(connect_embedded(tmp_path).load_table(NAME.identifier).scan().plan_files())
    assert sorted(task.file.record_count for task in files) == [1, 4], "the large one and the merged ones"
    assert kept(tmp_path) == 5


def test_an_addition_that_merges_and_fails_before_or_after_its_commit_keeps_every_letter_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "FILES_MERGED", 2)
    table = opened(tmp_path)
    for number in range(2):
        table.add([letter(number)], f"q/{number}")
    for place in ("deadletter.before", "deadletter.after"):
        monkeypatch.setattr(faults, "_hook", faults.parse(f"{place}=error"))
        with pytest.raises(TransientError):
            table.add([letter(2)], "q/2")
    assert table.add([letter(2)], "q/2") == 0
    assert kept(tmp_path) == 3


def test_the_history_of_letters_is_bounded_and_snapshots_of_the_last_hour_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "KEPT", RetentionOptions(max_age_ms=HOUR_MS, min_snapshots=3))
    clock = ManualClock(SystemClock().now_ms())
    catalog = connect_embedded(tmp_path)
    table = LetterTable(catalog, NAME, "s", clock, RandomIds())
    numbers = []
    for number in range(20):
        assert table.add([letter(number)], f"q/{number}") == 1
        numbers.append(len(catalog.load_table(NAME.identifier).metadata.snapshots))
        clock.seconds += 7200 if number < 12 else 60
    assert max(numbers[:12]) == 6
    assert numbers[12:] == [5, 6, 3, 4, 5, 6, 7, 8], "all eight of the last hour stay"
    assert len(list((tmp_path / "warehouse").rglob("*-snap-*.avro"))) == numbers[-1]
    assert kept(tmp_path) == 20
    assert table.add([letter(number) for number in range(20)], "q/again") == 0
