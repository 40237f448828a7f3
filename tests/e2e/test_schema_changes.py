"""Columns and partitions that change during the life of a sink: by its source, its definition, or other writers."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.types import LongType, StringType
from pyspark.sql import SparkSession

import calve
from calve import faults
from calve.catalog.connect import connect_embedded
from calve.pipeline.supervisor import Ending
from tests.support.changes import at, until_done
from tests.support.combinations import diagonal
from tests.support.pipelines import Pipelines, eventually
from tests.support.readers import duckdb_rows, spark_iceberg_rows

STATEMENTS = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE people (id INT NOT NULL, name STRING, age INT, home STRUCT<zip: STRING>, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '{folder}', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq, DELETE WHEN op = 'd');
CREATE SINK s FROM people TO ICEBERG CATALOG lake NAMESPACE crm TABLE people {clauses};
"""
WIDER = (
    "ALTER SOURCE people SET COLUMNS (id INT NOT NULL, age BIGINT, "
    "home STRUCT<zip: STRING, floors: ARRAY<STRUCT<n: INT>>>, mail STRING)"
)
TABLE = "crm.people"


@pytest.fixture
def pipelines(spark: SparkSession, tmp_path: Path) -> Pipelines:
    return Pipelines(tmp_path / "home", spark)


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    faults.install(None)


