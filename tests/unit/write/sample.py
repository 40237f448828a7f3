"""A target in a folder, and what its files hold: read with pyarrow alone."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from calve.model.files import FileOptions, WriteTarget, WrittenFile

FLAT = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "status", StringType(), required=False),
    NestedField(3, "amount", DecimalType(12, 2), required=False),
    NestedField(4, "updated", TimestamptzType(), required=False),
    identifier_field_ids=[1],
)
NESTED = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "tags", ListType(5, StringType(), element_required=False), required=False),
    NestedField(3, "counts", MapType(6, StringType(), 7, IntegerType(), value_required=False), required=False),
    NestedField(
        4,
        "place",
        StructType(
            NestedField(8, "city", StringType(), required=False),
            NestedField(9, "codes", ListType(10, LongType(), element_required=False), required=False),
        ),
        required=False,
    ),
    identifier_field_ids=[1],
)
DATA_SPEC, DELETE_SPEC = 3, 1


def target_in(folder: Path, schema: Schema = FLAT, key_ids: tuple[int, ...] = (1,), **options: Any) -> WriteTarget:
    return WriteTarget(
        schema_json=schema.model_dump_json(),
        key_ids=key_ids,
        data_location=f"file://{folder}/data",
        data_spec_id=DATA_SPEC,
        delete_spec_id=DELETE_SPEC,
        options=FileOptions(**options),
    )


def local(file: WrittenFile) -> Path:
    return Path(file.path.removeprefix("file://"))


def rows_of(files: Iterable[WrittenFile]) -> list[dict[str, Any]]:
    return [row for file in files for row in pq.ParquetFile(local(file)).read().to_pylist()]


def ids_of(file: WrittenFile) -> dict[str, list[int]]:
    """Path of every leaf in the file -> the field ids on the way to it, as the footer has them."""
    arrow = pq.read_schema(local(file))
    found: dict[str, list[int]] = {}

    def walk(field: pa.Field, path: str, ids: list[int]) -> None:
        here = [*ids, int(field.metadata[b"PARQUET:field_id"])]
        children = [field.type.field(i) for i in range(field.type.num_fields)]
        if pa.types.is_map(field.type):  # the group between a map and its entries has no id
            children = [field.type.key_field, field.type.item_field]
        for child in children:
            walk(child, f"{path}.{child.name}", here)
        if not children:
            found[path] = here

    for field in arrow:
        walk(field, field.name, [])
    return found
