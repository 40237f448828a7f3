"""Windows whose checkpoints differ: columns, types and orders that change while rows are staged, with restarts between.

The model is a dictionary: of each key the last row, with the columns that it was read with.
"""

import datetime as dt
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.types import StringType
from pyspark.sql import SparkSession

import calve
from calve.model.checkpoint import Offsets, canonical_offsets
from calve.model.spec import Upsert
from tests.support.changes import Batches
from tests.support.readers import duckdb_rows

TABLE = "shop.t"
PATIENCE = 120


@dataclass(frozen=True)
class Told(Batches):
    """Batches after which more may come; `read` is set once the sink has asked for more than there is."""

    read: threading.Event = field(default_factory=threading.Event)

    def next_end(self, start: Offsets, *, whole: bool = False) -> Offsets:
        end = super().next_end(start, whole=whole)
        if end is None and start == canonical_offsets(len(self.batches)):
            self.read.set()
        return end

    def ended(self, _end: Offsets) -> bool:
        return False


Record = Mapping[str, Any]


class Window:
    """A sink of one long window. Every phase has columns and an order of its own, reads some checkpoints and stops."""

    def __init__(self, home: Path, *, own_times: bool) -> None:
        self.lake = calve.connect(home=home)
        self.own_times = own_times
        self._before: list[list[tuple[Any, ...]]] = []
        self._source: Told | None = None

    def source(self, columns: str, order: str, *checkpoints: Sequence[Record]) -> Told:
        """Records have `columns`, those of `order`, an operation and a time."""
        ddl = f"{columns}, {order}, op STRING, ts BIGINT"
        names = Batches([], ddl, calve.NoEnvelope()).schema(self.lake.spark()).names
        rows = [[tuple(record.get(name) for name in names) for record in records] for records in checkpoints]
        by = tuple(part.split()[0] for part in order.split(", "))
        table = Batches([], columns, calve.NoEnvelope()).schema(self.lake.spark()).names
        envelope = Upsert(order_by=by, delete_when="op = 'd'", columns=", ".join(table))
        source = Told([*self._before, *rows], ddl, envelope)
        self._before += [[] for _ in rows]
        return source

    def sink(self, source: Told) -> Any:
        sink = calve.sink(source, name="s", into=self.lake.table(TABLE), key=["id"])
        return sink.times("ts", watermark_delay="1h") if self.own_times else sink

    def start(self, source: Told) -> Any:
        self._source = source
        return self.sink(source).start(commit_interval="1h", checkpoint_interval="100ms")

    def phase(self, columns: str, order: str, *checkpoints: Sequence[Record]) -> None:
        source = self.source(columns, order, *checkpoints)
        query = self.start(source)
        assert source.read.wait(PATIENCE), query.status()
        query.stop()
        query.await_termination()

    def close(self) -> None:
        """Commit everything with the last definition."""
        assert self._source is not None
        query = self.start(self._source)
        query.await_caught_up(PATIENCE)
        query.stop()

    def rows(self) -> dict[int, dict[str, Any]]:
        """By key, without what is null: readers show columns of later rows, too."""
        found = duckdb_rows(self.lake.open().load_table(TABLE).metadata_location)
        assert len({row["id"] for row in found}) == len(found)
        return {row["id"]: {k: v for k, v in row.items() if v is not None and k != "id"} for row in found}

    def batches(self) -> list[tuple[int, int]]:
        """The times of every batch that was committed."""
        summaries = [s.summary for s in self.lake.open().load_table(TABLE).snapshots()]
        told = [(str(s["calve.batch-lower"]), str(s["calve.frontier"])) for s in summaries if s]
        return [(json.loads(lower)[0], json.loads(upper)[0]) for lower, upper in dict.fromkeys(told) if lower != upper]


