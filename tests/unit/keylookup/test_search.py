"""Searches of many files: random ones beside a plain model, and what is written and read several files at a time."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from calve.clock import RandomIds, SystemClock
from calve.iceberg.files import position_deletes
from calve.iceberg.files.position_deletes import DeletePlace, RowPositions, write_position_deletes
from calve.iceberg.snapshot.conversion import Conversions
from calve.keylookup.search import search_here
from calve.model.files import WrittenFile
from calve.model.scan import ScanFile
from calve.reader import key_positions
from calve.reader.key_positions import KeyMemory, MemoryLimits, PositionFinder
from tests.support.foreign import ForeignTable
from tests.support.keyed import KeyedTable
from tests.unit.keylookup.test_resolver import SCHEMA, lose, row

KEYS = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "name", StringType(), required=False),
)
EVERYTHING = MemoryLimits(key_bytes=1 << 30, deleted_rows=1 << 30, positions=1 << 30)


class Model:
    """What is known of a table: every row with its file, position and age, and every delete with its age."""

    def __init__(self, table: ForeignTable, rng: random.Random) -> None:
        self.table, self._rng = table, rng
        self._rows: list[tuple[str, int, int, dict[str, Any]]] = []
        self._files: list[WrittenFile] = []
        self._by_key: list[tuple[int, list[dict[str, Any]]]] = []
        self._by_position: set[tuple[str, int]] = set()

    def commit(self, age: int) -> None:
        """Some small data files, equality deletes of one or both columns, and some position deletes."""
        rng, files = self._rng, list[WrittenFile]()
        for _ in range(rng.randrange(1, 6)):
            rows = [self._row() for _ in range(rng.randrange(1, 9))]
            files.append(self.table.data(rows, row_group_size=3))
            self._rows += [(files[-1].path, at, age, one) for at, one in enumerate(rows)]
        self._files += files
        for names in rng.sample([["id"], ["name"], ["id", "name"]], rng.randrange(3)):
            keys = [{name: one[name] for name in names} for one in (self._row() for _ in range(3))]
            files.append(self.table.equality(names, keys))
            self._by_key.append((age, keys))
        if rng.random() < 0.5:
            gone = [(file, rng.randrange(file.record_count)) for file in rng.sample(self._files, 1)]
            files.append(self.table.positions(gone))
            self._by_position |= {(file.path, at) for file, at in gone}
        self.table.commit(*files)

    def hidden(self) -> dict[str, list[int]]:
        """Rows that equality deletes hide, and position deletes do not, by file."""
        found: dict[str, list[int]] = {}
        for path, at, age, one in self._rows:
            newer = (key for written, keys in self._by_key if written > age for key in keys)
            if (path, at) not in self._by_position and any(key.items() <= one.items() for key in newer):
                found.setdefault(path, []).append(at)
        return found

    def _row(self) -> dict[str, Any]:
        return {"id": self._rng.choice([None, *range(12)]), "name": self._rng.choice([None, "", "a", "b", "é"])}


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 60))])
@pytest.mark.parametrize("compared_rows", [1, 10, 100_000])
def test_a_search_of_many_files_finds_what_a_model_finds(
    seed: int, compared_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_positions, "_COMPARED_ROWS", compared_rows)
    model = Model(ForeignTable(tmp_path, KEYS), random.Random(seed))
    for age in range(7):
        model.commit(age)
    plan = Conversions(SystemClock(), RandomIds()).plan(model.table.table, 1 << 40)
    assert plan is not None
    finder = PositionFinder(plan.target, plan.files, KeyMemory(EVERYTHING))
    for _ in range(2):  # from files, then from memory
        found = search_here(plan.files, finder)
        assert {one.file.path: one.positions.tolist() for one in found if len(one.positions)} == model.hidden()
    model.table.close()


# ---------------------------------------------------------------------------------------------------- position deletes


def deletes_of(partitions: int) -> list[RowPositions]:
    files = [
        ScanFile(f"file:///data/{at:03d}.parquet", 0, 0, 0, spec_id=1, partition=(at,)) for at in range(partitions)
    ]
    return [RowPositions(file, np.arange(at + 1)) for at, file in enumerate(files)]


def test_deletes_of_many_partitions_are_in_the_order_of_their_files(tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []
    written = write_position_deletes(
        DeletePlace(tmp_path.as_uri()), deletes_of(40), "one", lambda path, rows: told.append((path, len(rows)))
    )
    assert [file.partition for file in written] == [(at,) for at in range(40)]
    assert told == [(file.path, 1) for file in written]
    for at, file in enumerate(written):
        rows = pq.read_table(file.path.removeprefix("file://"))
        assert rows["file_path"].unique().to_pylist() == [f"file:///data/{at:03d}.parquet"]
        assert rows["pos"].to_pylist() == list(range(at + 1))


def test_a_failure_leaves_none_of_several_files_of_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = position_deletes._write_file

    def write(members: Sequence[RowPositions], location: str, place: DeletePlace) -> WrittenFile:
        if members[0].file.partition == (11,):
            raise OSError("the disk is full")
        return really(members, location, place)

    monkeypatch.setattr(position_deletes, "_write_file", write)
    told: list[str] = []
    with pytest.raises(OSError, match="the disk is full"):
        write_position_deletes(DeletePlace(tmp_path.as_uri()), deletes_of(40), "one", lambda path, _: told.append(path))
    assert (told, list(tmp_path.rglob("*.parquet"))) == ([], [])


# --------------------------------------------------------------------------------------------------------------- ahead


@pytest.fixture
def table(tmp_path: Path) -> Iterator[KeyedTable]:
    made = KeyedTable(tmp_path, SCHEMA, ["id"])
    yield made
    made.close()


def added_after_a_lookup(table: KeyedTable, looked_up: int) -> WrittenFile:
    """The file of the last batch of a table of two files; a lookup of a key came before."""
    for first in (0, 100):
        rows = [row(number) for number in range(first, first + 10)]
        table.apply([table.data(rows)], rows)
    table.resolved([row(looked_up)])
    rows = [row(number) for number in range(3, 205, 2)]
    new = table.data(rows)
    table.apply([new], rows)
    return new


def test_the_keys_of_new_files_are_read_before_the_next_lookup(table: KeyedTable) -> None:
    new = added_after_a_lookup(table, 5)
    table.resolver.look_ahead()
    lose(new)
    assert table.resolved([row(3), row(4), row(203)]).totals.position_deletes == 3


def test_keys_are_not_read_ahead_when_a_lookup_skips_most_files(table: KeyedTable) -> None:
    for first in range(0, 90, 10):
        rows = [row(first + number) for number in range(10)]
        table.apply([table.data(rows)], rows)
    rows = [row(5), row(500)]
    new = table.data(rows)
    table.apply([new], rows)
    lose(new)
    table.resolver.look_ahead()
