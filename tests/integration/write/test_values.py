"""Values that are made to fit the columns of a table: uuids of texts, bytes of a length, texts of intervals."""

from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import FixedType, LongType, NestedField, TimeType, UUIDType
from pyspark.sql import SparkSession

from calve.clock import RandomIds
from calve.errors import BadRow
from calve.model.checkpoint import SizeHint
from calve.model.files import WriteResult
from calve.write.batch import write_batch, writers_for
from calve.write.job import layout_of
from calve.write.task_writer import TaskWriter
from tests.integration.write.frames import RESERVED, frame_of
from tests.integration.write.test_writers import FAST, write
from tests.unit.write.sample import local, target_in

COLUMNS = "id BIGINT, u STRING, f BINARY, t TIME(6)"
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "u", UUIDType(), required=False),
    NestedField(3, "f", FixedType(3), required=False),
    NestedField(4, "t", TimeType(), required=False),
    identifier_field_ids=[1],
)
SOME = UUID("3f2504e0-4f89-11d3-9a0c-0305e82c3301")


def rows(*values: tuple[str | None, bytes | None]) -> list[tuple[object, ...]]:
    return [(n, *value, None, 1, n, None) for n, value in enumerate(values)]


def written(spark: SparkSession, folder: Path, *values: tuple[str | None, bytes | None]) -> WriteResult:
    frame = frame_of(spark, COLUMNS, rows(*values))
    return write_batch(frame, target_in(folder, SCHEMA), deletes=True, size=SizeHint(rows=3), ids=RandomIds())


@pytest.mark.parametrize("writer", ["driver", "tasks"])
def test_texts_become_uuids_and_bytes_fixed_ones(spark: SparkSession, tmp_path: Path, writer: str) -> None:
    frame = frame_of(spark, COLUMNS, rows((str(SOME), b"abc"), (str(SOME).upper(), None), (None, b"\0\0\0")))
    result = write(FAST[writer], frame, target_in(tmp_path, SCHEMA), deletes=True)
    table = pa.concat_tables(pq.read_table(local(file)) for file in result.data_files).sort_by("id")
    assert [str(field.type) for field in table.schema][2:] == ["fixed_size_binary[3]", "time64[us]"]
    stored = [
        value if value is None or isinstance(value, UUID) else UUID(bytes=value) for value in table["u"].to_pylist()
    ]
    assert stored == [SOME, SOME, None]
    assert table["f"].to_pylist() == [b"abc", None, b"\0\0\0"]


@pytest.mark.parametrize("text", ["", "3f2504e0", f"{SOME}0", f"{{{SOME}}}", str(SOME).replace("-", "")])
def test_an_invalid_uuid_is_a_bad_row(spark: SparkSession, tmp_path: Path, text: str) -> None:
    with pytest.raises(BadRow, match='column "u" contains an invalid UUID'):
        written(spark, tmp_path, (text, None))


def test_bytes_of_the_wrong_length_are_a_bad_row(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadRow, match='column "f" contains a value of the wrong length') as raised:
        written(spark, tmp_path, (None, b"ab"))
    assert raised.value.detail == "The table declares it with 3 bytes."


def test_types_that_sparks_own_writer_does_not_know_are_written_by_tasks() -> None:
    target = target_in(Path("/somewhere"), SCHEMA)
    names = [part.split(" ")[0] for part in f"{COLUMNS}, {RESERVED}".split(", ")]
    (writer,) = writers_for(layout_of(names, target), target, SizeHint(rows=10**7), 2)
    assert isinstance(writer, TaskWriter)
