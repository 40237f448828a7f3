"""Windows whose checkpoints differ: columns, types and orders that change while rows are staged, with restarts between.

The model is a dictionary: the last row of each key, with the columns that it was read with.
"""

import datetime as dt
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.types import StringType
from pyspark.sql import SparkSession

import calve
from calve import faults
from calve.errors import InvalidInput
from calve.model.checkpoint import Offsets, canonical_offsets
from calve.model.spec import Diff, Upsert
from calve.watch.status_files import read_statuses
from tests.e2e.test_random_tables import Kind, kinds
from tests.support.changes import Batches, Death, Died, quiet_deaths
from tests.support.pipelines import Pipelines, eventually
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

    def __init__(self, home: Path, *, own_times: bool, delay: str = "1h", interval: str = "1h") -> None:
        self.lake = calve.connect(home=home)
        self.own_times, self._delay, self._interval = own_times, delay, interval
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
        return sink.times("ts", watermark_delay=self._delay) if self.own_times else sink

    def start(self, source: Told) -> Any:
        self._source = source
        return self.sink(source).start(commit_interval=self._interval, checkpoint_interval="10ms")

    def phase(
        self, columns: str, order: str, *checkpoints: Sequence[Record], deaths: Sequence[tuple[str, int]] = ()
    ) -> None:
        source = self.source(columns, order, *checkpoints)
        with quiet_deaths():
            for point, nth in deaths:
                self._die(source, Death(point, nth))
        query = self.start(source)
        assert source.read.wait(PATIENCE), query.status()
        query.stop()
        query.await_termination()

    def _die(self, source: Told, death: Death) -> None:
        faults.install(death)
        try:
            query = self.start(source)
            while query.active and not death.happened.wait(0.05) and not source.read.is_set():
                continue
            query.stop()  # its threads end at the next failpoint they come to
        except Died:
            pass
        finally:
            faults.install(None)
            source.read.clear()

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


BY_THE_CLOCK, OWN_TIMES = pytest.param(False, id="by the clock"), pytest.param(True, id="own times")


def mostly(*kinds: Any) -> pytest.MarkDecorator:
    """Windows of these kinds; of the others in `make soak`."""
    others = (kind for kind in (BY_THE_CLOCK, OWN_TIMES) if kind not in kinds)
    soaked = [pytest.param(*kind.values, id=kind.id, marks=pytest.mark.soak) for kind in others]
    return pytest.mark.parametrize("window", [*kinds, *soaked], indirect=True)