@pytest.fixture(params=[False, True], ids=["by the clock", "own times"])
def window(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Window:
    del spark
    return Window(tmp_path / "home", own_times=request.param)


def test_every_row_keeps_the_columns_that_it_was_read_with(window: Window) -> None:
    """Columns come, widen, go, come back and are renamed; structs grow; the order changes in number and type."""
    many = "tags ARRAY<STRUCT<n: INT, at: TIMESTAMP_NTZ>>"
    window.phase(
        "id INT NOT NULL, v STRING, n INT",
        "seq BIGINT",
        [{"id": i, "v": f"a{i}", "n": i, "seq": 9, "ts": 9} for i in range(8)],
    )
    window.phase(
        f"id INT NOT NULL, v STRING, n BIGINT, extra STRUCT<zip: STRING>, {many}",
        "rank STRING, seq INT",
        [
            {"id": 1, "v": "b1", "n": 2**40, "extra": {"zip": "1"}, "tags": [{"n": 1}], "rank": "b", "seq": 1, "ts": 9},
            {"id": 1, "v": "lower", "rank": "a", "seq": 2, "ts": 9},
            {"id": 2, "op": "d", "rank": "a", "seq": 1, "ts": 9},
        ],
        [{"id": 3, "v": "b3", "n": 3, "extra": {"zip": "3"}, "rank": "", "seq": 0, "ts": 9}],
    )
    window.phase(
        "id INT NOT NULL, w STRING, extra STRUCT<zip: STRING, floors: ARRAY<INT>>",
        "at TIMESTAMP, seq BIGINT, rank STRING",
        [
            {"id": 4, "w": "c4", "extra": {"zip": "4", "floors": [1, 2]}, "at": _at(1), "seq": 1, "rank": "", "ts": 10},
            {"id": 4, "w": "older", "at": _at(0), "seq": 9, "rank": "z", "ts": 10},
        ],
    )
    window.phase(
        "id INT NOT NULL, v STRING, n BIGINT",
        "seq BIGINT",
        [{"id": 5, "v": "d5", "n": 5, "seq": -1, "ts": 10}, {"id": 6, "op": "d", "seq": -1, "ts": 10}],
    )
    window.close()
    assert window.rows() == {
        0: {"v": "a0", "n": 0},
        1: {"v": "b1", "n": 2**40, "extra": {"zip": "1", "floors": None}, "tags": [{"n": 1, "at": None}]},
        3: {"v": "b3", "n": 3, "extra": {"zip": "3", "floors": None}},
        4: {"w": "c4", "extra": {"zip": "4", "floors": [1, 2]}},
        5: {"v": "d5", "n": 5},
        7: {"v": "a7", "n": 7},
    }
    batches = window.batches()
    assert len(batches) == (1 if window.own_times else 4), "a window by the clock is split where columns change"
    assert batches[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(batches))


def _at(second: int) -> Any:
    return dt.datetime(2026, 1, 1, 0, 0, second, tzinfo=dt.UTC)


def test_a_column_that_others_replace_in_the_middle_of_a_window_is_another_column(window: Window) -> None:
    window.phase("id INT NOT NULL, v STRING, n INT", "seq BIGINT", [{"id": 1, "v": "a", "n": 1, "seq": 1, "ts": 1}])
    catalog = window.lake.open()
    with catalog.load_table(TABLE).update_schema() as change:
        change.rename_column("v", "called").delete_column("n").add_column("n", StringType())
    window.phase("id INT NOT NULL, v STRING, n STRING", "seq INT", [{"id": 2, "v": "b", "n": "x", "seq": 2, "ts": 2}])
    window.close()
    assert window.rows() == {1: {"called": "a"}, 2: {"called": "b", "n": "x"}}


def test_rows_that_an_older_version_staged_are_read_by_the_columns_of_their_files(
    window: Window, tmp_path: Path
) -> None:
    window.phase("id INT NOT NULL, v STRING", "seq BIGINT", [{"id": 1, "v": "a", "seq": 1, "ts": 1}])
    records = [p for p in (tmp_path / "home" / "state").rglob("rec/*/*") if p.name.isdigit()]
    for path in records:
        record = json.loads(path.read_text())
        if record.get("staged"):
            del record["staged"]["kind"]
            path.write_text(json.dumps(record))
    window.phase("id INT NOT NULL, n INT, v STRING", "rank STRING", [{"id": 2, "v": "b", "n": 2, "rank": "", "ts": 2}])
    window.close()
    assert window.rows() == {1: {"v": "a"}, 2: {"v": "b", "n": 2}}
