"""Records of a source: Python code over them, and which columns describe where they came from.

`map_rows` runs Python code over records in tasks, Arrow batches in and out. JSON records are read this way and not by
Spark's functions: the same strict conversion as column expressions took 55 microseconds of CPU for a record of nine
columns, and made plans that a filter on top could multiply until memory ran out. This takes about 25, transfer
included, and its plans stay small however many columns there are. It works on streaming frames, too. Records that
Python code reads in the first place (`PythonRecords`) pass only one Python process.

Columns that start with `_calve_source_` are made by calve's own sources; they describe a record and are not part of it:

    _calve_source_file      STRING  the file a record came from
    _calve_source_text      STRING  the record as it was read
    _calve_source_problem   STRING  an encoded `BadRow` when it could not be read
    _calve_source_included  STRING  columns added to the record by INCLUDE, as a JSON object
    _calve_source_raw_key, _calve_source_raw_value          BINARY  what `key` and `value` were decoded from
    _calve_source_topic, ..._partition, ..._offset          the place in Kafka, beside columns of the record

A frame has the shape of Kafka when it has all relevant columns of Spark's Kafka source. Its arrival order is (offset,
partition). Any other static frame is ordered by `monotonically_increasing_id`: partition by partition as Spark reads
them, and the same again when the same files are read with the same settings. A streaming frame cannot have such ids
(Spark rejects them), so there a hash of the row decides; inside `foreachBatch` frames are static. Arrival only decides
between changes that are equal in the envelope's own order.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.types import StructType

from calve.errors import BadRow
from calve.model.change import Origin
from calve.model.spec import EXTENSION_METADATA, EXTENSION_NAME, ArrowExtension
from calve.records import notices
from calve.records.documents import Malformed, parsed, shortened
from calve.records.problem import SAMPLE_LENGTH
from calve.spark.sqltext import ident, literal
from calve.spark.version import arrow_schema_of

Columns = dict[str, list[Any]]
Rows = Callable[[Columns, int], Iterator[Sequence[Any]]]
"""Makes output rows from input columns and their length."""


@dataclass(frozen=True)
class PythonRecords:
    """Records that Python code reads in tasks, with the columns of `schema`; nothing runs yet.

    `map_rows` runs an envelope's code in the same tasks, so that records pass one Python process and not two.
    """

    tasks: DataFrame
    """Its rows say what each task reads."""
    read: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    """Goes to tasks: rows of `tasks` in, records out."""
    schema: T.StructType

    def frame(self) -> DataFrame:
        """The records as they are read."""
        return self.tasks.mapInArrow(self.read, self.schema)


Records = DataFrame | PythonRecords


def frame_of(records: Records) -> DataFrame:
    """Records as a frame."""
    return records if isinstance(records, DataFrame) else records.frame()


def time_zone_of(records: Records) -> str:
    """The time zone of the records' session."""
    return time_zone((records if isinstance(records, DataFrame) else records.tasks).sparkSession)


def time_zone(spark: SparkSession) -> str:
    """The time zone of a session."""
    return spark.conf.get("spark.sql.session.timeZone") or "UTC"


@dataclass(frozen=True)
class RowCode:
    """Python code over records."""

    inputs: tuple[str, ...]
    """The columns that it takes."""
    make_rows: Callable[[], Rows]
    """Prepares it, once for every task."""
    output: StructType

    def in_memory(self, records: pa.Table) -> pa.Table:
        """Run it over records in this process."""
        inputs = records.select(list(self.inputs))
        return pa.Table.from_batches([_mapped(self.make_rows(), inputs, arrow_schema_of(self.output))])


def map_rows(records: Records, code: RowCode) -> DataFrame:
    """Run Python code over records, in tasks."""
    source = records if isinstance(records, DataFrame) else records.tasks
    noticed = notices.accumulator_of(source.sparkSession.sparkContext)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        notices.use(noticed)
        rows, schema = code.make_rows(), arrow_schema_of(code.output)
        for batch in batches:
            yield _mapped(rows, batch, schema)

    inputs = list(code.inputs)
    if isinstance(records, DataFrame):
        return records.select(*map(ident, inputs)).mapInArrow(run, code.output)
    read = records.read

    def read_and_run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run(batch.select(inputs) for batch in read(batches))

    return records.tasks.mapInArrow(read_and_run, code.output)


