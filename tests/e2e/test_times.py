"""Logical time: rows with event times, tables as of a time, logs that keep every change."""

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from calve import faults
from calve.api.verify import Differences, verify
from calve.envelope.fields import LATEST_MS
from calve.errors import TransientError
from calve.pipeline.supervisor import Ending
from calve.watch.status_files import read_statuses
from tests.support.combinations import seeds
from tests.support.pipelines import Pipelines, eventually
from tests.support.readers import spark_iceberg_rows

LAKE = "CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');"
SOURCE = """CREATE SOURCE items (id BIGINT NOT NULL, v STRING, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '{folder}', FORMAT = 'json', MAX FILES PER CHECKPOINT = 1) ENVELOPE {envelope};"""
SINK = "CREATE SINK s FROM items TO ICEBERG CATALOG lake NAMESPACE shop TABLE t"
UPSERT = "UPSERT (ORDER BY seq, DELETE WHEN op = 'd')"
DIFF = "DIFF (TIME t, DIFF d, PROGRESS p)"


class Items:
    """Files of records, one per checkpoint."""

    def __init__(self, pipelines: Pipelines, folder: Path) -> None:
        self.pipelines, self.folder, self.files = pipelines, folder, 0
        folder.mkdir()

    def by(self, envelope: str, sink: str) -> None:
        self.pipelines.apply(f"{LAKE}{SOURCE.format(folder=self.folder, envelope=envelope)}{sink}")

    def put(self, *records: dict[str, Any]) -> None:
        self.files += 1
        part = self.folder / ".part"
        part.write_text("".join(json.dumps(record) + "\n" for record in records))
        part.rename(self.folder / f"{self.files:06d}.json")

    def upserts(self, *rows: tuple[int, str | None, int]) -> None:
        records = [{"id": i, "v": v, "ts": t, "op": "u" if v else "d", "seq": n} for n, (i, v, t) in enumerate(rows)]
        self.put(*records)

    def diffs(self, *rows: tuple[int, str, int, int], progress: int | None = None, final: bool = False) -> None:
        marks = [{"t": progress, "p": True}] if progress is not None or final else []
        self.put(*[{"id": i, "v": v, "t": t, "d": d} for i, v, t, d in rows], *marks)

    def frontiers(self) -> list[str]:
        """Of the snapshots, without repetition: a claim repeats the last."""
        if self.pipelines.rows_or_none("shop.t") is None:
            return []
        found = [s.summary["calve.frontier"] for s in self.pipelines.table("shop.t").snapshots() if s.summary]
        return list(dict.fromkeys(str(frontier) for frontier in found))

    def reached(self, frontier: int) -> bool:
        return self.frontiers()[-1:] == [f"[{frontier}]"]

    def rows(self) -> list[tuple[Any, ...]]:
        return self.pipelines.rows("shop.t")


@pytest.fixture
def items(spark: SparkSession, tmp_path: Path) -> Items:
    return Items(Pipelines(tmp_path / "home", spark), tmp_path / "in")


@pytest.fixture
def no_faults() -> Iterator[None]:
    yield
    faults.install(None)


# ---- times of rows


def test_rows_are_committed_when_their_time_is_complete_and_by_their_time(items: Items) -> None:
    items.by(UPSERT, f"{SINK} WITH (TIME COLUMN = ts, WATERMARK DELAY = '10ms')")
    items.upserts((1, "late in its file", 1005), (1, "b", 1020), (2, "c", 1009))
    items.upserts((1, "a", 1012), (3, "d", 1030))
    with items.pipelines.started():
        eventually(lambda: items.pipelines.rows_or_none("shop.t") == [(1, "a"), (2, "c")])
    assert items.frontiers() == ["[0]", "[1010]", "[1020]"], "20 and 30, less the delay"
    items.upserts((2, None, 1040), (3, "e", 1025))
    assert [r.exit_code for r in items.pipelines.run()] == [0]
    assert items.rows() == [(1, "b"), (3, "d")]
    assert verify(items.pipelines.place, "s") == Differences(rows=2)


def test_a_field_that_is_no_time_is_refused_before_anything_runs(items: Items) -> None:
    items.put({"id": 1, "v": "a"})
    items.by("NONE", f"{SINK} WITH (TIME COLUMN = v)")
    (result,) = items.pipelines.run()
    assert 'the time field "v" has type string' in str(result.cause)
    assert items.pipelines.rows_or_none("shop.t") is None


