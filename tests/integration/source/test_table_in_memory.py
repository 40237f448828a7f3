"""Small steps of a table's changes are read and converted without a Spark job: to the changes that Spark makes."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import calve
import calve.changelog.frame
from calve.clock import SystemClock
from calve.envelope.envelopes import arrow_conversion, changes_of
from calve.envelope.order import with_order
from calve.model.change import BAD
from calve.model.checkpoint import Offsets, SizeLimit
from calve.model.files import ColumnNeeds
from calve.model.spec import ChangeRows
from calve.source.table import TableSource
from calve.storage.state import LocalState
from tests.integration.envelope.test_arrow_changes import rows_of
from tests.support.combinations import seeds
from tests.support.jobs import jobs_counted
from tests.support.readers import duckdb_rows
from tests.unit.changelog.test_random_changes import EvolvingTable

LIMIT = SizeLimit(10_000, 1 << 24)
NOTHING = SizeLimit(0, 0)


def in_memory(
    source: TableSource, spark: SparkSession, bounds: tuple[Offsets, Offsets], limit: SizeLimit = LIMIT, **how: Any
) -> tuple[pa.Table | None, StructType] | None:
    """The changes, and the kind of their other columns; None if they always need Spark."""
    key = how.pop("key")
    conversion = arrow_conversion(source.schema(spark), ChangeRows(), key, spark, **how)
    if conversion is None:
        return None
    records = source.arrow_records(spark, *bounds, conversion.records, limit)
    return None if records is None else conversion.changes(records), conversion.beside


@seeds(6)
def test_changes_in_memory_are_those_of_spark_unless_one_row_is_bad(
    seed: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calve.changelog.frame, "ONE_TASK_ROWS", -1)  # so that tasks exchange the rows
    rng = random.Random(seed)
    made = EvolvingTable(tmp_path / "lake", rng)
    for _ in range(6):
        made.batch()
        made.rewrite()
        if rng.random() < 0.5:
            made.evolve()
    definition = calve.table_changes(made.table.ref, start=rng.choice(["snapshot", "earliest"]))
    source = definition.open(LocalState(tmp_path / "source"), SystemClock())
    first = source.next_end(None)
    for _ in range(3):
        made.batch()
    bad = good = 0
    for bounds in ((None, first), (first, source.next_end(first))):
        for key, required, ordered in (
            (["id"], [], False),
            (["region", "id"], ["n"], True),
            (["n", "id"], ["x"], False),
        ):
            needs = ColumnNeeds(required=frozenset(required))
            frame = source.frame(spark, *bounds)
            changes = changes_of(frame, ChangeRows(), key, needs=needs)
            expected = (with_order(changes, frame.schema) if ordered else changes).toArrow()
            answer = in_memory(source, spark, bounds, key=key, needs=needs, stores_order=ordered)
            assert answer is not None
            found, beside = answer
            if any(expected[BAD].is_valid().to_pylist()):
                assert found is None
                bad += 1
                continue
            assert found is not None
            good += 1
            assert beside == StructType([changes.schema[field.name] for field in beside.fields])
            expected = expected.drop_columns([BAD]).select(found.column_names)
            assert found.schema.types == expected.schema.types
            assert sorted(rows_of(found)) == sorted(rows_of(expected))
    assert good
    assert in_memory(source, spark, (None, first), NOTHING, key=["id"])[0] is None  # type: ignore[index]
    made.table.close()
    assert bad or seed, "the first seed has rows without a region"


def test_a_missing_file_is_left_to_spark_which_names_it(spark: SparkSession, tmp_path: Path) -> None:
    made = EvolvingTable(tmp_path / "lake", random.Random(1))
    made.batch()
    source = calve.table_changes(made.table.ref).open(LocalState(tmp_path / "source"), SystemClock())
    end = source.next_end(None)
    for path in made.files:
        Path(path.removeprefix("file://")).unlink()
    assert source.arrow_records(spark, None, end, source.schema(spark), LIMIT) is None
    with pytest.raises(Exception, match="could not be read"):
        source.frame(spark, None, end).collect()
    made.table.close()


def test_a_chain_of_copies_follows_a_table_without_a_spark_job(spark: SparkSession, tmp_path: Path) -> None:
    lake = calve.connect(home=tmp_path)
    made = EvolvingTable(tmp_path, random.Random(4))
    made.batch()
    names, refs = ("one", "two", "three"), [made.table.ref, *(lake.table(f"x.{n}") for n in ("one", "two", "three"))]
    queries = []
    try:
        for name, before, after in zip(names, refs, refs[1:], strict=False):
            queries.append(calve.sink(calve.table_changes(before), name=name, into=after, key=["id"]).start())
            queries[-1].await_caught_up(60)
        with jobs_counted(spark) as jobs:
            for _ in range(3):
                made.batch()
                for query in queries:
                    query.await_caught_up(60)
        assert jobs == [0]
    finally:
        for query in queries:
            query.stop()
    expected = sorted(repr(sorted(row.items())) for row in made.table.rows())
    for ref in refs[1:]:
        rows = duckdb_rows(ref.lake.open().load_table(str(ref)).metadata_location)
        assert sorted(repr(sorted(row.items())) for row in rows) == expected
    made.table.close()