def _mapped(rows: Rows, records: pa.RecordBatch | pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    columns = {name: records.column(i).to_pylist() for i, name in enumerate(records.schema.names)}
    return _batch(list(rows(columns, records.num_rows)), schema)


def _batch(rows: list[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def bad_row(problem: Malformed, origin: Origin) -> str:
    """The encoded error of a record, followed by the record."""
    text = (origin.value or b"").decode(errors="replace")
    detail = ": ".join(part for part in (str(origin), shortened(text, SAMPLE_LENGTH)) if part)
    return BadRow(problem.text, detail=detail, hint=problem.hint).encode() + origin.encode()


SOURCE_PREFIX = "_calve_source_"
SOURCE_FILE = "_calve_source_file"
SOURCE_TEXT = "_calve_source_text"
SOURCE_PROBLEM = "_calve_source_problem"
SOURCE_INCLUDED = "_calve_source_included"
SOURCE_TOPIC = "_calve_source_topic"
SOURCE_PARTITION = "_calve_source_partition"
SOURCE_OFFSET = "_calve_source_offset"
RAW_KEY = "_calve_source_raw_key"
RAW_VALUE = "_calve_source_raw_value"

_PLACE = ("topic", "partition", "offset")
_SOURCE_PLACE = (SOURCE_TOPIC, SOURCE_PARTITION, SOURCE_OFFSET)
KAFKA = ("key", "value", *_PLACE)

WHOLE_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Forms of times in JSON texts of rows: Spark's own lose microseconds. Of a bad record, a letter is all that is left;
rows that are compared as texts would be equal."""

STEP = "_calve__"
"""Prefix of intermediate columns of an envelope; none is left at the end."""


def is_text(data_type: T.DataType) -> bool:
    """Whether columns of this type may hold JSON."""
    return isinstance(data_type, T.StringType | T.BinaryType)


def is_kafka(schema: T.StructType) -> bool:
    """Whether records have the shape of Spark's Kafka source."""
    names = set(schema.names)
    return names.issuperset(KAFKA) and is_text(schema["value"].dataType)


def is_json(schema: T.StructType) -> bool:
    """Whether records are JSON in `value`: from Kafka, or lines of files from `source.files`."""
    if is_kafka(schema):
        return True
    return schema.names == ["value", SOURCE_FILE] and is_text(schema["value"].dataType)


def record_fields(schema: T.StructType) -> list[T.StructField]:
    """The columns of the record itself."""
    return [f for f in schema.fields if not f.name.startswith(SOURCE_PREFIX)]


def extensions_of(schema: T.StructType) -> tuple[ArrowExtension, ...]:
    """Arrow extension types from the metadata of columns, under the names that Arrow schemas use.

    Without the types that Arrow itself defines (`arrow.json`): its readers restore them, and pyiceberg then rejects the
    file.
    """
    named = [(f.name, f.metadata) for f in schema.fields if isinstance(f.metadata.get(EXTENSION_NAME), str)]
    return tuple(
        ArrowExtension(name, metadata[EXTENSION_NAME], str(metadata.get(EXTENSION_METADATA, "")))
        for name, metadata in named
        if not metadata[EXTENSION_NAME].startswith("arrow.")
    )


def where(schema: T.StructType) -> str:
    """SQL of the place that a record came from; null when it is unknown."""
    place = _place_of(schema)
    if place:
        topic, partition, offset = map(ident, place)
        return f"concat('topic ', {topic}, ' partition ', {partition}, ' offset ', {offset})"
    if SOURCE_FILE in schema.names:
        return f"concat('file ', {ident(SOURCE_FILE)})"
    return "cast(null as string)"


def origin_sql(schema: T.StructType) -> str:
    """SQL of a record and its place as the JSON of an `Origin`; the record is its text."""
    parts = dict(zip(_PLACE, map(ident, _place_of(schema)), strict=False))
    parts |= {"file": ident(SOURCE_FILE)} if SOURCE_FILE in schema.names else {}
    parts["value"] = f"base64(encode({sample(schema)}, 'UTF-8'))"
    named = ", ".join(f"'{name}', {sql}" for name, sql in parts.items())
    return f"to_json(named_struct({named}))"


def _place_of(schema: T.StructType) -> tuple[str, ...]:
    names = set(schema.names)
    return next((place for place in (_SOURCE_PLACE, _PLACE) if names.issuperset(place)), ())


def sample(schema: T.StructType) -> str:
    """SQL of the record as text."""
    if SOURCE_TEXT in schema.names:
        return ident(SOURCE_TEXT)
    options = ", ".join(f"'{name}', {literal(form)}" for name, form in WHOLE_TIMES.items())
    return f"to_json(struct({', '.join(ident(f.name) for f in record_fields(schema))}), map({options}))"


def arrival(schema: T.StructType, *, streaming: bool) -> list[str]:
    """SQL of the order in which records arrived, most significant first."""
    if is_kafka(schema):
        return ["`offset`", "`partition`"]
    if streaming:
        return [f"xxhash64(to_json(struct({', '.join(ident(f.name) for f in record_fields(schema))})))"]
    return ["monotonically_increasing_id()"]


def arrival_columns(schema: T.StructType, *, streaming: bool = False) -> dict[str, str]:
    """SQL of the order of arrival by name of the column; where it is columns of the records already, by theirs."""
    if is_kafka(schema):
        return {name: ident(name) for name in ("offset", "partition")}
    return {f"{STEP}arrival_{i}": sql for i, sql in enumerate(arrival(schema, streaming=streaming))}


def is_streaming(records: Records) -> bool:
    """Whether records are a streaming frame."""
    return isinstance(records, DataFrame) and records.isStreaming


def with_columns(records: Records, schema: T.StructType, added: Mapping[str, str]) -> Records:
    """Records with columns, SQL by name, that they do not have yet."""
    new = [f"{sql} as {name}" for name, sql in added.items() if name not in schema.names]
    return frame_of(records).selectExpr("*", *new) if new else records


def arrival_types(schema: T.StructType) -> list[T.DataType]:
    """The types of the columns of `arrival`."""
    return [schema["offset"].dataType, schema["partition"].dataType] if is_kafka(schema) else [T.LongType()]


def origin_columns(schema: T.StructType) -> list[str]:
    """The columns with the place of a JSON record, what INCLUDE added, and what it was decoded from."""
    names = set(schema.names)
    place = list(_PLACE) if names.issuperset(_PLACE) else []
    beside = (SOURCE_FILE, SOURCE_INCLUDED, SOURCE_PROBLEM, RAW_KEY, RAW_VALUE)
    return [*place, *(name for name in beside if name in names)]


def origin(columns: dict[str, list[Any]], row: int, record: Any = None) -> Origin:
    """The place of a record, from its `origin_columns`, and its bytes: those of `value`, or of `record`."""

    def found(name: str) -> Any:
        return columns[name][row] if name in columns else None

    place = {name: found(name) for name in _PLACE} if "topic" in columns else {}
    key, value = found(RAW_KEY) or found("key"), found(RAW_VALUE) if RAW_VALUE in columns else found("value")
    return Origin(**place, file=found(SOURCE_FILE), key=_bytes(key), value=_bytes(record or value))


def _bytes(data: Any) -> bytes | None:
    return data.encode() if isinstance(data, str) else data if isinstance(data, bytes) else None


def with_included(record: dict[str, Any], columns: dict[str, list[Any]], row: int) -> dict[str, Any]:
    """A record with the columns of INCLUDE."""
    if SOURCE_INCLUDED not in columns:
        return record
    return {**record, **parsed(columns[SOURCE_INCLUDED][row])}
