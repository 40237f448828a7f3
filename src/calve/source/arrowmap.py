"""Python code over the rows of a frame, in tasks: batches of Arrow in, batches of Arrow out.

Records of JSON are read this way and not by Spark's functions: the same strict conversion as column expressions took 55
microseconds of CPU a record of nine columns, and made plans that a filter on top could multiply beyond any memory. This
takes about 25, hand-over included, and its plans stay small however many columns there are. It works on streaming
frames, too.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from calve.errors import BadRow
from calve.model.letter import Origin
from calve.source.documents import Malformed, shortened
from calve.source.problem import SAMPLE_LENGTH
from calve.sparkversion import arrow_schema_of

Columns = dict[str, list[Any]]
Rows = Callable[[Columns, int], Iterator[Sequence[Any]]]
"""Input columns and their length to output rows."""


def mapped(frame: DataFrame, inputs: Sequence[str], make_rows: Callable[[], Rows], output: StructType) -> DataFrame:
    """The rows that Python code makes of the `inputs`. `make_rows` prepares that code, once for every task."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema_of(output)
        rows = make_rows()
        for batch in batches:
            columns = {name: batch.column(i).to_pylist() for i, name in enumerate(batch.schema.names)}
            yield _batch(list(rows(columns, batch.num_rows)), schema)

    return frame.select(*inputs).mapInArrow(run, output)


def _batch(rows: list[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def bad_row(problem: Malformed, origin: Origin) -> str:
    """The error of a record, and the record behind it, encoded."""
    text = (origin.value or b"").decode(errors="replace")
    detail = ": ".join(part for part in (str(origin), shortened(text, SAMPLE_LENGTH)) if part)
    return BadRow(problem.text, detail=detail, hint=problem.hint).encode() + origin.encode()