class People:
    """A folder of changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = 0
        folder.mkdir()

    def add(self, *records: dict[str, Any]) -> None:
        self._number += 1
        lines = [json.dumps({"seq": self._number * 100 + n, "op": "u", **r}) for n, r in enumerate(records)]
        (self.folder / f".{self._number}").write_text("\n".join(lines))
        (self.folder / f".{self._number}").rename(self.folder / f"{self._number}.json")


def rows(pipelines: Pipelines, *columns: str) -> list[tuple[Any, ...]]:
    """As both readers see them, by the first column."""
    location = pipelines.table(TABLE).metadata_location
    found = [
        sorted((tuple(row[c] for c in columns) for row in read(location)), key=lambda row: row[0])
        for read in (duckdb_rows, spark_iceberg_rows)
    ]
    assert found[0] == found[1]
    return found[0]


def done(results: Sequence[Any]) -> bool:
    return all(result.ending is Ending.DONE for result in results)


def test_a_source_that_gains_widens_and_drops_columns_changes_the_table(pipelines: Pipelines, tmp_path: Path) -> None:
    people = People(tmp_path / "in")
    people.add(*({"id": n, "name": f"n{n}", "age": n, "home": {"zip": "1"}} for n in (1, 2, 3)))
    assert done(pipelines.run(STATEMENTS.format(folder=people.folder, clauses="PARTITION BY (bucket(2, id))")))
    before = pipelines.table(TABLE).schema()
    pipelines.apply(WIDER)
    assert done(pipelines.run())
    assert pipelines.table(TABLE).schema() == before, "without rows nothing changes"
    large = 2**40
    people.add({"id": 2, "op": "d"}, {"id": 3, "age": large, "home": {"zip": "9", "floors": [{"n": 1}]}, "mail": "m"})
    people.add({"id": 4, "mail": "far"})
    assert done(pipelines.run())
    assert rows(pipelines, "id", "name", "age", "home", "mail") == [
        (1, "n1", 1, {"zip": "1", "floors": None}, None),
        (3, None, large, {"zip": "9", "floors": [{"n": 1}]}, "m"),
        (4, None, None, None, "far"),
    ]
    after = pipelines.table(TABLE).schema()
    assert [after.find_field(f.name).field_id for f in before.fields] == [f.field_id for f in before.fields]
    assert after.find_type("age") == LongType()
    assert after.identifier_field_names() == {"id"}
    assert after.find_field("mail").field_id > max(before.field_ids)


def test_with_halt_a_source_that_gained_a_column_stops_before_anything_is_written(
    pipelines: Pipelines, tmp_path: Path
) -> None:
    people = People(tmp_path / "in")
    people.add({"id": 1, "name": "n1"})
    halting = "WITH (ON SCHEMA CHANGE = 'halt')"
    assert done(pipelines.run(STATEMENTS.format(folder=people.folder, clauses=halting)))
    before = pipelines.metadata_files()
    pipelines.apply(WIDER)
    people.add({"id": 2, "mail": "m"})
    (result,) = pipelines.run()
    assert 'column "mail": got string, expected none' in str(result.cause)
    assert pipelines.metadata_files() == before
    pipelines.apply("ALTER SINK s SET (ON SCHEMA CHANGE = 'evolve')")
    assert done(pipelines.run())
    assert rows(pipelines, "id", "name", "mail") == [(1, "n1", None), (2, None, "m")]


def test_a_change_that_no_table_allows_is_told_with_the_difference(pipelines: Pipelines, tmp_path: Path) -> None:
    people = People(tmp_path / "in")
    people.add({"id": 1, "age": 1})
    assert done(pipelines.run(STATEMENTS.format(folder=people.folder, clauses="")))
    pipelines.apply("ALTER SOURCE people SET COLUMNS (id INT NOT NULL, age STRING, mail STRING)")
    (result,) = pipelines.run()
    assert 'column "age": got string, expected int' in str(result.cause)
    pipelines.apply("ALTER SOURCE people SET COLUMNS (id BIGINT NOT NULL, age INT)")
    (result,) = pipelines.run()
    assert 'column "id": got long, expected int, which is narrower, and a key' in str(result.cause)
    assert pipelines.table(TABLE).schema().schema_id == 0


@diagonal(point=["schema.before", "schema.after"], windows=[False, True])
def test_a_death_between_the_change_and_the_rows_that_need_it_loses_nothing(
    spark: SparkSession, tmp_path: Path, point: str, *, windows: bool
) -> None:
    """With windows the rows of before are still staged when the source changes: they keep their columns."""
    del spark
    folder = tmp_path / "in"
    people = People(folder)
    lake = calve.connect(home=tmp_path / "home")

    def start(columns: str, *by: str) -> Any:
        envelope = calve.Upsert(order_by=("seq",), delete_when="op = 'd'", columns=columns)
        source = calve.files(folder, format="json", envelope=envelope)
        sink = calve.sink(source, name="s", into=lake.table(TABLE), key=["id"]).partition_by(*by)
        return sink.start(commit_interval="1h", checkpoint_interval="1s") if windows else sink.start()

    people.add({"id": 1, "name": "a", "age": 1}, {"id": 2, "name": "b", "age": 2}, {"id": 3, "name": "c"})
    query = start("id BIGINT, name STRING, age INT", "bucket(2, id)")
    query.await_caught_up(60)
    people.add({"id": 1, "name": "aa", "age": 11})
    eventually(lambda: query.status().staged == 1 if windows else query.status().commits == 2)
    query.stop()
    people.add({"id": 2, "age": 2**40, "mail": "m"}, {"id": 3, "op": "d"})
    wider = "id BIGINT, age BIGINT, mail STRING"
    until_done(lambda: start(wider, "truncate(10, age)"), [(point, 1)], bounded=False)
    found = sorted(duckdb_rows(lake.open().load_table(TABLE).metadata_location), key=lambda row: row["id"])
    assert found == [
        {"id": 1, "name": "aa", "age": 11, "mail": None},
        {"id": 2, "name": None, "age": 2**40, "mail": "m"},
    ]


# ---- partitions


def test_partitions_of_a_sink_can_be_changed_and_rows_of_older_specs_are_still_deleted(
    pipelines: Pipelines, tmp_path: Path
) -> None:
    people = People(tmp_path / "in")
    people.add(*({"id": n, "name": f"n{n}", "age": n} for n in (1, 2, 3)))
    assert done(pipelines.run(STATEMENTS.format(folder=people.folder, clauses="PARTITION BY (bucket(2, id))")))
    specs = []
    for number, fields in enumerate(("(truncate(2, name), age)", "()", "(bucket(2, id))"), 2):
        pipelines.apply(f"ALTER SINK s SET PARTITION BY {fields}")
        people.add({"id": 1, "name": f"v{number}"}, {"id": number, "op": "d"}, {"id": 10 * number, "name": "new"})
        assert done(pipelines.run())
        specs.append([(f.name, f.field_id) for f in pipelines.table(TABLE).spec().fields])
    assert rows(pipelines, "id", "name") == [(1, "v4"), (20, "new"), (30, "new"), (40, "new")]
    assert specs == [[("name_trunc", 1001), ("age", 1002)], [], [("id_bucket", 1000)]]


# ---- by other writers


def test_what_others_do_to_columns_and_partitions_is_picked_up(pipelines: Pipelines, tmp_path: Path) -> None:
    people = People(tmp_path / "in")
    people.add({"id": 1, "name": "a", "age": 1}, {"id": 2, "name": "b", "age": 2})
    assert done(pipelines.run(STATEMENTS.format(folder=people.folder, clauses="PARTITION BY (bucket(2, id))")))
    catalog = connect_embedded(pipelines.home)
    table = catalog.load_table(TABLE)
    with table.update_schema() as change:
        change.rename_column("name", "called").add_column("theirs", StringType()).update_column("age", LongType())
    with table.update_spec() as spec:
        spec.remove_field("id_bucket").add_identity("age")
    catalog.close()
    people.add({"id": 2, "name": "bb", "age": 3}, {"id": 3, "name": "c", "age": 3})
    assert done(pipelines.run())
    assert rows(pipelines, "id", "called", "age", "theirs") == [
        (1, "a", 1, None),
        (2, "bb", 3, None),
        (3, "c", 3, None),
    ]
    changed = pipelines.table(TABLE)
    assert [f.name for f in changed.schema().fields] == ["id", "called", "age", "home", "theirs"]
    assert [f.name for f in changed.spec().fields] == ["age"]


def test_a_schema_that_changes_in_the_middle_of_a_batch_makes_no_half_commit(
    pipelines: Pipelines, tmp_path: Path
) -> None:
    people = People(tmp_path / "in")
    people.add({"id": 1, "name": "a", "age": 1}, {"id": 2, "name": "b", "age": 2})
    pipelines.apply(STATEMENTS.format(folder=people.folder, clauses=""))
    assert done(pipelines.run())

    def meddle() -> None:
        catalog = connect_embedded(pipelines.home)
        table = catalog.load_table(TABLE)
        with table.update_schema() as change:
            change.delete_column("age").add_column("age", StringType()).add_column("more", LongType())
        with table.update_spec() as spec:
            spec.add_identity("name")
        catalog.close()

    people.add({"id": 2, "name": "bb", "age": 3}, {"id": 3, "name": "c", "age": 4})
    at("manifest-list.after", 2, meddle)  # between the load of an attempt and its commit
    assert done(pipelines.run())
    assert rows(pipelines, "id", "name", "age", "more") == [
        (1, "a", None, None),
        (2, "bb", None, None),
        (3, "c", None, None),
    ]
    people.add({"id": 4, "age": 5})
    (result,) = pipelines.run()
    assert 'column "age": got int, expected string' in str(result.cause)
