"""Sinks that adopt tables with rows: bulk load first, changes afterwards."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType
from pyspark.sql import SparkSession

import calve
from calve.catalog.connect import connect_embedded
from calve.clock import sink_id_of
from calve.errors import CalveError, FencedError, ForeignCommit, InvalidInput, KeyViolation, ProgressUnprovable
from calve.model.progress import Progress, property_key
from calve.model.spec import Diff, Upsert
from calve.pipeline.query import Query
from calve.pipeline.sink import Sink
from calve.pipeline.supervisor import Ending
from tests.integration.reader.tables import SparkTable
from tests.support.changes import Batches, at, until_done
from tests.support.foreign import SINK, ForeignTable
from tests.support.pipelines import Pipelines
from tests.support.readers import duckdb_rows, spark_iceberg_rows

NAME = "shop.others"
ENVELOPE = Upsert(order_by=("seq",), delete_when="v is null", columns="id, v")
SCHEMA = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "v", StringType(), required=False))
CHANGES: list[list[tuple[Any, ...]]] = [[(1, "one", 1), (9, "nine", 2)], [(2, None, 3), (3, "three", 4)]]
AFTER = [(1, "one"), (3, "three"), (4, "d"), (9, "nine")]
Rows = list[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def _session(spark: SparkSession) -> None:
    """Sinks take the active session."""


def sink(home: Path, name: str = "s", changes: Any = None, **options: Any) -> Sink:
    source = Batches(changes or CHANGES, "id BIGINT, v STRING, seq BIGINT", ENVELOPE)
    made = calve.sink(source, name=name, into=calve.connect(home=home).table(NAME), key=["id"])
    return made.options(**{"adopt": True, **options})


def done(query: Query) -> None:
    assert query.await_termination(120), query.status().cause


def read_back(table: Table) -> Rows:
    """The rows, which DuckDB and Spark agree on."""
    found = [
        sorted((row["id"], row["v"]) for row in read(table.metadata_location))
        for read in (duckdb_rows, spark_iceberg_rows)
    ]
    assert found[0] == found[1]
    return found[0]


def loaded(home: Path, *batches: Rows) -> Table:
    """A table that pyiceberg wrote."""
    catalog = connect_embedded(home)
    catalog.create_namespace("shop")
    table = catalog.create_table(NAME, SCHEMA, properties={"format-version": "2"})
    for rows in batches:
        table.append(as_arrow(rows))
    return table


def as_arrow(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist([{"id": key, "v": value} for key, value in rows], schema=SCHEMA.as_arrow())


def write_changes(path: Path, records: Rows) -> None:
    path.write_text("\n".join(json.dumps({"id": key, "v": v, "seq": seq}) for key, v, seq in records))


def summaries(table: Table, name: str) -> list[str | None]:
    return [s.summary.additional_properties.get(name) if s.summary else None for s in table.refresh().snapshots()]


INITIAL: Rows = [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


def test_a_table_of_pyiceberg_is_taken_over_and_changes_follow(tmp_path: Path) -> None:
    table = loaded(tmp_path, INITIAL[:2], INITIAL[2:])
    head = table.current_snapshot()
    assert head is not None
    done(sink(tmp_path).start())
    assert read_back(table.refresh()) == AFTER
    assert summaries(table, "calve.adopting")[2] == str(head.snapshot_id), "the claim says what it adopts"
    assert summaries(table, "calve.adopted")[3:] == [str(head.snapshot_id)] * (len(table.snapshots()) - 3)
    marks = summaries(table, "calve.catching-up")
    assert marks[2] == "true"
    assert marks[-1] is None, "the input is read through"
    done(sink(tmp_path).start())
    assert read_back(table.refresh()) == AFTER


def test_deletes_of_other_writers_stay_in_force(tmp_path: Path) -> None:
    foreign = ForeignTable(tmp_path, SCHEMA)
    first = foreign.data([{"id": n, "v": "old"} for n in (1, 2, 3, 4, 5, 6)])
    foreign.commit(first)
    foreign.commit(foreign.equality(["id"], [{"id": 1}, {"id": 5}]), foreign.data([{"id": 1, "v": "a"}]))
    foreign.commit(foreign.positions([(first, 1), (first, 5)]), foreign.data([{"id": 2, "v": "b"}]))
    foreign.commit(foreign.equality(["v"], [{"v": "gone"}]), foreign.data([{"id": 4, "v": "d"}]))
    foreign.commit(foreign.positions([(first, 3)]))
    done(sink(tmp_path).start())
    assert read_back(foreign.table) == AFTER
    stated = Progress.from_property(foreign.table.properties[property_key(SINK)])
    assert stated.fence.retired, "the sink that wrote the table before lost it"
    foreign.close()


@pytest.mark.parametrize(
    ("deletes", "version"), [pytest.param("position", 2, marks=pytest.mark.soak), ("equality", 2), ("vector", 3)]
)
def test_a_table_of_spark_with_deletes_is_taken_over(tmp_path: Path, deletes: str, version: int) -> None:
    parts = "PARTITIONED BY (bucket(2, id))"
    theirs = SparkTable(tmp_path, f"adopted_{deletes}", "id BIGINT, v STRING", version, parts)
    theirs.run("INSERT INTO {t} VALUES (1, 'a'), (2, 'x'), (3, 'c'), (4, 'd'), (5, 'e')")
    theirs.run("UPDATE {t} SET v = 'b' WHERE id = 2")
    theirs.run("DELETE FROM {t} WHERE id = 5")
    into = theirs.ref
    source = Batches(CHANGES, "id BIGINT, v STRING, seq BIGINT", ENVELOPE)
    made = calve.sink(source, name="s", into=into, key=["id"])
    done(made.options(adopt=True, deletes=deletes, format_version=version).start())
    assert read_back(connect_embedded(tmp_path).load_table(str(into))) == AFTER


def test_keys_that_are_null_or_there_twice_are_named_and_corrected_rows_are_checked_again(tmp_path: Path) -> None:
    table = loaded(tmp_path, INITIAL, [(2, "again"), (2, "and again"), (None, "no key"), (7, "once")])
    with pytest.raises(KeyViolation, match=r"id = NULL \(1 row\); id = 2 \(3 rows\)\."):
        done(sink(tmp_path).start())
    assert len(duckdb_rows(table.refresh().metadata_location)) == 8, "nothing was written"
    with pytest.raises(KeyViolation, match=r"id = 2"):
        done(sink(tmp_path).start())
    table.refresh().overwrite(as_arrow(INITIAL))
    done(sink(tmp_path).start())
    assert read_back(table.refresh()) == AFTER


def test_of_many_wrong_keys_ten_are_named(tmp_path: Path) -> None:
    twice: Rows = [(n, "x") for n in range(13)]
    loaded(tmp_path, twice, twice)
    with pytest.raises(KeyViolation, match=r"id = 0 \(2 rows\);.* id = 9 \(2 rows\); and 3 more\."):
        done(sink(tmp_path).start())


def test_trust_takes_over_rows_without_a_look_at_them(tmp_path: Path) -> None:
    table = loaded(tmp_path, INITIAL, [(2, "again")])
    done(sink(tmp_path, adopt="trust").start())
    assert read_back(table.refresh()) == AFTER, "the change of the key deletes both rows"


def test_a_crash_at_any_step_of_a_take_over_changes_nothing(tmp_path: Path) -> None:
    table = loaded(tmp_path, INITIAL)
    points = ["claim.before", "claim.after", "adopt.before", "adopt.after", "rows.before", "rows.after"]
    deaths = [(point, 1) for point in points]
    deaths += [
        ("commit.before", 2),
        ("commit.after", 2),
        ("files.before", 1),
        ("record.after", 1),
        ("receipt.before", 1),
    ]
    until_done(sink(tmp_path).start, deaths)
    assert read_back(table.refresh()) == AFTER


def test_rows_that_come_while_the_table_is_checked_halt_the_sink_and_the_next_start_checks_them(tmp_path: Path) -> None:
    table = loaded(tmp_path, INITIAL)
    at("rows.after", 1, lambda: connect_embedded(tmp_path).load_table(NAME).append(as_arrow([(8, "late")])))
    with pytest.raises(ForeignCommit):
        done(sink(tmp_path).start())
    at("never", 1, lambda: None)
    done(sink(tmp_path).start())
    assert read_back(table.refresh()) == sorted([*AFTER, (8, "late")])


def test_after_the_first_claim_lost_progress_halts_as_ever(tmp_path: Path) -> None:
    table = loaded(tmp_path, INITIAL)
    before = table.current_snapshot()
    assert before is not None
    done(sink(tmp_path).start())
    table = table.refresh()
    table.manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    with table.transaction() as change:
        change.remove_properties(property_key(sink_id_of("s", NAME)))
    with pytest.raises(ProgressUnprovable, match="restore the table"):
        sink(tmp_path).start()


def test_a_sink_that_still_runs_is_fenced_by_one_that_takes_over_its_table(tmp_path: Path) -> None:
    folder, into = tmp_path / "in", calve.connect(home=tmp_path).table(NAME)
    folder.mkdir()
    write_changes(folder / "1.json", [(key, v, key) for key, v in INITIAL])
    source = calve.files(folder, format="json", schema="id BIGINT, v STRING, seq BIGINT", envelope=ENVELOPE)
    running = calve.sink(source, name="first", into=into, key=["id"]).start()
    running.await_caught_up(120)
    done(sink(tmp_path, "second").start())
    write_changes(folder / "2.json", [(4, "of a sink that lost its table", 9)])
    with pytest.raises(FencedError, match="another sink adopted the table"):
        running.await_termination(120)
    assert read_back(connect_embedded(tmp_path).load_table(NAME)) == AFTER


def test_a_branch_is_taken_over_and_main_stays_as_it_is(tmp_path: Path) -> None:
    table = loaded(tmp_path, INITIAL)
    done(sink(tmp_path, branch="audit").start())
    table = table.refresh()
    assert read_back(table) == INITIAL
    head = table.metadata.refs["audit"].snapshot_id
    rows = duckdb_rows(table.metadata_location, snapshot_id=head)
    assert sorted((row["id"], row["v"]) for row in rows) == AFTER


def _log(home: Path) -> Sink:
    source = Batches(CHANGES, "id BIGINT, v STRING, seq BIGINT", ENVELOPE)
    into = calve.connect(home=home).table(NAME)
    return calve.sink(source, name="s", into=into, key=["id"], mode="append").options(adopt=True)


def _diff(home: Path) -> Sink:
    source = Batches([[(1, "a", 1, 1)]], "id BIGINT, v STRING, t BIGINT, d BIGINT", Diff("t", "d"))
    return calve.sink(source, name="s", into=calve.connect(home=home).table(NAME), key=["id"]).options(adopt=True)


def _stream(home: Path) -> Sink:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    frame = spark.readStream.format("rate").load()
    return calve.sink(frame, name="s", into=calve.connect(home=home).table(NAME), key=["value"]).options(adopt=True)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda home: sink(home, adopt="perhaps"), "invalid value adopt"),
        (_log, "only at exact offsets"),
        (_diff, "ENVELOPE DIFF"),
        (_stream, "from a streaming DataFrame"),
        (sink, "does not exist"),
    ],
)
def test_what_cannot_be_taken_over_is_refused(tmp_path: Path, made: Callable[[Path], Sink], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        made(tmp_path).start()


PIPELINE = """
CREATE CONNECTION IF NOT EXISTS lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE IF NOT EXISTS changes (id BIGINT NOT NULL, v STRING, PRIMARY KEY (id) NOT ENFORCED)
FROM FILES (PATH = '{folder}', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq, DELETE WHEN v IS NULL);
CREATE SINK s FROM changes TO ICEBERG CATALOG lake NAMESPACE shop TABLE others {options};
"""


def test_bulk_load_then_changes_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    pipelines, folder = Pipelines(tmp_path / "home", spark), tmp_path / "in"
    folder.mkdir()
    table = loaded(pipelines.home, INITIAL)
    with pytest.raises(InvalidInput, match=r"rows that no run of this sink wrote") as refused:
        pipelines.apply(PIPELINE.format(folder=folder, options=""))
    assert refused.value.hint == "WITH (ADOPT = true) adopts it, WITH (SNAPSHOT = true) replaces its rows."
    (result,) = pipelines.run(PIPELINE.format(folder=folder, options="WITH (ADOPT = true)"))
    assert result.ending is Ending.DONE, result.cause
    assert summaries(table, "calve.catching-up")[1:] == ["true", "true", None], "checked without any change to read"
    write_changes(folder / "1.json", [record for batch in CHANGES for record in batch])
    (result,) = pipelines.run()
    assert result.ending is Ending.DONE, result.cause
    assert read_back(table.refresh()) == AFTER
    pipelines.apply("DROP SINK s")
    with pytest.raises(CalveError, match="progress of a dropped sink"):
        pipelines.apply(PIPELINE.format(folder=folder, options=""))
    (result,) = pipelines.run(PIPELINE.format(folder=folder, options="WITH (ADOPT = true)"))
    assert result.ending is Ending.DONE, result.cause
    assert read_back(table.refresh()) == AFTER, "the same changes once more change nothing"
    pipelines.apply("DROP SINK s")
    with pytest.raises(CalveError, match="progress of a dropped sink") as left:
        pipelines.apply(PIPELINE.format(folder=folder, options=""))
    assert left.value.detail.count("-") == 4, "of two dropped sinks one is retired"
