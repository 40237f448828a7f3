"""What a caller of `write_batch` sees: results, and errors in calve's terms."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from calve.clock import RandomIds
from calve.errors import BadRow, CalveError, InvalidInput, TransientError
from calve.iceberg.schema.creation import iceberg_schema
from calve.model.change import DELETE, UPSERT, Origin, table_columns
from calve.model.checkpoint import UNKNOWN, SizeHint
from calve.model.files import WriteResult, WriteTarget
from calve.write import batch
from calve.write.batch import DRIVER_ROWS, write_batch
from calve.write.data_files import FileNames
from tests.integration.write.frames import Row, changes_of_orders, expected, found, frame_of
from tests.integration.write.test_writers import ORDERS, target_for
from tests.support.combinations import diagonal
from tests.unit.write.sample import FLAT, rows_of, target_in

GOOD: Row = (1, "NEW", 1.0, 2, UPSERT, 0, None)
SMALL, LARGE = SizeHint(rows=1), SizeHint(rows=DRIVER_ROWS + 1)
WAYS = {  # of being written: a size and the options that lead there
    "driver": (SMALL, {}),
    "native": (LARGE, {}),
    "tasks": (LARGE, {"compression": "lz4"}),  # one that Spark's writer is not asked for
}


class OneId(RandomIds):
    """The id of the batch is known beforehand."""

    def new_id(self) -> str:
        return "the batch"


def written(frame: DataFrame, folder: Path, way: str = "driver", *, deletes: bool = True) -> WriteResult:
    size, options = WAYS[way]
    return write_batch(frame, target_for(frame, ["id"], folder, **options), deletes=deletes, size=size, ids=RandomIds())


def failure(frame: DataFrame, folder: Path, way: str) -> CalveError:
    with pytest.raises(CalveError) as caught:
        written(frame, folder, way)
    assert not list(folder.rglob("calve-*unfinished-*"))
    return caught.value


@pytest.mark.parametrize("way", WAYS)
def test_a_bad_record_is_raised_as_it_was_encoded(spark: SparkSession, tmp_path: Path, way: str) -> None:
    bad = BadRow('record 7 is "no" change', detail="Got {$1} \\ <x>\n⟦.", hint="Look.")
    frame = frame_of(spark, ORDERS, [GOOD, (None, None, None, None, UPSERT, 1, bad.encode())])
    error = failure(frame, tmp_path, way)
    assert (type(error), error.primary, error.detail, error.hint) == (BadRow, bad.primary, bad.detail, bad.hint)


@pytest.mark.parametrize("way", WAYS)
def test_a_bad_record_that_could_be_a_dead_letter_says_how(spark: SparkSession, tmp_path: Path, way: str) -> None:
    bad = BadRow("it is not JSON", hint="Look.").encode() + Origin(file="/in/1.json", value=b"secret record").encode()
    error = failure(frame_of(spark, ORDERS, [(None, None, None, None, UPSERT, 1, bad)]), tmp_path, way)
    assert error.hint.startswith("Look. With ON BAD ROW = 'dead letter' ")
    assert "⟦" not in str(error)


@diagonal(way=WAYS, op=[UPSERT, DELETE])
def test_a_null_in_the_key_names_the_column(spark: SparkSession, tmp_path: Path, way: str, op: int) -> None:
    error = failure(frame_of(spark, ORDERS, [GOOD, (None, "x", None, None, op, 1, None)]), tmp_path, way)
    assert isinstance(error, BadRow)
    assert error.primary == 'key column "id" is null'


@pytest.mark.parametrize("way", WAYS)
def test_a_value_that_spark_cannot_compute_is_a_bad_row(spark: SparkSession, tmp_path: Path, way: str) -> None:
    frame = frame_of(spark, ORDERS, [(1, "no number", 1.0, 2, UPSERT, 0, None)])
    error = failure(frame.withColumn("customer", F.col("status").cast("int")), tmp_path, way)
    assert isinstance(error, BadRow)
    assert "CAST_INVALID_INPUT" in error.detail


def test_a_null_in_a_required_column_names_the_column(spark: SparkSession, tmp_path: Path) -> None:
    frame = frame_of(spark, ORDERS, [GOOD, (2, None, None, None, DELETE, 1, None)])
    schema = iceberg_schema(frame.select(*table_columns(frame.columns)).schema, ["id"])
    fields = [field.model_copy(update={"required": True}) for field in schema.fields]
    required = type(schema)(*fields, identifier_field_ids=[1])
    values = vars(target_in(tmp_path)) | {"schema_json": required.model_dump_json()}
    result = write_batch(frame, WriteTarget(**values), deletes=True, size=SMALL, ids=RandomIds())
    assert [row["id"] for row in rows_of(result.data_files)] == [1], "a delete has no values"
    bad = frame.withColumn("status", F.lit(None).cast("string"))
    with pytest.raises(BadRow, match='column "status" is null'):
        write_batch(bad, WriteTarget(**values), deletes=True, size=SMALL, ids=RandomIds())


def test_columns_that_are_not_the_tables_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    frame = frame_of(spark, ORDERS, [GOOD])
    with pytest.raises(InvalidInput, match="the changes do not have the table's columns"):
        write_batch(frame, target_in(tmp_path, FLAT), deletes=True, size=SMALL, ids=RandomIds())
    odd = frame.withColumn("customer", F.array("customer"))
    with pytest.raises(InvalidInput, match="the changes do not have the table's types"):
        write_batch(odd, target_for(frame, ["id"], tmp_path), deletes=True, size=SMALL, ids=RandomIds())


@pytest.mark.parametrize("way", WAYS)
def test_a_location_that_cannot_be_written_is_retried(spark: SparkSession, tmp_path: Path, way: str) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    error = failure(frame_of(spark, ORDERS, [GOOD]), tmp_path, way)
    assert isinstance(error, TransientError)
    assert error.primary.startswith("the batch could not be written")
    (tmp_path / "data").unlink()
    assert written(frame_of(spark, ORDERS, [GOOD]), tmp_path, way).data_files


@pytest.mark.parametrize("way", WAYS)
def test_a_store_that_denies_access_is_retried(spark: SparkSession, way: str) -> None:
    error = failure(frame_of(spark, ORDERS, [GOOD]), Path("/sys/calve"), way)  # where not even root may write
    assert isinstance(error, TransientError)
    assert error.primary == "the batch could not be written: the store denied access"
    assert "/sys/calve" in error.detail


def test_a_full_disk_is_retried(spark: SparkSession, tmp_path: Path) -> None:
    frame = frame_of(spark, ORDERS, [GOOD])
    target = target_for(frame, ["id"], tmp_path)
    (tmp_path / "data").mkdir()
    names = FileNames(target, "the batch", "driver")
    for _ in range(2):
        Path(names.fresh().removeprefix("file://")).symlink_to("/dev/full")
    with pytest.raises(TransientError, match="the batch could not be written: no space is left"):
        write_batch(frame, target, deletes=True, size=SMALL, ids=OneId())


def test_a_batch_of_unknown_size_that_is_large_is_written_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "PROBE_ROWS", 100)
    frame = frame_of(spark, ORDERS, changes_of_orders(seed=1, count=500, keys=90))
    target = target_for(frame, ["id"], tmp_path)
    result = write_batch(frame, target, deletes=True, size=UNKNOWN, ids=RandomIds())
    assert found(result, ["id"], table_columns(frame.columns)) == expected(frame, ["id"], deletes=True)
    assert result.changes == 500
    assert len(list(tmp_path.rglob("*.parquet"))) == len(result.files)


def test_a_batch_of_unknown_size_that_is_small_is_written_by_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    frame = frame_of(spark, ORDERS, changes_of_orders(seed=2, count=500, keys=90))
    result = write_batch(frame, target_for(frame, ["id"], tmp_path), deletes=False, size=UNKNOWN, ids=RandomIds())
    assert found(result, ["id"], table_columns(frame.columns)) == expected(frame, ["id"], deletes=False)
    assert len(result.files) == 1


def test_a_hint_that_is_wrong_costs_time_only(spark: SparkSession, tmp_path: Path) -> None:
    frame = frame_of(spark, ORDERS, changes_of_orders(seed=3, count=500, keys=90))
    target: Any = target_for(frame, ["id"], tmp_path)
    want = expected(frame, ["id"], deletes=True)
    for size in (SizeHint(rows=1), SizeHint(rows=10**6), SizeHint(bytes=1), SizeHint(rows=10**6, bytes=10)):
        result = write_batch(frame, target, deletes=True, size=size, ids=RandomIds())
        assert found(result, ["id"], table_columns(frame.columns)) == want
        assert result.changes == 500