@pytest.fixture
def window(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Window:
    del spark
    return Window(tmp_path / "home", own_times=request.param)


@mostly(BY_THE_CLOCK, OWN_TIMES)
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


@mostly(BY_THE_CLOCK)
def test_a_column_that_others_replace_in_the_middle_of_a_window_is_another_column(window: Window) -> None:
    window.phase("id INT NOT NULL, v STRING, n INT", "seq BIGINT", [{"id": 1, "v": "a", "n": 1, "seq": 1, "ts": 1}])
    catalog = window.lake.open()
    with catalog.load_table(TABLE).update_schema() as change:
        change.rename_column("v", "called").delete_column("n").add_column("n", StringType())
    window.phase("id INT NOT NULL, v STRING, n STRING", "seq INT", [{"id": 2, "v": "b", "n": "x", "seq": 2, "ts": 2}])
    window.close()
    assert window.rows() == {1: {"called": "a"}, 2: {"called": "b", "n": "x"}}


@mostly(OWN_TIMES)
def test_not_null_comes_and_goes_in_the_middle_of_a_window(window: Window) -> None:
    """A column that the source left out once, or that others made optional, may be null; staged nulls stay."""
    order = "seq BIGINT"
    first = {"id": 1, "v": "a", "w": "a", "seq": 1, "ts": 1}
    window.phase("id INT NOT NULL, v STRING NOT NULL, n INT, w STRING NOT NULL", order, [first])
    window.phase("id INT NOT NULL, n INT NOT NULL, w STRING", order, [{"id": 2, "n": 2, "w": "b", "seq": 1, "ts": 2}])
    with window.lake.open().load_table(TABLE).update_schema() as change:
        change.make_column_optional("w")
    window.phase("id INT NOT NULL, v STRING, n INT, w STRING", order, [{"id": 3, "seq": 1, "ts": 3}])
    last = {"id": 4, "v": "d", "n": 4, "w": "d", "seq": 1, "ts": 4}
    window.phase("id INT NOT NULL, v STRING NOT NULL, n INT NOT NULL, w STRING NOT NULL", order, [last])
    window.close()
    assert window.rows() == {
        1: {"v": "a", "w": "a"},
        2: {"n": 2, "w": "b"},
        3: {},
        4: {"v": "d", "n": 4, "w": "d"},
    }


@mostly(BY_THE_CLOCK)
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


# ---- what cannot change while rows wait for times of their own


@pytest.fixture
def timed(spark: SparkSession, tmp_path: Path) -> Window:
    del spark
    return Window(tmp_path / "home", own_times=True)


def test_rows_that_wait_for_their_time_keep_the_time_column_until_they_are_committed(timed: Window) -> None:
    columns = "id INT NOT NULL, v STRING"
    timed.phase(columns, "seq BIGINT", [{"id": 1, "v": "a", "seq": 7, "ts": 1000}])
    source = timed.source(columns, "seq BIGINT", [{"id": 2, "v": "b", "seq": 2000, "ts": 3}])
    other = calve.sink(source, name="s", into=timed.lake.table(TABLE), key=["id"])
    with pytest.raises(InvalidInput, match=r"TIME COLUMN of sink .* cannot change while rows wait for their time"):
        other.times("seq").start()
    with pytest.raises(InvalidInput, match="TIME COLUMN"):
        other.start()
    timed.close()
    query = other.times("seq").start()
    query.await_caught_up(PATIENCE)
    query.stop()
    assert timed.rows() == {1: {"v": "a"}, 2: {"v": "b"}}


def test_rows_by_the_clock_are_committed_before_those_with_times_of_their_own(timed: Window) -> None:
    timed.own_times = False
    timed.phase(
        "id INT NOT NULL, v STRING", "seq BIGINT", [{"id": 1, "v": "a", "seq": 9}, {"id": 2, "v": "a", "seq": 1}]
    )
    timed.own_times = True
    timed.phase("id INT NOT NULL, w STRING", "seq BIGINT", [{"id": 1, "w": "b", "seq": 1, "ts": 2**42}])
    timed.close()
    assert timed.rows() == {1: {"w": "b"}, 2: {"v": "a"}}
    (first, second) = timed.batches()
    assert first[0] == 0
    assert first[1] == second[0] < second[1] == 2**42 + 1


STATEMENTS = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE items (id BIGINT NOT NULL, v STRING, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '{folder}', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq);
CREATE SINK s FROM items TO ICEBERG CATALOG lake NAMESPACE shop TABLE t WITH (TIME COLUMN = ts, WATERMARK DELAY = '1h');
"""


def test_alter_refuses_another_time_column_while_rows_wait(spark: SparkSession, tmp_path: Path) -> None:
    pipelines = Pipelines(tmp_path / "home", spark)
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.json").write_text('{"id": 1, "v": "a", "ts": 1000, "at": 1, "seq": 1}')
    pipelines.apply(STATEMENTS.format(folder=folder))
    with pipelines.started():
        eventually(lambda: any(status.staged for status in read_statuses(pipelines.home)))
    with pytest.raises(InvalidInput, match=r"TIME COLUMN of sink .* cannot change") as refused:
        pipelines.apply("ALTER SINK s SET (TIME COLUMN = at)")
    assert "TIME COLUMN was ts" in refused.value.detail
    pipelines.apply("ALTER SOURCE items SET COLUMNS (id BIGINT NOT NULL, w STRING, v STRING)")
    pipelines.apply("ALTER SINK s SET (WATERMARK DELAY = '2h')")
    assert [result.exit_code for result in pipelines.run()] == [0]
    pipelines.apply("ALTER SINK s SET (TIME COLUMN = at)")
    (folder / "2.json").write_text('{"id": 2, "v": "b", "w": "c", "ts": 1, "at": 5000, "seq": 1}')
    assert [result.exit_code for result in pipelines.run()] == [0]
    assert pipelines.rows(TABLE, "id", "v", "w") == [(1, "a", None), (2, "b", "c")]


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_rows_with_multiplicities_cancel_by_the_columns_of_both(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    """A row that was read without a column is equal to one that has null there."""
    del spark
    lake = calve.connect(home=tmp_path / "home")
    narrow = [(1, "a", 10, 1, False), (2, "b", 10, 1, False)]
    wide = [
        (1, "a", None, 20, -1, False),
        (1, "c", "x", 20, 1, False),
        (2, "b", None, 10, -1, False),
        (None, None, None, 30, None, True),
    ]
    phases = [
        Told([narrow], "id INT, v STRING, t BIGINT, d INT, p BOOLEAN", Diff("t", "d", "p", columns="id, v")),
        Told([[], wide], "id INT, v STRING, x STRING, t BIGINT, d INT, p BOOLEAN", Diff("t", "d", "p", "id, v, x")),
    ]
    for source in phases:
        key = ["id"] if mode == "upsert" else []
        query = calve.sink(source, name="s", into=lake.table(TABLE), key=key, mode=mode).start()
        assert source.read.wait(PATIENCE)
        if source is phases[-1]:
            query.await_caught_up(PATIENCE)
        query.stop()
        query.await_termination()
    found = duckdb_rows(lake.open().load_table(TABLE).metadata_location)
    log = sorted((r["id"], r["v"], r["x"] or "", r.get("_calve_diff"), r.get("_calve_time")) for r in found)
    if mode == "upsert":
        assert log == [(1, "c", "x", None, None)]
    else:
        assert log == [(1, "a", "", -1, 20), (1, "a", "", 1, 10), (1, "c", "x", 1, 20)]


# ---- random windows

POINTS = [
    "claim.after", "adopt.after", "schema.before", "schema.after", "stage.before", "stage.after", "files.after",
    "manifests.after", "record.before", "record.after", "commit.before", "commit.after", "receipt.before",
]  # fmt: skip
ORDERS = ["seq BIGINT", "seq INT", "rank STRING, seq BIGINT", "at TIMESTAMP_NTZ, rank STRING, seq INT"]


class RandomWindow:
    """A window, the columns of now, and what the table has to show in the end."""

    def __init__(self, draw: Any, home: Path) -> None:
        self.draw = draw
        own_times = draw(st.booleans())
        self.window = Window(home, own_times=own_times, delay="50ms", interval=draw(st.sampled_from(["1h", "100ms"])))
        self.live: dict[str, Kind] = {f"c{n}": draw(kinds()) for n in range(draw(st.integers(1, 2)))}
        self.ever = dict(self.live)
        self.required = {name for name in self.live if draw(st.booleans())}
        """Columns that the table asks for."""
        self._checkpoints = self._highest = 0
        self._changes: list[tuple[tuple[int, int, int], int, dict[str, Any] | None]] = []

    def change(self) -> None:
        """Columns widen, go, come back, and come."""
        for kind in self.live.values():
            kind.grow(self.draw)
        if len(self.live) > 1 and self.draw(st.booleans()):
            self.live.pop(self.draw(st.sampled_from(sorted(self.live))))
        if gone := sorted(set(self.ever) - set(self.live)):
            name = self.draw(st.sampled_from(gone))
            self.live |= {name: self.ever[name]} if self.draw(st.booleans()) else {}
        if self.draw(st.booleans()):
            name = f"c{len(self.ever)}"
            self.live[name] = self.ever[name] = self.draw(kinds())
        self.required &= set(self.live)  # a column that is left out is required no more
        for name in sorted(self.required):
            if self.draw(st.booleans()):
                with self.window.lake.open().load_table(TABLE).update_schema() as change:
                    change.make_column_optional(name)
                self.required.remove(name)

    def checkpoint(self) -> Sequence[Record]:
        """Changes in any order; where times count, none is behind the frontier."""
        self._checkpoints += 1
        numbers = self.draw(st.permutations(range(self.draw(st.integers(0, 5)))))
        records = []
        for number in numbers:
            values = {name: self._value(name, kind) for name, kind in self.live.items()}
            key, gone = self.draw(st.integers(0, 5)), self.draw(st.integers(0, 3)) == 0
            time = max(0, self._highest + self.draw(st.integers(-40, 60)))
            place = (time if self.window.own_times else 0, self._checkpoints, number)
            self._changes.append((place, key, None if gone else values))
            order = {"seq": number, "rank": "", "at": dt.datetime(2026, 1, 1)}  # noqa: DTZ001 - a local time
            records.append({"id": key, **values, **order, "op": "d" if gone else "u", "ts": time})
        self._highest = max([self._highest, *(record["ts"] for record in records)])
        return records

    def _value(self, name: str, kind: Kind) -> Any:
        drawn = (kind.value(self.draw) for _ in count())
        return next(value for value in drawn if value is not None or name not in self.required)

    def phase(self) -> None:
        checkpoints = [self.checkpoint() for _ in range(self.draw(st.integers(1, 2)))]
        lacking = {name for records in checkpoints for record in records for name in self.live if record[name] is None}
        always = {
            name for name in self.live if name in self.required or (name not in lacking and self.draw(st.booleans()))
        }
        declared = [f"{name} {kind.ddl}{' NOT NULL' * (name in always)}" for name, kind in self.live.items()]
        columns = ", ".join(["id INT NOT NULL", *declared])
        deaths = self.draw(st.lists(st.tuples(st.sampled_from(POINTS), st.integers(1, 2)), max_size=1))
        self.window.phase(columns, self.draw(st.sampled_from(ORDERS)), *checkpoints, deaths=deaths)

    def expected(self) -> dict[int, dict[str, Any]]:
        last = {key: values for _, key, values in sorted(self._changes, key=lambda change: change[0])}
        return {key: self._whole(values) for key, values in last.items() if values is not None}

    def found(self) -> dict[int, dict[str, Any]]:
        return {key: self._whole(values) for key, values in self.window.rows().items()}

    def _whole(self, values: dict[str, Any]) -> dict[str, Any]:
        return {name: kind.whole(values.get(name)) for name, kind in self.ever.items()}


@pytest.mark.parametrize("examples", [2, pytest.param(150, marks=pytest.mark.soak)])
def test_random_windows_are_right_whatever_changes_and_dies_on_the_way(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, examples: int
) -> None:
    del spark

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        drawn = RandomWindow(data.draw, tmp_path_factory.mktemp("home"))
        for number in range(data.draw(st.integers(2, 3))):
            if number:
                drawn.change()
            drawn.phase()
        drawn.window.close()
        assert drawn.found() == drawn.expected()
        batches = drawn.window.batches()
        assert all(before[1] == after[0] for before, after in pairwise(batches)), "times are tiled"

    check()
