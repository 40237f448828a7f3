"""Files that are gone, damaged, or not to be read."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, TimestampNanoType, TimestamptzNanoType

from calve.errors import InvalidInput, TerminalError, TransientError
from calve.iceberg.schema.readable import ReadTarget, read_target, spark_schema
from calve.reader.local import read_here
from calve.reader.splits import whole
from calve.reader.worker import TaskList, rows_of_task
from tests.support.foreign import ForeignTable

SCHEMA = Schema(NestedField(1, "id", LongType(), required=False))


@pytest.fixture
def table(tmp_path: Path) -> Iterator[ForeignTable]:
    found = ForeignTable(tmp_path, SCHEMA)
    found.commit(found.data([{"id": 1}]))
    found.commit(found.equality(["id"], [{"id": 1}]))
    yield found
    found.close()


def test_a_data_file_that_is_gone_is_named(table: ForeignTable) -> None:
    file = read_here(table.ref).plan.files[0]
    Path(file.path.removeprefix("file://")).unlink()
    with pytest.raises(TransientError, match="could not be read") as failed:
        table.rows()
    assert file.path in failed.value.detail
    assert "expire" in failed.value.hint


def test_a_file_of_deletes_that_is_damaged_is_an_error_and_no_missing_delete(table: ForeignTable) -> None:
    (delete,) = read_here(table.ref).plan.files[0].deletes
    Path(delete.path.removeprefix("file://")).write_bytes(b"PAR1 no more")
    with pytest.raises(TerminalError, match="cannot be read"):
        table.rows()


def test_credentials_reach_tasks_and_show_in_no_text(table: ForeignTable) -> None:
    target = ReadTarget(read_target(table.table, SCHEMA, ()).schema, io_properties={"s3.secret-access-key": "hush"})
    tasks = TaskList.of(target, (whole(read_here(table.ref).plan.files[0]),), rows_of_task)
    assert pickle.loads(pickle.dumps(tasks)).target.io_properties == {"s3.secret-access-key": "hush"}
    assert "hush" not in repr(tasks)


@pytest.mark.parametrize("kind", [TimestamptzNanoType(), TimestampNanoType()])
def test_types_that_spark_does_not_have_are_refused(kind: TimestamptzNanoType | TimestampNanoType) -> None:
    with pytest.raises(InvalidInput, match='column "c" has a type that Spark does not support') as refused:
        spark_schema(Schema(NestedField(1, "c", kind, required=False)))
    assert refused.value.detail == f"It is {kind}."


@pytest.mark.parametrize("columns", [[], ["id", "id"]])
def test_columns_are_named_once(table: ForeignTable, columns: list[str]) -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        table.rows(columns=columns)
