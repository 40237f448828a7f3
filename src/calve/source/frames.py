"""What a frame looks like: where its rows come from, how they are ordered by arrival, what belongs to the record.

Columns that start with `_calve_source_` are made by calve's own sources; they describe a record and are no part of it:

    _calve_source_file      STRING  the file a record came from
    _calve_source_text      STRING  the record as it was read
    _calve_source_problem   STRING  an encoded `BadRow` when it could not be read

A frame has the shape of Kafka when it has all the columns of Spark's Kafka source that matter here. Its arrival order
is (offset, partition). Any other static frame is ordered by `monotonically_increasing_id`: partition by partition as
Spark reads them, the same again when the same files are read with the same settings. A streaming frame cannot have
such ids (Spark refuses them), so there a hash of the row decides; inside `foreachBatch` frames are static. Arrival
only decides between changes that the envelope's own order leaves equal.
"""

from typing import Any

from pyspark.sql import types as T  # noqa: N812

from calve.model.spec import EXTENSION_METADATA, EXTENSION_NAME, ArrowExtension
from calve.sparktext import ident

SOURCE_PREFIX = "_calve_source_"
SOURCE_FILE = "_calve_source_file"
SOURCE_TEXT = "_calve_source_text"
SOURCE_PROBLEM = "_calve_source_problem"

_PLACE = ("topic", "partition", "offset")
KAFKA = ("key", "value", *_PLACE)

STEP = "_calve__"
"""Columns between the steps of an envelope start with this; none is left at the end."""


def is_text(data_type: T.DataType) -> bool:
    """True for columns that may hold JSON."""
    return isinstance(data_type, T.StringType | T.BinaryType)


def is_kafka(schema: T.StructType) -> bool:
    """True for a frame of Spark's Kafka source."""
    names = set(schema.names)
    return names.issuperset(KAFKA) and is_text(schema["value"].dataType)


def is_json(schema: T.StructType) -> bool:
    """True for a frame whose records are JSON in `value`: Kafka's, or lines of files as `files` hands them over."""
    if is_kafka(schema):
        return True
    names = [f.name for f in record_fields(schema)]
    return names == ["value"] and SOURCE_FILE in schema.names and is_text(schema["value"].dataType)


def record_fields(schema: T.StructType) -> list[T.StructField]:
    """The columns of the record itself."""
    return [f for f in schema.fields if not f.name.startswith(SOURCE_PREFIX)]


def extensions_of(schema: T.StructType) -> tuple[ArrowExtension, ...]:
    """What the metadata of columns says of Arrow's extension types, as Arrow's own schemas do.

    Not the types that Arrow defines (`arrow.json`): its readers make them out of a file, and pyiceberg then refuses it.
    """
    named = [(f.name, f.metadata) for f in schema.fields if isinstance(f.metadata.get(EXTENSION_NAME), str)]
    return tuple(
        ArrowExtension(name, metadata[EXTENSION_NAME], str(metadata.get(EXTENSION_METADATA, "")))
        for name, metadata in named
        if not metadata[EXTENSION_NAME].startswith("arrow.")
    )


def where(schema: T.StructType) -> str:
    """SQL of the place a record came from; null when nothing is known."""
    names = set(schema.names)
    if names.issuperset(_PLACE):
        return "concat('topic ', `topic`, ' partition ', `partition`, ' offset ', `offset`)"
    if SOURCE_FILE in names:
        return f"concat('file ', {ident(SOURCE_FILE)})"
    return "cast(null as string)"


def sample(schema: T.StructType) -> str:
    """SQL of the record as text."""
    if SOURCE_TEXT in schema.names:
        return ident(SOURCE_TEXT)
    return f"to_json(struct({', '.join(ident(f.name) for f in record_fields(schema))}))"


def arrival(schema: T.StructType, *, streaming: bool) -> list[str]:
    """SQL of the order in which records arrived, most significant first."""
    if is_kafka(schema):
        return ["`offset`", "`partition`"]
    if streaming:
        return [f"xxhash64(to_json(struct({', '.join(ident(f.name) for f in record_fields(schema))})))"]
    return ["monotonically_increasing_id()"]


def arrival_types(schema: T.StructType) -> list[T.DataType]:
    """The types of the columns of `arrival`."""
    return [schema["offset"].dataType, schema["partition"].dataType] if is_kafka(schema) else [T.LongType()]


def place_columns(schema: T.StructType) -> list[str]:
    """The columns that say where a record came from."""
    names = set(schema.names)
    if names.issuperset(_PLACE):
        return list(_PLACE)
    return [SOURCE_FILE] if SOURCE_FILE in names else []


def place(columns: dict[str, list[Any]], row: int) -> str:
    """Where a record came from, out of its `place_columns`."""
    if "topic" in columns:
        topic, partition, offset = (columns[name][row] for name in _PLACE)
        return f"topic {topic} partition {partition} offset {offset}"
    return f"file {columns[SOURCE_FILE][row]}" if SOURCE_FILE in columns else ""
