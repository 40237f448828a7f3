"""Records that Python code reads become changes in the same task: one Python pass, and the changes of two."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from calve.envelope.envelopes import changes_of, key_violations
from calve.model.change import BAD
from calve.model.spec import Debezium, Envelope, Upsert
from calve.records.frames import PythonRecords, frame_of
from calve.source.kafka.reader import read_schema, typed_records
from calve.spark.version import arrow_schema_of, schema_of_ddl

COLUMNS = "id BIGINT NOT NULL, name STRING"
SCHEMA = read_schema(included=True, decoded=False)
VALUES: Sequence[Any] = [
    {"op": "c", "after": {"id": 1, "name": "a"}},
    {"op": "u", "before": {"id": 1}, "after": {"id": 2, "name": "b"}},
    {"op": "x"},
    {"op": "d", "before": {"id": 2}},
    {"id": 3, "name": "c"},
    {"id": "no number"},
    None,
]


def records_of(spark: SparkSession) -> PythonRecords:
    """Two tasks with the same records of two partitions, the last of which could not be decoded."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                for offset, value in enumerate(VALUES):
                    data = None if value is None else json.dumps(value).encode()
                    row = [b'{"id": 9}', data, "shop", partition, offset, json.dumps({"name": "of the topic"}), None]
                    yield _batch(row)
                yield _batch([None, None, "shop", partition, len(VALUES), None, "an encoded problem"])

    return PythonRecords(spark.range(0, 2, 1, 2), read, SCHEMA)


def _batch(row: Sequence[Any]) -> pa.RecordBatch:
    schema = arrow_schema_of(SCHEMA)
    arrays = [pa.array([value], field.type) for value, field in zip(row, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def passes_of(frame: DataFrame) -> int:
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return int(plan.count("MapInArrow"))


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(str(row.asDict()) for row in frame.collect())


@pytest.mark.parametrize("envelope", [Debezium(columns=COLUMNS), Upsert(columns=COLUMNS)])
def test_changes_are_those_of_a_frame_after_one_python_pass(spark: SparkSession, envelope: Envelope) -> None:
    records = records_of(spark)
    one, two = (changes_of(given, envelope, ["id"]) for given in (records, frame_of(records)))
    assert (passes_of(one), passes_of(two)) == (1, 2)
    assert one.schema == two.schema
    assert rows_of(one) == rows_of(two)
    problems = [row[BAD] for row in one.collect() if row[BAD]]
    assert problems.count("an encoded problem") == 2, "what could not be read stays a bad row"
    assert len(problems) > 2, "and so does what could not become a change"
    assert key_violations(records, envelope, ["id"]) is None, "offsets order all changes"


def test_values_are_typed_in_the_same_pass(spark: SparkSession) -> None:
    records, fields = records_of(spark), schema_of_ddl(COLUMNS).fields
    one, two = (typed_records(given, fields, None) for given in (records, frame_of(records)))
    assert (passes_of(one), passes_of(two)) == (1, 2)
    assert rows_of(one) == rows_of(two)
