"""What a frame looks like: where its rows come from, how they are ordered by arrival, which columns belong to the record.

Columns that start with `_calve_source_` are made by calve's own sources; they describe a record and are no part of it:

    _calve_source_file      STRING  the file a record came from
    _calve_source_text      STRING  the record as it was read
    _calve_source_problem   STRUCT  what kept it from being read, see `problem`

A frame has the shape of Kafka when it has all the columns of Spark's Kafka source that matter here. Its arrival order is
(offset, partition). Any other static frame is ordered by `monotonically_increasing_id`: partition by partition as Spark reads
them, the same again when the same files are read with the same settings. A streaming frame cannot have such ids (Spark
refuses them), so there a hash of the row decides; inside `foreachBatch` frames are static. Arrival only decides between
changes that the envelope's own order leaves equal.
"""

from pyspark.sql import types as T  # noqa: N812

from calve.source.sqltext import ident

SOURCE_PREFIX = "_calve_source_"
SOURCE_FILE = "_calve_source_file"
SOURCE_TEXT = "_calve_source_text"
SOURCE_PROBLEM = "_calve_source_problem"

KAFKA = ("key", "value", "topic", "partition", "offset")

STEP = "_calve__"
"""Columns between the steps of an envelope start with this; none is left at the end."""


def is_text(data_type: T.DataType) -> bool:
    """True for columns that may hold JSON."""
    return isinstance(data_type, T.StringType | T.BinaryType)


def is_kafka(schema: T.StructType) -> bool:
    """True for a frame of Spark's Kafka source."""
    names = set(schema.names)
    return names.issuperset(KAFKA) and is_text(schema["value"].dataType)


def record_fields(schema: T.StructType) -> list[T.StructField]:
    """The columns of the record itself."""
    return [f for f in schema.fields if not f.name.startswith(SOURCE_PREFIX)]


def where(schema: T.StructType, prefix: str = "") -> str:
    """SQL of the place a record came from; null when nothing is known. `prefix` is how columns were renamed meanwhile."""
    names = set(schema.names)
    if names.issuperset({"topic", "partition", "offset"}):
        topic, partition, offset = (ident(prefix + n) for n in ("topic", "partition", "offset"))
        return f"concat('topic ', {topic}, ' partition ', {partition}, ' offset ', {offset})"
    if SOURCE_FILE in names:
        return f"concat('file ', {ident(prefix + SOURCE_FILE)})"
    return "cast(null as string)"


def sample(schema: T.StructType, prefix: str = "") -> str:
    """SQL of the record as text."""
    if SOURCE_TEXT in schema.names:
        return ident(prefix + SOURCE_TEXT)
    if "value" in schema.names and is_text(schema["value"].dataType):
        return f"cast({ident(prefix + 'value')} as string)"
    return f"to_json(struct({', '.join(ident(prefix + f.name) for f in record_fields(schema))}))"


def arrival(schema: T.StructType, *, streaming: bool) -> list[str]:
    """SQL of the order in which records arrived, most significant first."""
    if is_kafka(schema):
        return ["`offset`", "`partition`"]
    if streaming:
        return [f"xxhash64(to_json(struct({', '.join(ident(f.name) for f in record_fields(schema))})))"]
    return ["monotonically_increasing_id()"]
