"""ORDER BY ... GLOBAL: a change that is older than the row in the table is dropped, whenever it arrives."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import calve
from calve.api.verify import verify
from calve.errors import CalveError, InvalidInput
from calve.write import batch as write_batch
from tests.support.changes import Batches
from tests.support.pipelines import Pipelines
from tests.support.readers import duckdb_rows, spark_iceberg_rows

Change = tuple[int, str | None, int, int]
"""Key, value (none deletes), and two numbers that order."""

BY_TWO = calve.Upsert(order_by=("a", "b"), delete_when="v is null", columns="id, v", across_checkpoints=True)


def expected(batches: Sequence[Sequence[Change]]) -> dict[int, str]:
    """Change by change. A deleted key is forgotten."""
    rows: dict[int, tuple[tuple[int, int], str]] = {}
    for batch in batches:
        last = {key: ((a, b), v) for key, v, a, b in sorted(batch, key=lambda change: change[2:])}
        for key, (order, v) in last.items():
            if key not in rows or order >= rows[key][0]:
                rows.pop(key, None)
                if v is not None:
                    rows[key] = (order, v)
    return {key: v for key, (_, v) in rows.items()}


def found(home: Path) -> dict[int, str]:
    location = calve.connect(home=home).open().load_table("x.t").metadata_location
    by_reader = [[(row["id"], row["v"]) for row in read(location)] for read in (duckdb_rows, spark_iceberg_rows)]
    assert sorted(by_reader[0]) == sorted(by_reader[1])
    assert len(dict(by_reader[0])) == len(by_reader[0]), "a key has two rows"
    return dict(by_reader[0])


def run(
    home: Path, batches: Sequence[Sequence[Change]], *partitions: str, version: int | None = None, **commits: Any
) -> None:
    changes = Batches(batches, "id BIGINT, v STRING, a BIGINT, b INT", BY_TWO)
    sink = calve.sink(changes, name="s", into=calve.connect(home=home).table("x.t"), key=["id"])
    query = sink.partition_by(*partitions).options(format_version=version).start(**commits)
    query.await_caught_up(120)
    query.stop()


@pytest.mark.parametrize("way", ["driver", "native", "tasks"])
def test_random_changes_out_of_order_leave_the_newest_of_each_key(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    del spark
    monkeypatch.setattr(write_batch, "DRIVER_ROWS", 1000 if way == "driver" else 0)
    rng = random.Random(f"order-{way}")

    def change(key: int) -> Change:
        """Within a batch no two of a key are equal in order, or arrival would decide."""
        value = None if rng.random() < 0.2 else f"v{rng.random()}"
        return key, value, rng.randrange(6), rng.randrange(4)

    batches = []
    for _ in range(4):
        made = [change(rng.randrange(12)) for _ in range(30)]
        batches.append(list({(key, a, b): (key, v, a, b) for key, v, a, b in made}.values()))
    partitions = ["truncate(2, v)"] if way == "tasks" else []
    run(tmp_path, batches, *partitions, version=3 if way == "native" else None)
    assert found(tmp_path) == expected(batches)


SOURCE = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE s (id BIGINT NOT NULL, v STRING, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '{folder}', FORMAT = 'json', MAX FILES PER CHECKPOINT = 1) ENVELOPE {envelope};
CREATE SINK t FROM s TO ICEBERG CATALOG lake NAMESPACE x TABLE t {options};
"""


UPSERT = ("UPSERT (ORDER BY lsn GLOBAL, DELETE WHEN op = 'd')", '{{"id": {0}, "v": "{1}", "lsn": "{2}", "op": "{3}"}}')
DEBEZIUM = (
    "DEBEZIUM (ORDER BY source.lsn GLOBAL)",
    '{{"op": "{3}", "before": {{"id": {0}}}, "after": {{"id": {0}, "v": "{1}"}}, "source": {{"lsn": {2}}}}}',
)
VECTORS = "WITH (FORMAT VERSION = 3, DELETES = 'vector')"
WINDOWS = "WITH (COMMIT INTERVAL = '1h', CHECKPOINT INTERVAL = '1s')"