@pytest.mark.parametrize(
    ("policy", "expected"), [("error", None), ("drop", [(1, "new"), (2, "x")]), ("advance", [(1, "old"), (2, "x")])]
)
def test_a_late_row_is_treated_as_the_policy_says(
    items: Items, policy: str, expected: list[tuple[int, str]] | None
) -> None:
    items.by(UPSERT, f"{SINK} WITH (TIME COLUMN = ts, LATE ROWS = '{policy}')")
    items.upserts((1, "new", 100))
    items.pipelines.run()
    items.upserts((1, "old", 50), (2, "x", 200))
    (result,) = items.pipelines.run()
    if expected is None:
        assert result.ending is Ending.FAILED
        assert "1 rows are late" in str(result.cause)
        assert "below 101 is closed" in str(result.cause)
        assert items.rows() == [(1, "new")]
        return
    assert items.rows() == expected
    (status,) = read_statuses(items.pipelines.home)
    assert status.late == 1


def test_an_idle_source_lets_time_follow_the_clock(items: Items) -> None:
    items.by(UPSERT, f"{SINK} WITH (TIME COLUMN = ts, WATERMARK DELAY = '1h', IDLE TIMEOUT = '1s')")
    items.upserts((1, "a", 1000), (2, "b", 2000))
    with items.pipelines.started():
        eventually(lambda: items.pipelines.rows_or_none("shop.t") == [(1, "a"), (2, "b")])
    (status,) = read_statuses(items.pipelines.home)
    assert status.minted == status.frontier != "[0]"
    assert json.loads(status.input) >= json.loads(status.minted)


def test_windows_hold_rows_of_their_times_wherever_they_come_from(items: Items) -> None:
    items.by(
        UPSERT, f"{SINK} WITH (TIME COLUMN = ts, WATERMARK DELAY = '1s', COMMIT INTERVAL = '2s', COALESCE = false)"
    )
    items.upserts((1, "a", 1000), (2, "b", 4100))
    items.upserts((1, "aa", 3900), (3, "c", 9000))
    items.upserts((4, "d", 20_000))
    with items.pipelines.started():
        eventually(lambda: items.pipelines.rows_or_none("shop.t") == [(1, "aa"), (2, "b"), (3, "c")])
    assert items.frontiers() == ["[0]", "[2000]", "[4000]", "[6000]", "[10000]"]


def test_a_stage_that_is_lost_while_rows_of_it_are_in_the_table_is_refused(items: Items) -> None:
    items.by(UPSERT, f"{SINK} WITH (TIME COLUMN = ts)")
    items.upserts((1, "a", 1000), (2, "b", 5000))
    with items.pipelines.started():
        eventually(lambda: items.pipelines.rows_or_none("shop.t") == [(1, "a")])
    shutil.rmtree(items.pipelines.home / "state")
    items.upserts((4, "d", 6000))
    (result,) = items.pipelines.run()
    assert result.ending is Ending.FAILED
    assert "the state location no longer contains checkpoints that are partly committed" in str(result.cause)
    assert items.rows() == [(1, "a")]


# ---- the envelope DIFF


def test_equal_rows_of_one_time_cancel_and_what_goes_is_applied_before_what_comes(items: Items) -> None:
    items.by(DIFF, f"{SINK} WITH (COALESCE = false)")
    items.diffs((1, "a", 10, 1), (2, "b", 10, 1), (9, "never", 10, 1), (9, "never", 10, -1), progress=11)
    items.diffs((1, "b", 20, 1), (1, "a", 20, -1), (2, "b", 30, -1), (3, "c", 25, 1), progress=26)
    with items.pipelines.started():
        eventually(lambda: items.pipelines.rows_or_none("shop.t") == [(1, "b"), (2, "b"), (3, "c")])
        assert items.frontiers() == ["[0]", "[11]", "[21]", "[26]"]
        items.diffs(progress=31)
        eventually(lambda: items.rows() == [(1, "b"), (3, "c")])
    assert verify(items.pipelines.place, "s") == Differences(rows=2)


def test_the_last_progress_row_seals_the_table_and_a_restart_does_nothing(items: Items) -> None:
    items.by(DIFF, SINK)
    items.diffs((1, "a", 10, 1), final=True)
    (result,) = items.pipelines.run()
    assert (result.ending, items.frontiers()[-1]) == (Ending.DONE, "[]")
    before = items.pipelines.metadata_files()
    assert [r.exit_code for r in items.pipelines.run()] == [0]
    assert items.pipelines.metadata_files() == before


