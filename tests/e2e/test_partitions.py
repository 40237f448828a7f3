"""Partitioned tables by SQL and by Python, read back by engines that are not calve."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import calve
from calve.errors import InvalidInput
from tests.support.pipelines import Pipelines
from tests.support.readers import duckdb_rows, spark_iceberg_rows

LAKE = "CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');"
SOURCE = """
CREATE SOURCE visits (
    id BIGINT NOT NULL, place STRUCT<city: STRING, code: INT>, "At" TIMESTAMP, PRIMARY KEY (id) NOT ENFORCED
) FROM FILES (PATH = '{folder}', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq, DELETE WHEN op = 'd');
"""
SINK = "CREATE SINK s FROM visits TO ICEBERG CATALOG lake NAMESPACE shop TABLE visits PARTITION BY ({fields})"


@pytest.fixture
def pipelines(spark: SparkSession, tmp_path: Path) -> Pipelines:
    return Pipelines(tmp_path / "home", spark)


@pytest.fixture
def visits(pipelines: Pipelines, tmp_path: Path) -> Path:
    folder = tmp_path / "visits"
    folder.mkdir()
    pipelines.apply(LAKE + SOURCE.format(folder=folder))
    return folder


def put(folder: Path, *visits: tuple[int, str | None, str | None]) -> None:
    """A file: id, city and time; without a time the visit is gone."""
    start = 10 * len(list(folder.iterdir()))
    records = [
        {"id": key, "place": {"city": city, "code": key}, "At": at, "op": "u" if at else "d", "seq": start + n}
        for n, (key, city, at) in enumerate(visits)
    ]
    (folder / f"{start:06d}.json").write_text("\n".join(json.dumps(record) for record in records))


def seen(pipelines: Pipelines) -> dict[str, list[tuple[Any, ...]]]:
    at = pipelines.table("shop.visits").metadata_location
    return {
        reader.__name__: sorted((row["id"], row["place"]["city"], row["At"]) for row in reader(at))
        for reader in (duckdb_rows, spark_iceberg_rows)
    }


def test_visits_follow_their_partition_from_run_to_run(pipelines: Pipelines, visits: Path) -> None:
    pipelines.apply(SINK.format(fields="bucket(2, ID), truncate(1, place.city), hour(at)"))
    put(
        visits,
        (1, "Ulm", "1969-12-31T23:59:59Z"),
        (2, "Bonn", "2026-01-01T00:00:00Z"),
        (3, None, "2026-01-01T00:30:00Z"),
    )
    pipelines.run()
    put(visits, (1, "Ulm", "2026-01-01T00:00:01Z"), (1, "Aalen", "2026-02-01T00:00:01Z"), (3, None, None))
    pipelines.run()
    wanted = [(1, "Aalen", datetime(2026, 2, 1, 0, 0, 1, tzinfo=UTC)), (2, "Bonn", datetime(2026, 1, 1, tzinfo=UTC))]
    assert seen(pipelines) == {"duckdb_rows": wanted, "spark_iceberg_rows": wanted}
    for encoding, day in (("equality", 1), ("position", 2)):
        pipelines.apply(f"ALTER SINK s SET (DELETES = '{encoding}')")
        put(visits, (1, "Aalen", f"2026-03-0{day}T00:00:00Z"), (2, "Ulm", f"2026-03-0{day}T00:00:00Z"))
        pipelines.run()
        wanted = [(key, city, datetime(2026, 3, day, tzinfo=UTC)) for key, city in ((1, "Aalen"), (2, "Ulm"))]
        assert seen(pipelines) == {"duckdb_rows": wanted, "spark_iceberg_rows": wanted}
        newest = pipelines.table("shop.visits").current_snapshot()
        assert newest is not None
        assert newest.summary is not None
        assert int(newest.summary.additional_properties[f"added-{encoding}-deletes"]) >= 2
    spec = pipelines.table("shop.visits").spec()
    assert [(f.name, str(f.transform)) for f in spec.fields] == [
        ("id_bucket", "bucket[2]"),
        ("place.city_trunc", "truncate[1]"),
        ("At_hour", "hour"),
    ]


@pytest.mark.parametrize(
    ("view", "fields", "error"),
    [
        ("SELECT id, place.city FROM visits", "hour(city)", "cannot be partitioned by hour"),
        ("SELECT id, place.city FROM visits", "town", 'partition column "town" does not exist'),
        ('SELECT id, "At" FROM visits', "day(at), month(at)", "are redundant"),
        ("SELECT id, place FROM visits", "place", "cannot be partitioned by place"),
    ],
)
def test_partitions_of_a_view_are_checked_when_the_sink_is_created(
    pipelines: Pipelines, visits: Path, view: str, fields: str, error: str
) -> None:
    assert visits.is_dir()
    pipelines.apply(f"CREATE VIEW v AS {view}")
    with pytest.raises(InvalidInput, match=error):
        pipelines.apply(SINK.format(fields=fields).replace("FROM visits", "FROM v"))


def test_a_view_is_kept_by_partition(pipelines: Pipelines, visits: Path) -> None:
    pipelines.apply("CREATE VIEW v AS SELECT id, place.city AS city, \"At\" FROM visits WHERE place.city <> 'Rom'")
    pipelines.apply(SINK.format(fields="city").replace("FROM visits", "FROM v"))
    put(visits, (1, "Ulm", "2026-01-01T00:00:00Z"), (2, "Bonn", "2026-01-01T00:00:00Z"))
    pipelines.run()
    put(visits, (1, "Rom", "2026-01-01T00:00:00Z"), (2, "Ulm", "2026-01-01T00:00:00Z"))
    pipelines.run()
    assert pipelines.rows("shop.visits", "id", "city") == [(2, "Ulm")]


def test_a_sink_of_python_takes_the_same_partition_fields(spark: SparkSession, tmp_path: Path) -> None:
    lake = calve.connect(home=tmp_path)
    frame = spark.createDataFrame([(n, f"c{n % 3}") for n in range(9)], "id BIGINT, City STRING")
    sink = calve.sink(frame, name="s", into=lake.table("shop.cities"), key=["id"])
    query = sink.partition_by("bucket(4, id)", "city").start()
    query.await_caught_up()
    query.stop()
    table = lake.open().load_table(("shop", "cities"))
    assert [field.name for field in table.spec().fields] == ["id_bucket", "City"]
    assert len(duckdb_rows(table.metadata_location)) == 9
    other = calve.sink(frame, name="other", into=lake.table("shop.cities"), key=["id"])
    with pytest.raises(InvalidInput, match=r'table "shop.*" is partitioned differently'):
        other.partition_by("bucket(8, id)").start()
    with pytest.raises(InvalidInput, match="unknown transform"):
        sink.partition_by("buckets(4, id)")