@pytest.mark.parametrize(
    ("envelope", "record", "options"),
    [(*UPSERT, VECTORS), (*DEBEZIUM, WINDOWS)],
    ids=["upserts with vectors", "change records in windows"],
)
def test_records_of_files_are_ordered_across_checkpoints(
    spark: SparkSession, tmp_path: Path, envelope: str, record: str, options: str
) -> None:
    def put(*changes: tuple[int, str, int, str]) -> None:
        for change in changes:
            (folder / f"{len(list(folder.iterdir()))}.json").write_text(record.format(*change))

    folder = tmp_path / "in"
    folder.mkdir()
    pipelines = Pipelines(tmp_path / "home", spark)
    put((1, "first", 9, "u"), (2, "old", 1, "u"), (3, "kept", 5, "u"), (4, "gone", 5, "u"))
    pipelines.run(SOURCE.format(folder=folder, envelope=envelope, options=options))
    put(
        (1, "older", 8, "u"),
        (2, "newer", 10, "u"),
        (3, "", 4, "d"),
        (4, "", 6, "d"),
        (1, "equal", 9, "u"),
        (2, "stale", 9, "u"),
    )
    pipelines.run()
    assert found(pipelines.home) == {1: "equal", 2: "newer", 3: "kept"}


def test_another_field_of_the_same_type_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    del spark
    folder, home = tmp_path / "in", tmp_path / "home"
    folder.mkdir()

    def catch_up(field: str) -> None:
        envelope = calve.Upsert(order_by=(field,), columns="id, v", across_checkpoints=True)
        schema = "id BIGINT, v STRING, a BIGINT, b BIGINT"
        changes = calve.files(folder, format="json", schema=schema, envelope=envelope)
        query = calve.sink(changes, name="s", into=calve.connect(home=home).table("x.t"), key=["id"]).start()
        try:
            query.await_caught_up(120)
        finally:
            query.stop()

    (folder / "1.json").write_text('{"id": 1, "v": "new", "a": 5, "b": 1}')
    catch_up("a")
    (folder / "2.json").write_text('{"id": 1, "v": "old", "a": 4, "b": 9}')
    with pytest.raises(InvalidInput, match="the rows of the table are ordered by a"):
        catch_up("b")
    assert found(home) == {1: "new"}
    catch_up("a")
    assert found(home) == {1: "new"}, "an older change is dropped"


def test_verify_agrees_with_an_order_across_checkpoints(spark: SparkSession, tmp_path: Path) -> None:
    envelope, record = UPSERT
    for number, change in enumerate([(1, "first", 9, "u"), (1, "older", 8, "u"), (2, "other", 1, "u")]):
        (tmp_path / f"{number}.json").write_text(record.format(*change))
    pipelines = Pipelines(tmp_path / "home", spark)
    pipelines.run(SOURCE.format(folder=tmp_path, envelope=envelope, options=""))
    assert verify(pipelines.place, "t").none


@pytest.mark.parametrize("options", ["WITH (DELETES = 'equality')", "MODE APPEND"])
def test_an_order_across_checkpoints_is_refused_where_nothing_is_compared(
    spark: SparkSession, tmp_path: Path, options: str
) -> None:
    pipelines = Pipelines(tmp_path / "home", spark)
    statements = SOURCE.format(folder=tmp_path, envelope="UPSERT (ORDER BY lsn GLOBAL)", options=options)
    with pytest.raises(InvalidInput, match="an order across checkpoints is not supported for this sink"):
        pipelines.apply(statements)


def test_an_order_across_checkpoints_is_refused_under_a_view(spark: SparkSession, tmp_path: Path) -> None:
    pipelines = Pipelines(tmp_path / "home", spark)
    pipelines.apply(SOURCE.format(folder=tmp_path, envelope="UPSERT (ORDER BY lsn GLOBAL)", options=""))
    with pytest.raises(CalveError, match=r"ORDER BY \.\.\. GLOBAL is not supported for views"):
        pipelines.apply(
            "CREATE VIEW v AS SELECT id, v FROM s; CREATE SINK u FROM v TO ICEBERG CATALOG lake NAMESPACE x TABLE u"
        )