@pytest.mark.parametrize(
    "rows",
    [
        [(1, "a", 10, 1), (1, "b", 10, 1)],
        [(1, "a", 10, 1), (1, "b", 20, 1)],
        pytest.param([(1, "a", 10, 2)], marks=pytest.mark.soak),
        pytest.param([(1, "a", 10, -1), (1, "b", 20, -1)], marks=pytest.mark.soak),
    ],
)
def test_rows_that_break_the_key_stop_the_sink(items: Items, rows: Sequence[tuple[int, str, int, int]]) -> None:
    items.by(DIFF, SINK)
    items.diffs(*rows, (5, "fine", 10, 1), progress=100)
    (result,) = items.pipelines.run()
    assert result.ending is Ending.FAILED
    assert "conflicting rows for the key (id)" in str(result.cause)
    assert items.pipelines.rows_or_none("shop.t") == []


def test_a_row_without_time_or_diff_is_a_bad_row_that_is_named(items: Items) -> None:
    items.by(DIFF, SINK)
    items.put({"id": 1, "v": "a", "d": 1})
    (result,) = items.pipelines.run()
    assert 'the time field "t" is missing or null' in str(result.cause)
    assert "000001.json" in str(result.cause)


def test_a_diff_beyond_any_range_is_a_letter(items: Items) -> None:
    items.by(DIFF, f"{SINK} WITH (ON BAD ROW = 'dead letter')")
    items.diffs((1, "a", 10, 1), *[(n, "b", 10, d) for n, d in enumerate((-(2**63), 2**63 - 1, 2**31), 2)], progress=11)
    assert [(r.cause, r.pending) for r in items.pipelines.run()] == [(None, 0)]
    assert items.rows() == [(1, "a")]
    found = items.pipelines.rows("shop.t_dead_letters", "reason")
    assert found == [('the diff field "d" is too large',)] * 3


def test_a_time_column_after_the_year_9999_stops_the_sink_and_is_named(items: Items) -> None:
    items.by(UPSERT, f"{SINK} WITH (TIME COLUMN = ts)")
    items.put({"id": 1, "v": "a", "ts": 2**63 - 1, "seq": 1})
    (result,) = items.pipelines.run()
    assert result.ending is Ending.FAILED
    assert 'the time "ts" of a record is not a number of milliseconds up to the year 9999' in str(result.cause)


def test_a_time_after_the_year_9999_is_a_bad_row_and_makes_nothing_late(items: Items) -> None:
    items.by(DIFF, f"{SINK} WITH (ON BAD ROW = 'dead letter')")
    items.diffs((1, "a", 10, 1), (2, "b", 2**63 - 1, 1), (3, "c", 253_402_300_800_000, 1), progress=11)
    assert [(r.cause, r.pending) for r in items.pipelines.run()] == [(None, 0)]
    items.diffs((4, "d", 12, 1), progress=13)
    assert [(r.cause, r.pending) for r in items.pipelines.run()] == [(None, 0)]
    assert items.rows() == [(1, "a"), (4, "d")]
    found = items.pipelines.rows("shop.t_dead_letters", "reason")
    assert found == [('the time field "t" is after the year 9999',)] * 2


NO_TIMES: list[Any] = [None, "soon", "2026-01-01", True, [1], {"ms": 1}, 2**63 - 1, 10**28, -(10**28), LATEST_MS + 1]


def upsert(number: int, time: Any) -> dict[str, Any]:
    return {"id": number, "v": "a", "ts": time, "seq": 1}


def change(number: int, time: Any) -> dict[str, Any]:
    return {"op": "c", "after": {"id": number, "v": "a"}, "source": {"ts": time}}


