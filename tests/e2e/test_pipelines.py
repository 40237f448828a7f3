"""Whole pipelines in SQL: applied, run, altered, read back by engines that are not calve."""

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from calve.api.verify import Differences, verify, verify_changes
from calve.errors import BadRow, FencedError, ForeignCommit, InvalidInput, TransientError
from calve.lake import Lake
from calve.model.health import Health
from calve.pipeline.build import sink_of
from calve.pipeline.query import Query
from calve.pipeline.sink import Sink
from calve.pipeline.supervisor import Ending, SinkResult
from calve.plan.sinks import plan_sink
from calve.reader.resources import NO_MEMORY
from calve.source.generator import expected_orders, orders
from calve.sql.statements import ObjectKind
from calve.view import totals
from calve.watch.status_files import read_statuses
from tests.support.pipelines import Pipelines, eventually
from tests.support.readers import ROOT, spark_iceberg_rows

LAKE = "CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');"
SOURCE = """
CREATE SOURCE {name} (id BIGINT NOT NULL, v STRING, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '{folder}', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq, DELETE WHEN op = 'd');
"""
SINK = "CREATE SINK s FROM items TO ICEBERG CATALOG lake NAMESPACE shop TABLE items"


@pytest.fixture
def pipelines(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipelines:
    monkeypatch.chdir(ROOT)
    return Pipelines(tmp_path / "home", spark)


@pytest.fixture
def items(pipelines: Pipelines, tmp_path: Path) -> "Folder":
    folder = Folder(tmp_path / "items")
    pipelines.apply(LAKE + SOURCE.format(name="items", folder=folder.path))
    return folder


class Folder:
    """A folder that files of changes are put into."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        path.mkdir()

    def put(self, *changes: tuple[int, str | None]) -> None:
        """One file; None deletes."""
        lines = []
        for key, value in changes:
            self.count += 1
            lines.append(json.dumps({"id": key, "v": value, "seq": self.count, "op": "u" if value else "d"}))
        part = self.path / ".part"
        part.write_text("\n".join(lines) + "\n")
        part.rename(self.path / f"{self.count:06d}.json")


def endings(results: list[SinkResult]) -> list[Ending]:
    return [result.ending for result in results]


# ---- examples


def utc(day: int, hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 1, day, hour, minute, tzinfo=UTC)


def millis(day: int, hour: int, minute: int = 0) -> int:
    return int(utc(day, hour, minute).timestamp() * 1000)


@cache
def generated() -> list[tuple[Any, ...]]:
    return sorted(expected_orders(orders(rows=20_000, changes=5_000), 25_000).values())


EXAMPLES: dict[str, dict[str, list[tuple[Any, ...]] | Callable[[], list[tuple[Any, ...]]]]] = {
    "files": {
        "shop.orders": [
            (1, 7, Decimal("19.90"), "paid", utc(1, 9, 30)),
            (2, 9, Decimal("99.00"), "paid", utc(2, 8)),
            (4, 3, Decimal("480.25"), "new", utc(2, 10)),
        ]
    },
    "infer": {
        "shop.orders": [
            (1, 7, Decimal("19.90"), "paid", utc(1, 9, 30), 4, "u"),
            (2, 9, Decimal("99.00"), "paid", utc(2, 8), 6, "u"),
            (4, 3, Decimal("480.25"), "new", utc(2, 10), 7, "i"),
        ]
    },
    "partitioned": {
        "shop.orders_by_day": [
            (1, 7, Decimal("19.90"), "paid", utc(1, 9, 30)),
            (2, 9, Decimal("99.00"), "paid", utc(2, 8)),
            (4, 3, Decimal("480.25"), "new", utc(2, 10)),
        ]
    },
    "append_log": {
        "crm.customer_log": [
            (3, "Ada", "gold", 1, millis(1, 9)),
            (7, "Grace", "gold", 1, millis(2, 8)),
            (7, "Grace", "silver", -1, millis(2, 8)),
            (7, "Grace", "silver", 1, millis(1, 9)),
            (9, "Alan", "silver", -1, millis(2, 8)),
            (9, "Alan", "silver", 1, millis(1, 10)),
            (11, "Edsger", "bronze", 1, millis(2, 9, 30)),
        ]
    },
    "debezium": {"crm.customers": [(3, "Ada", "gold"), (7, "Grace", "gold"), (11, "Edsger", "bronze")]},
    "view": {
        "shop.big_orders": [(2, 9, Decimal("99.00")), (4, 3, Decimal("480.25"))],
        "crm.tiers": [("bronze", 1), ("gold", 2)],
    },
    "tables": {
        "shop.raw_orders": [(1, 7, Decimal("19.90")), (2, 9, Decimal("99.00")), (4, 3, Decimal("480.25"))],
        "shop.customer_totals": [(3, 1, Decimal("480.25")), (7, 1, Decimal("19.90")), (9, 1, Decimal("99.00"))],
    },
    "two_sinks": {"demo.at_once": generated, "demo.in_batches": generated},
}


def test_every_example_is_tested() -> None:
    elsewhere = {"kafka"}  # needs a broker: test_kafka.py
    assert sorted({*EXAMPLES, *elsewhere}) == sorted(path.stem for path in (ROOT / "examples").glob("*.sql"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_makes_the_rows_that_it_shows_and_a_second_run_writes_nothing(
    pipelines: Pipelines, name: str
) -> None:
    text = (ROOT / "examples" / f"{name}.sql").read_text()
    results = pipelines.run(text)
    assert {(r.ending, r.exit_code) for r in results} == {(Ending.DONE, 0)}
    for table, shown in EXAMPLES[name].items():
        expected = shown() if callable(shown) else shown
        assert pipelines.rows(table) == expected
        other = spark_iceberg_rows(pipelines.table(table).metadata_location)
        assert sorted(tuple(row.values()) for row in other) == expected
    before = pipelines.metadata_files()
    assert {r.exit_code for r in pipelines.run(text)} == {0}
    assert pipelines.metadata_files() == before


# ---- views


def test_a_view_follows_its_source_from_run_to_run(pipelines: Pipelines, items: Folder) -> None:
    pipelines.apply(
        'CREATE VIEW long AS SELECT id AS "Number", upper(v) AS v FROM items WHERE length(v) > 2;'
        'CREATE VIEW longer AS SELECT "Number", v FROM long WHERE length(v) > 3;'
        "CREATE SINK s FROM longer TO ICEBERG CATALOG lake NAMESPACE shop TABLE items"
    )
    items.put((1, "aaaa"), (2, "bb"), (3, "ccccc"))
    assert endings(pipelines.run()) == [Ending.DONE]
    assert pipelines.rows("shop.items", "Number", "v") == [(1, "AAAA"), (3, "CCCCC")]
    items.put((1, "aaa"), (2, "bbbb"), (3, None))
    pipelines.run()
    assert pipelines.rows("shop.items") == [(2, "BBBB")]
    with pytest.raises(InvalidInput, match='source "items" is in use'):
        pipelines.apply("DROP SOURCE items")


@pytest.mark.parametrize("updated_by", ["driver", "tasks"])
def test_totals_go_on_after_a_restart_and_a_group_without_rows_is_gone(
    pipelines: Pipelines, tmp_path: Path, updated_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if updated_by == "tasks":
        monkeypatch.setattr(totals, "TotalsLimits", partial(totals.TotalsLimits, NO_MEMORY, small=0))
    folder = tmp_path / "records"
    folder.mkdir()
    records = [
        ((None, (1, "x", 5)), (None, (2, "x", 7)), (None, (3, "y", 1))),
        (((1, "x", 5), (1, "y", 6)), ((3, "y", 1), None)),
        (((1, "y", 6), None), ((2, "x", 7), (2, "x", 70))),
    ]
    pipelines.apply(
        LAKE
        + f"""CREATE SOURCE r (id BIGINT NOT NULL, kind STRING, n BIGINT, PRIMARY KEY (id) NOT ENFORCED)
        FROM FILES (PATH = '{folder}', FORMAT = 'json') ENVELOPE DEBEZIUM (ORDER BY source.lsn);
        CREATE VIEW totals AS SELECT kind, count(*) AS c, sum(n) AS n FROM r GROUP BY kind;
        CREATE SINK s FROM totals TO ICEBERG CATALOG lake NAMESPACE shop TABLE totals"""
    )
    seen = []
    for number, batch in enumerate(records):
        lines = [
            json.dumps(
                {
                    "before": row(before),
                    "after": row(after),
                    "op": op(before, after),
                    "source": {"lsn": 100 * number + i},
                }
            )
            for i, (before, after) in enumerate(batch)
        ]
        (folder / f"{number}.json").write_text("\n".join(lines) + "\n")
        assert endings(pipelines.run()) == [Ending.DONE]
        seen.append(pipelines.rows("shop.totals"))
    assert seen == [[("x", 2, 12), ("y", 1, 1)], [("x", 1, 7), ("y", 1, 6)], [("x", 1, 70)]]
    parts = [path for path in tmp_path.rglob("view/*/parts/*") if path.is_file()]
    assert bool(parts) == (updated_by == "tasks")


def test_a_view_joins_a_table_of_the_lake(pipelines: Pipelines, items: Folder, tmp_path: Path) -> None:
    names = Folder(tmp_path / "names")
    names.put((1, "one"), (2, "two"))
    items.put((1, "a"), (3, "c"))
    pipelines.run(
        SOURCE.format(name="names", folder=names.path)
        + "CREATE SINK names FROM names TO ICEBERG CATALOG lake NAMESPACE shop TABLE names"
    )
    pipelines.run(
        "CREATE VIEW named AS SELECT i.id, i.v, n.v AS name FROM items i JOIN lake.shop.names n ON n.id = i.id;"
        "CREATE SINK s FROM named TO ICEBERG CATALOG lake NAMESPACE shop TABLE items"
    )
    assert pipelines.rows("shop.items") == [(1, "a", "one")]
    items.put((2, "b"), (1, None))
    pipelines.run()
    assert pipelines.rows("shop.items") == [(2, "b", "two")]


def row(values: tuple[int, str, int] | None) -> dict[str, Any] | None:
    return None if values is None else dict(zip(("id", "kind", "n"), values, strict=True))


def op(before: object, after: object) -> str:
    return "c" if before is None else "d" if after is None else "u"


WRONG_VIEWS = {
    "SELECT DISTINCT v FROM items": "DISTINCT",
    "SELECT v FROM items": "has no key",
    "SELECT v, count(*) AS n FROM items GROUP BY v": "before",
    "SELECT a.id, b.v FROM items a JOIN others b ON a.id = b.id": "more than one changing input",
    "SELECT 1 AS id": "does not read a source or view",
    "SELECT nosuch FROM items": "nosuch",
    'SELECT "ID" FROM items': "matches exactly",
}


def test_a_view_that_would_be_wrong_is_refused_when_it_is_created(pipelines: Pipelines, items: Folder) -> None:
    pipelines.apply(SOURCE.format(name="others", folder=items.path))
    for query, words in WRONG_VIEWS.items():
        with pytest.raises(InvalidInput) as caught:
            pipelines.apply(f"CREATE VIEW w AS {query}")
        assert words in str(caught.value), query
    assert pipelines.place.definitions().of(ObjectKind.VIEW) == []


# ---- windows


def test_checkpoints_of_one_window_are_committed_together_in_few_files(pipelines: Pipelines) -> None:
    pipelines.run(
        LAKE + "CREATE SOURCE g FROM LOAD GENERATOR orders (ROWS = 1000, UPDATES = 500, MAX ROWS PER CHECKPOINT = 100);"
        "CREATE SINK s FROM g TO ICEBERG CATALOG lake NAMESPACE shop TABLE g "
        "WITH (COMMIT INTERVAL = '1h', CHECKPOINT INTERVAL = '1s')"
    )
    assert pipelines.rows("shop.g") == sorted(expected_orders(orders(rows=1000, changes=500), 1500).values())
    summaries = [s.summary.additional_properties for s in pipelines.table("shop.g").snapshots() if s.summary]
    added = [int(s["added-data-files"]) for s in summaries if "added-data-files" in s]
    assert added == [1], "fifteen checkpoints, one batch, one file"
    assert not list((pipelines.home / "state").rglob("*.parquet"))


def test_a_source_that_stops_within_a_window_is_committed_at_its_end(pipelines: Pipelines, items: Folder) -> None:
    items.put((1, "a"))
    pipelines.apply(f"{SINK} WITH (COMMIT INTERVAL = '3s', CHECKPOINT INTERVAL = '1s')")
    with pipelines.started():
        eventually(lambda: pipelines.rows_or_none("shop.items") == [(1, "a")])
        head = pipelines.table("shop.items").current_snapshot()
        assert head is not None
        assert head.summary is not None
        frontier = json.loads(head.summary.additional_properties["calve.frontier"])[0]
        assert frontier % 3000 == 0
        items.put((1, "b"), (2, "c"))
        eventually(lambda: pipelines.rows("shop.items") == [(1, "b"), (2, "c")])


def test_what_is_staged_survives_a_stop_and_other_intervals(pipelines: Pipelines, items: Folder) -> None:
    items.put((1, "a"), (2, "b"))
    pipelines.apply(f"{SINK} WITH (COMMIT INTERVAL = '1h', CHECKPOINT INTERVAL = '1s')")
    with pipelines.started():
        eventually(lambda: staged(pipelines) == 1)
        items.put((2, None), (3, "c"))
        eventually(lambda: staged(pipelines) == 2)
    assert pipelines.rows("shop.items") == []
    shutil.rmtree(items.path)
    items.path.mkdir()
    items.put((4, "d"))
    pipelines.run("ALTER SINK s RESET (COMMIT INTERVAL, CHECKPOINT INTERVAL)")
    assert pipelines.rows("shop.items") == [(1, "a"), (3, "c"), (4, "d")]


def staged(pipelines: Pipelines) -> int:
    return next((s.staged for s in read_statuses(pipelines.home) if s.sink == "s"), 0)


# ---- verify


def test_verify_finds_the_table_right_and_names_what_differs(pipelines: Pipelines, items: Folder) -> None:
    items.put((1, "a"), (2, "b"), (3, "c"))
    pipelines.run(SINK)
    items.put((2, None), (3, "cc"))
    pipelines.run()
    items.put((9, "not committed yet"))
    assert verify(pipelines.place, "s") == Differences(rows=2)
    table = pipelines.table("shop.items")
    theirs = pa.Table.from_pylist([{"id": 1, "v": "theirs"}, {"id": 7, "v": "x"}], schema=table.schema().as_arrow())
    with pytest.warns(UserWarning, match="falling back to copy-on-write"):
        table.overwrite(theirs)
    head = table.refresh().current_snapshot()
    assert head is not None
    pipelines.run(f"ALTER SINK s ACCEPT SNAPSHOT {head.snapshot_id}")
    found = verify(pipelines.place, "s")
    assert (found.rows, found.missing, found.unexpected, found.different) == (3, 1, 1, 1)
    assert {key for key, _, _ in found.samples} == {"1", "3", "7"}
    assert not found.none


def test_verify_sees_differences_of_a_microsecond(pipelines: Pipelines, tmp_path: Path) -> None:
    (tmp_path / "timed").mkdir()

    def put(*numbers: int) -> None:
        rows = [json.dumps({"id": n, "at": f"2026-01-01T00:00:00.00000{n}Z", "seq": n}) for n in numbers]
        (tmp_path / "timed" / f"{numbers[0]}.json").write_text("\n".join(rows))

    put(1, 2)
    pipelines.run(
        f"""
        {LAKE}
        CREATE SOURCE timed (id BIGINT NOT NULL, at TIMESTAMP, PRIMARY KEY (id) NOT ENFORCED)
        FROM FILES (PATH = '{tmp_path / "timed"}', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq);
        CREATE SINK timed FROM timed TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "timed";
        """
    )
    assert verify(pipelines.place, "timed") == Differences(rows=2)
    table = pipelines.table("shop.timed")
    rows = table.scan().to_arrow().to_pylist()
    later = [{**row, "at": row["at"] + timedelta(microseconds=row["id"] // 2)} for row in rows]
    with pytest.warns(UserWarning, match="falling back to copy-on-write"):
        table.overwrite(pa.Table.from_pylist(later, schema=table.schema().as_arrow()))
    head = table.refresh().current_snapshot()
    assert head is not None
    put(3)
    pipelines.run(f"ALTER SINK timed ACCEPT SNAPSHOT {head.snapshot_id}")
    found = verify(pipelines.place, "timed")
    assert (found.different, [key for key, _, _ in found.samples]) == (1, ["2"])


def test_verify_reads_source_and_table_once(pipelines: Pipelines, items: Folder) -> None:
    items.put((1, "a"), (2, "b"))
    pipelines.run(SINK)
    context = pipelines.place.spark().sparkContext
    context.setJobGroup("verify", "")
    assert verify(pipelines.place, "s") == Differences(rows=2)
    jobs = context.statusTracker().getJobIdsForGroup("verify")
    context.setJobGroup("", "")
    assert len(jobs) <= 3, "a map stage, the totals of each key, and their sums"


def test_verify_adds_up_the_changes_of_the_branch_that_a_sink_writes_to(pipelines: Pipelines, items: Folder) -> None:
    items.put((1, "a"), (2, "b"))
    pipelines.run(f"{SINK} WITH (BRANCH = 'audit')")
    items.put((2, None), (3, "c"), (4, "d"))
    pipelines.run()
    assert verify_changes(pipelines.place, "s") == Differences(rows=3)


def test_verify_computes_views_and_totals_anew(pipelines: Pipelines) -> None:
    pipelines.run((ROOT / "examples" / "view.sql").read_text())
    assert verify(pipelines.place, "big_orders") == Differences(rows=2)
    assert verify(pipelines.place, "tiers") == Differences(rows=2)


# ---- one that fails


def test_a_sink_that_halts_blocks_no_other_and_tells_why(pipelines: Pipelines, items: Folder, tmp_path: Path) -> None:
    broken = Folder(tmp_path / "broken")
    (broken.path / "1.json").write_text("no json\n")
    items.put((1, "a"))
    script = SOURCE.format(name="broken", folder=broken.path)
    results = pipelines.run(f"{script}{SINK}; CREATE SINK b FROM broken TO ICEBERG CATALOG lake NAMESPACE shop TABLE b")
    by_name = {result.name: result for result in results}
    assert (by_name["s"].ending, by_name["s"].exit_code) == (Ending.DONE, 0)
    assert (by_name["b"].ending, by_name["b"].exit_code) == (Ending.FAILED, 1)
    assert isinstance(by_name["b"].cause, BadRow)
    assert pipelines.rows("shop.items") == [(1, "a")]
    status = {s.sink: s for s in read_statuses(pipelines.home)}["b"]
    assert status.health is Health.HALTED
    assert "1.json" in status.cause


def test_a_sink_that_cannot_start_reports_it(pipelines: Pipelines, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    (result,) = pipelines.run(
        LAKE + f"CREATE SOURCE p FROM FILES (PATH = '{tmp_path}/nothing', FORMAT = 'parquet');"
        "CREATE SINK s FROM p TO ICEBERG CATALOG lake NAMESPACE shop TABLE p KEY (id)"
    )
    assert (result.ending, result.exit_code) == (Ending.FAILED, 2)
    assert isinstance(result.cause, InvalidInput)
    (status,) = read_statuses(pipelines.home)
    assert (status.sink, status.health) == ("s", Health.HALTED)


def test_a_sink_whose_start_failed_for_a_moment_is_started_again(
    pipelines: Pipelines, items: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    items.put((1, "a"))
    pipelines.apply(SINK)
    monkeypatch.setattr("calve.pipeline.supervisor.FIRST_WAIT", 0.05)
    failures = iter([TransientError("the catalog is away"), OSError("the disk, too")])
    real = Sink.start

    def start(sink: Sink, **options: Any) -> Query:
        error = next(failures, None)
        if error is not None:
            raise error
        return real(sink, **options)

    monkeypatch.setattr(Sink, "start", start)
    assert endings(pipelines.run()) == [Ending.DONE]
    assert pipelines.rows("shop.items") == [(1, "a")]


def test_every_sink_has_a_pool_of_its_own(
    pipelines: Pipelines, items: Folder, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calve.write.batch.DRIVER_ROWS", 0)  # everything goes to Spark
    items.put((1, "a"))
    pipelines.run(f"{SINK}; CREATE SINK t FROM items TO ICEBERG CATALOG lake NAMESPACE shop TABLE t")
    context = spark.sparkContext._jsc.sc()
    assert context.getConf().get("spark.scheduler.mode") == "FAIR"
    for definition in pipelines.place.definitions().of(ObjectKind.SINK):
        assert context.getPoolForName(definition.uid).isDefined()


def test_a_fenced_sink_is_not_started_again(pipelines: Pipelines, items: Folder) -> None:
    items.put((1, "a"))
    pipelines.run(SINK)
    (definition,) = pipelines.place.definitions().of(ObjectKind.SINK)
    definitions = pipelines.place.definitions()
    sink = sink_of(pipelines.home, plan_sink(definition, definitions), definitions, pipelines.place.vault)
    newer = Sink(sink.changes, Lake(pipelines.home, {}), sink.spec).options(version=9)
    items.put((2, "b"))
    query = newer.start()
    query.await_caught_up()
    query.stop()
    items.put((3, "c"))
    (result,) = pipelines.run()
    assert (result.ending, result.exit_code) == (Ending.FENCED, 3)
    assert isinstance(result.cause, FencedError)
    assert pipelines.rows("shop.items") == [(1, "a"), (2, "b")]


# ---- changes while it runs


def test_alter_pause_resume_and_drop_are_noticed_while_it_runs(pipelines: Pipelines, items: Folder) -> None:
    items.put((1, "a"))
    pipelines.apply(SINK)
    with pipelines.started() as running:
        eventually(lambda: pipelines.rows_or_none("shop.items") == [(1, "a")])
        pipelines.apply("ALTER SINK s SET (COMPRESSION = 'snappy')")
        eventually(lambda: [r.definition.version for r in running.supervisor.runners if r.query] == [2])
        items.put((2, "b"))
        eventually(lambda: pipelines.rows("shop.items") == [(1, "a"), (2, "b")])
        assert versions(pipelines) == [1, 2]
        pipelines.apply("ALTER SINK s PAUSE")
        eventually(lambda: not running.supervisor.runners)
        items.put((3, "c"))
        pipelines.apply("ALTER SINK s RESUME")
        eventually(lambda: (3, "c") in pipelines.rows("shop.items"))
        assert pipelines.rows("shop.items") == [(1, "a"), (2, "b"), (3, "c")]
        pipelines.apply("DROP SINK s")
        assert running.join() == []


def versions(pipelines: Pipelines) -> list[int]:
    """Versions of the sink that wrote, in order."""
    found = [s.summary for s in pipelines.table("shop.items").snapshots()]
    return sorted({int(s.additional_properties["calve.sink-version"]) for s in found if s})


# ---- starting over


def test_set_from_another_source_makes_the_table_equal_to_it_in_one_snapshot(
    pipelines: Pipelines, items: Folder, tmp_path: Path
) -> None:
    others = Folder(tmp_path / "others")
    for number in range(3):
        others.put((10 + number, "x"))
    others.put((10, None))
    items.put((1, "a"), (2, "b"))
    pipelines.run(SINK)
    before = {s.snapshot_id for s in pipelines.table("shop.items").snapshots()}
    pipelines.apply(
        SOURCE.format(name="others", folder=others.path).replace("'json'", "'json', MAX FILES PER CHECKPOINT 1")
    )
    pipelines.apply("ALTER SINK s SET FROM others WITH (SNAPSHOT = true)")
    assert endings(pipelines.run()) == [Ending.DONE]
    assert pipelines.rows("shop.items") == [(11, "x"), (12, "x")]
    assert sorted(r["id"] for r in spark_iceberg_rows(pipelines.table("shop.items").metadata_location)) == [11, 12]
    seen = [
        pipelines.rows("shop.items", snapshot_id=s.snapshot_id)
        for s in pipelines.table("shop.items").snapshots()
        if s.snapshot_id not in before
    ]
    assert seen == [[(1, "a"), (2, "b")], [(11, "x"), (12, "x")]], "the claim, then all of it at once"
    others.put((13, "y"), (11, None))
    pipelines.run()
    assert pipelines.rows("shop.items") == [(12, "x"), (13, "y")]


def test_a_table_becomes_empty_with_a_source_that_holds_nothing(
    pipelines: Pipelines, items: Folder, tmp_path: Path
) -> None:
    nothing = Folder(tmp_path / "nothing")
    items.put((1, "a"))
    pipelines.run(SINK)
    pipelines.apply(SOURCE.format(name="nothing", folder=nothing.path))
    pipelines.run("ALTER SINK s SET FROM nothing WITH (SNAPSHOT = true)")
    assert pipelines.rows("shop.items") == []
    nothing.put((5, "e"))
    pipelines.run()
    assert pipelines.rows("shop.items") == [(5, "e")]


def test_a_complete_sink_is_opened_again_by_a_new_source(pipelines: Pipelines, items: Folder) -> None:
    items.put((1, "a"))
    pipelines.run(
        "CREATE SOURCE g FROM LOAD GENERATOR orders (ROWS = 50, UPDATES = 0);"
        "CREATE SINK s FROM g TO ICEBERG CATALOG lake NAMESPACE shop TABLE g"
    )
    assert len(pipelines.rows("shop.g")) == 50
    pipelines.apply("CREATE SOURCE h FROM LOAD GENERATOR orders (ROWS = 30, UPDATES = 0, SEED = 9)")
    pipelines.run("ALTER SINK s SET FROM h WITH (SNAPSHOT = true)")
    assert pipelines.rows("shop.g") == sorted(expected_orders(orders(rows=30, changes=0, seed=9), 30).values())
    before = pipelines.metadata_files()
    assert endings(pipelines.run()) == [Ending.DONE]
    assert pipelines.metadata_files() == before


def test_a_dropped_sink_is_resumed_or_replaced_on_demand(pipelines: Pipelines, items: Folder) -> None:
    items.put((1, "a"))
    pipelines.run(SINK)
    items.put((2, "b"))
    pipelines.apply("DROP SINK s")
    with pytest.raises(InvalidInput, match="has the progress of a dropped sink"):
        pipelines.apply(SINK)
    pipelines.run(f"{SINK} WITH (RESUME = true)")
    assert pipelines.rows("shop.items") == [(1, "a"), (2, "b")]
    added = [s.summary for s in pipelines.table("shop.items").snapshots()]
    assert [s.additional_properties.get("added-records") for s in added if s] == [None, "1", None, "1"]
    pipelines.apply("DROP SINK s")
    shutil.rmtree(items.path)
    items.path.mkdir()
    items.put((3, "c"))
    pipelines.run(f"{SINK} WITH (SNAPSHOT = true)")
    assert pipelines.rows("shop.items") == [(3, "c")]


def test_a_foreign_snapshot_halts_until_it_is_accepted(pipelines: Pipelines, items: Folder) -> None:
    items.put((1, "a"))
    pipelines.run(SINK)
    table = pipelines.table("shop.items")
    table.append(pa.Table.from_pylist([{"id": 100, "v": "theirs"}], schema=table.schema().as_arrow()))
    items.put((2, "b"))
    (result,) = pipelines.run()
    assert isinstance(result.cause, ForeignCommit)
    head = table.refresh().current_snapshot()
    assert head is not None
    assert f"ACCEPT SNAPSHOT {head.snapshot_id}" in result.cause.hint
    assert endings(pipelines.run(f"ALTER SINK s ACCEPT SNAPSHOT {head.snapshot_id}")) == [Ending.DONE]
    assert pipelines.rows("shop.items") == [(1, "a"), (2, "b"), (100, "theirs")]


def test_a_rolled_back_table_is_filled_again_once_it_is_accepted(pipelines: Pipelines, items: Folder) -> None:
    for number in range(3):
        items.put((number, "a"))
        pipelines.run(SINK)
    table = pipelines.table("shop.items")
    second = [s for s in table.snapshots() if s.summary and "added-records" in s.summary.additional_properties][1]
    table.manage_snapshots().rollback_to_snapshot(second.snapshot_id).commit()
    (halted,) = pipelines.run()
    assert "rolled back" in str(halted.cause)
    (result,) = pipelines.run(f"ALTER SINK s ACCEPT SNAPSHOT {second.snapshot_id}")
    assert result.ending is Ending.DONE
    assert pipelines.rows("shop.items") == [(0, "a"), (1, "a"), (2, "a")]
