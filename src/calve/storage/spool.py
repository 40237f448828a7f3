"""Rows that are too many for memory: they go to a local file, and are read back batch by batch."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

BATCH = 50_000
"""Rows of a batch."""


class Spool:
    """Rows that go to a file, a batch at a time."""

    def __init__(self, file: Path, schema: pa.Schema, metadata: Mapping[bytes, bytes] | None = None) -> None:
        self._schema = schema.with_metadata(dict(metadata)) if metadata else schema
        self._rows: list[tuple[Any, ...]] = []
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._writer = pa.ipc.new_file(str(file), self._schema, options=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._writer.close()

    def add(self, row: tuple[Any, ...]) -> None:
        """Add a row."""
        self._rows.append(row)
        if len(self._rows) >= BATCH:
            self._flush()

    def _flush(self) -> None:
        columns = list(zip(*self._rows, strict=True)) if self._rows else [()] * len(self._schema)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, self._schema.types, strict=True)]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._rows = []


def batches_of(file: Path) -> Iterator[pa.RecordBatch]:
    """The rows of such a file, a batch at a time. Raises pa.ArrowException if it is damaged."""
    with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