@pytest.mark.parametrize(
    ("envelope", "field", "record", "mode"),
    [
        pytest.param(UPSERT, "ts", upsert, "", marks=pytest.mark.soak),
        (UPSERT, "ts", upsert, ", COMMIT INTERVAL = '1s'"),
        pytest.param("DEBEZIUM (ORDER BY source.ts)", "'source.ts'", change, "", marks=pytest.mark.soak),
        ("DEBEZIUM (ORDER BY source.ts)", "'source.ts'", change, " MODE APPEND"),
    ],
    ids=["upsert", "windows", "debezium", "log"],
)
def test_records_without_a_usable_time_are_letters_and_move_no_frontier(
    items: Items, envelope: str, field: str, record: Callable[[int, Any], dict[str, Any]], mode: str
) -> None:
    log, windows = ("MODE APPEND", "") if "MODE" in mode else ("", mode)
    items.by(envelope, f"{SINK} {log} WITH (TIME COLUMN = {field}, ON BAD ROW = 'dead letter'{windows})")
    items.put(record(1, 1005), *[record(n, time) for n, time in enumerate(NO_TIMES, 100)], record(2, LATEST_MS // 2))
    assert [(r.cause, r.pending) for r in items.pipelines.run()] == [(None, 0)]
    items.put(record(3, LATEST_MS), *[record(n, time) for n, time in enumerate(NO_TIMES, 200)])
    for _ in range(2):  # the second time nothing is new
        assert [(r.cause, r.pending) for r in items.pipelines.run()] == [(None, 0)]
    assert items.pipelines.rows("shop.t", "id") == [(1,), (2,), (3,)]
    letters = items.pipelines.rows("shop.t_dead_letters", "value", "reason")
    expected = [json.dumps(record(n, time)) for at in (100, 200) for n, time in enumerate(NO_TIMES, at)]
    assert sorted(value.decode() for value, _ in letters) == sorted(expected)
    name = field.strip("'")
    assert {reason for _, reason in letters} == {
        f'the time field "{name}" is missing or null',
        f'the time "{name}" of a record is not a number of milliseconds up to the year 9999',
    }


@pytest.mark.parametrize("kind", ["BIGINT", "TIMESTAMP"])
def test_columns_that_are_no_usable_time_are_letters(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Rows of typed files, whose moments may lie after the year 9999."""
    unit = 1 if kind == "BIGINT" else 1000
    times = [1005 * unit, None, (LATEST_MS + 1) * unit, 2**63 - 1, 1010 * unit]
    stored = pa.int64() if kind == "BIGINT" else pa.timestamp("us", "UTC")
    (tmp_path / "in").mkdir()
    table = pa.table({"id": pa.array(range(5), pa.int64()), "at": pa.array(times, pa.int64()).cast(stored)})
    pq.write_table(table, tmp_path / "in" / "1.parquet")
    pipelines = Pipelines(tmp_path / "home", spark)
    pipelines.apply(f"""{LAKE}
        CREATE SOURCE items (id BIGINT NOT NULL, at {kind}, PRIMARY KEY (id) NOT ENFORCED)
          FROM FILES (PATH = '{tmp_path}/in', FORMAT = 'parquet');
        {SINK} WITH (TIME COLUMN = at, ON BAD ROW = 'dead letter')""")
    for _ in range(2):
        assert [(r.cause, r.pending) for r in pipelines.run()] == [(None, 0)]
    assert pipelines.rows("shop.t", "id") == [(0,), (4,)]
    assert sorted(reason for (reason,) in pipelines.rows("shop.t_dead_letters", "reason")) == [
        *['the time "at" of a record is not a number of milliseconds up to the year 9999'] * 2,
        'the time field "at" is missing or null',
    ]


Change = tuple[int, str, int, int]


def history(rng: random.Random, times: int) -> tuple[list[Change], dict[int, dict[int, str]]]:
    """Changes of a random collection, and its contents as of each time (exclusive)."""
    contents: dict[int, str] = {}
    changes: list[Change] = []
    known: dict[int, dict[int, str]] = {0: {}}
    for time in range(1, times + 1):
        for key in rng.sample(range(6), rng.choice([0, 1, 3])):
            old, new = contents.pop(key, None), rng.choice([None, f"v{time}", f"w{time}"])
            changes += [(key, old, time, -1)] if old else []
            changes += [(key, new, time, 1)] if new else []
            if new:
                contents[key] = new
        known[time + 1] = dict(contents)
    return changes, known


@seeds(5)
@pytest.mark.usefixtures("no_faults")
def test_every_snapshot_is_the_collection_at_its_frontier_whatever_order_rows_come_in(items: Items, seed: int) -> None:
    """Rows come out of order, some ahead of their time; steps fail at random; each part is read by another run."""
    rng = random.Random(seed)
    changes, known = history(rng, 12)
    items.by(DIFF, f"{SINK} WITH (COALESCE = {'true' if seed else 'false'})")
    faults.install(failing(rng, {"stage.after", "record.before", "files.after", "commit.before", "commit.after"}))
    for promised in (5, 9, 13):
        due = [c for c in changes if c[2] < promised or (c[2] < promised + 3 and rng.random() < 0.4)]
        changes = [c for c in changes if c not in due]
        noise = [(7, "x", promised - 1, 1), (7, "x", promised - 1, -1)]
        sent = rng.sample([*due, *noise], len(due) + 2)
        items.diffs(*sent[:5])
        items.diffs(*sent[5:], progress=promised)
        with items.pipelines.started():
            eventually(partial(items.reached, promised))
    table = items.pipelines.table("shop.t")
    for snapshot in table.snapshots():
        frontier = json.loads(str(snapshot.summary["calve.frontier"] if snapshot.summary else "[0]"))[0]
        rows = dict(items.pipelines.rows("shop.t", snapshot_id=snapshot.snapshot_id))
        assert rows == known[frontier], f"at {frontier}"
    assert {row["id"]: row["v"] for row in spark_iceberg_rows(table.metadata_location)} == known[13]


def failing(rng: random.Random, points: set[str]) -> Callable[[str], None]:
    def reached(point: str) -> None:
        if point in points and rng.random() < 0.15:
            raise TransientError(f"injected at {point}")

    return reached


# ---- logs


def test_a_log_keeps_every_change_as_often_as_it_comes(items: Items) -> None:
    items.by("NONE", f"{SINK} MODE APPEND WITH (COMMIT INTERVAL = '2s', CHECKPOINT INTERVAL = '1s')")
    items.put({"id": 1, "v": "a"}, {"id": 1, "v": "a"}, {"id": 2})
    items.put({"id": 1, "v": "a"})
    items.pipelines.run()
    found = items.pipelines.rows("shop.t", "id", "v", "_calve_diff")
    assert Counter(found) == {(1, "a", 1): 3, (2, None, 1): 1}
    times = {row[0] for row in items.pipelines.rows("shop.t", "_calve_time")}
    assert len(times) == 2, "one for every checkpoint"
    assert verify(items.pipelines.place, "s") == Differences(rows=4)
    other = spark_iceberg_rows(items.pipelines.table("shop.t").metadata_location)
    assert Counter((r["id"], r["v"], r["_calve_diff"]) for r in other) == {(1, "a", 1): 3, (2, None, 1): 1}


def test_a_log_of_diffs_has_multiplicities_and_times(items: Items) -> None:
    items.by(DIFF, f"{SINK} MODE APPEND PARTITION BY (bucket(4, id))")
    items.diffs((1, "a", 10, 3), (1, "a", 10, -1), (2, "b", 20, 1), (1, "a", 20, -2), progress=21)
    items.pipelines.run()
    assert items.rows() == [(1, "a", -2, 20), (1, "a", 2, 10), (2, "b", 1, 20)]
    assert verify(items.pipelines.place, "s") == Differences(rows=3)


def test_late_rows_of_a_log_get_the_next_time(items: Items) -> None:
    items.by("NONE", f"{SINK} MODE APPEND WITH (TIME COLUMN = id)")
    items.put({"id": 100, "v": "a"})
    items.pipelines.run()
    items.put({"id": 7, "v": "late"}, {"id": 300, "v": "b"})
    items.pipelines.run()
    assert items.rows() == [(7, "late", 1, 101), (100, "a", 1, 100), (300, "b", 1, 300)]


# ---- when commits are made


def test_a_commit_comes_early_when_enough_is_staged(items: Items) -> None:
    items.by(UPSERT, f"{SINK} WITH (COMMIT INTERVAL = '1h', CHECKPOINT INTERVAL = '1s', COMMIT SIZE = '1MB')")
    rng = random.Random(1)
    items.upserts((1, rng.randbytes(100).hex(), 0))
    with items.pipelines.started():
        eventually(lambda: any(s.staged == 1 for s in read_statuses(items.pipelines.home)))
        assert not items.pipelines.rows_or_none("shop.t")
        items.upserts(*[(i, rng.randbytes(1000).hex(), 0) for i in range(1500)])
        eventually(lambda: len(items.pipelines.rows_or_none("shop.t") or []) == 1500)


def test_an_idle_sink_shows_that_time_goes_on(items: Items) -> None:
    items.by(UPSERT, f"{SINK} WITH (HEARTBEAT = '1s')")
    items.upserts((1, "a", 0))
    with items.pipelines.started():
        eventually(lambda: items.pipelines.rows_or_none("shop.t") == [(1, "a")])
        before = items.frontiers()
        eventually(lambda: len(items.frontiers()) >= len(before) + 3)
    assert items.rows() == [(1, "a")]
    assert json.loads(items.frontiers()[-1]) > json.loads(before[-1])
    items.upserts((1, "b", 0))
    items.pipelines.run()
    assert items.rows() == [(1, "b")]
