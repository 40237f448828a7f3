"""Small Parquet files of rows: written in one piece under a name that is free, and read again."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table

from calve.errors import TransientError
from calve.iceberg.metrics import arrow_schema, metrics_of
from calve.iceberg.store import file_sizes, io_properties_of, open_input, open_output
from calve.model.files import Content, WrittenFile

_SMALL = 256
_KNOWN = 512


def write_rows(
    table: Table, location: str, partition: tuple[Any, ...], rows: Sequence[Mapping[str, Any]]
) -> WrittenFile:
    """The rows of one partition as a new file. Raises OSError, or TransientError when the name is taken."""
    properties = io_properties_of(table.io.properties)
    if file_sizes([location], properties)[location] is not None:
        raise TransientError(
            "the name of a new file was taken already",
            detail=f"It is {location}.",
            hint="Nothing was changed; try again.",
        )
    schema = table.schema()
    content = pa.Table.from_pylist([dict(row) for row in rows], schema=arrow_schema(schema))
    footers: list[pq.FileMetaData] = []
    buffer = pa.BufferOutputStream()
    with pq.ParquetWriter(buffer, content.schema, compression="zstd", metadata_collector=footers) as writer:
        writer.write_table(content)
    whole = buffer.getvalue()
    with open_output(location, properties) as sink:
        sink.write(whole)
    metrics, split_offsets = metrics_of(footers[0], schema, table.properties)
    return WrittenFile(
        content=Content.DATA,
        path=location,
        record_count=len(rows),
        size=whole.size,
        spec_id=table.metadata.default_spec_id,
        partition=partition,
        metrics=metrics,
        split_offsets=split_offsets,
    )


class RowReader:
    """Rows of files. Files never change: small ones stay in memory."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, pa.Table] = OrderedDict()

    def read(self, table: Table, location: str, columns: Sequence[str], rows: int) -> pa.Table:
        """These columns of a file; one that the file lacks is null. Raises OSError."""
        content = self._known.get(location)
        if content is None:
            with open_input(location, io_properties_of(table.io.properties)) as source:
                file = pq.ParquetFile(source)
                there = [name for name in columns if name in file.schema_arrow.names]
                content = file.read(columns=None if rows <= _SMALL else there or file.schema_arrow.names[:1])
            if rows <= _SMALL:
                self._remember(location, content)
        for name in set(columns) - set(content.column_names):
            kind = arrow_schema(table.schema()).field(name).type
            content = content.append_column(name, pa.nulls(content.num_rows, kind))
        return content.select(list(columns))

    def _remember(self, location: str, content: pa.Table) -> None:
        self._known[location] = content
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
