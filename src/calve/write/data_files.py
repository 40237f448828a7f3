"""Writes Parquet files of a bounded size, with field ids and metrics, as a stream.

A writer owns its file names, `calve-t{mark of the table}-{sequence}-{uuid}.parquet` with its own UUID, so a task that
runs twice writes two sets of files, of which at most one is reported. Memory holds one row group in Arrow form and its
encoded pages, and none of the messages that delivered the rows.

A table without partitions gets one set of rolling files, a partitioned one a set per partition. The rows of a partition
should be adjacent, so that one file is open at a time however many partitions there are. Any other order only costs
more files: the partition values of a file are computed from its rows.
"""

import inspect
import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from calve.iceberg.files.names import own_name
from calve.iceberg.files.partitions import Partitioner, Values, partitioner_of, same_partition
from calve.iceberg.files.store import DataLocations, open_output, remove_new
from calve.iceberg.schema.arrow import MetricsPlan, arrow_schema, key_schema, parse_schema
from calve.iceberg.schema.readable import LAST_UPDATED, ROW_ID
from calve.model.files import ColumnMetrics, Content, FileOptions, WriteTarget, WrittenFile
from calve.model.spec import EXTENSION_METADATA, EXTENSION_NAME, ArrowExtension

_GROUP_BYTES = 32 << 20
_LARGEST_GROUP_BYTES = 256 << 20
"""A bound in memory, even if larger row groups are configured."""
_GROUPS_PER_FILE = 8
"""A file has room for at least this many row groups; otherwise it could not end near its target size."""
_KEY_FILE_BYTES = 16 << 20
_CHUNK_FOOTER_BYTES = 128
"""Approximate size of a column chunk's metadata in the footer."""
_SAMPLE_ROWS = 8192
_LEVELLED = frozenset({"zstd", "gzip", "brotli"})
_LINEAGE_IDS = frozenset({ROW_ID.field_id, LAST_UPDATED.field_id})
"""Columns of files that are not columns of the table; they come last."""
_KNOWN_SETTINGS = frozenset(inspect.signature(pq.ParquetWriter.__init__).parameters)
_NAMESPACE = uuid.UUID("0c0d7f6e-6f0b-5a53-8d7a-63616c766532")


class FileNames:
    """Fresh locations for one writer, which removes its files if it fails. Thread-safe."""

    def __init__(self, target: WriteTarget, batch_id: str, writer: str) -> None:
        self._locations = DataLocations(target.data_location.rstrip("/"), target.table_properties)
        self._key_location, self._mark = target.key_location, target.mark
        self._writer = uuid.uuid5(_NAMESPACE, f"{batch_id}/{writer}")
        self._sequence = itertools.count()
        self._io_properties = target.io_properties
        self._given: list[str] = []

    def fresh(self, partition_folder: str = "", content: Content = Content.DATA) -> str:
        """A location never used before, in the folder of its partition if it has one."""
        name = own_name(self._mark, f"{next(self._sequence):05d}-{self._writer}.parquet")
        apart = self._key_location and content is not Content.DATA
        location = f"{self._key_location}/{name}" if apart else self._locations.of(name, partition_folder)
        self._given.append(location)
        return location

    @contextmanager
    def removed_on_failure(self) -> Iterator[None]:
        """Remove the files if the block fails: nothing refers to them yet, so they would only fill the store."""
        try:
            yield
        except BaseException:
            remove_new(self._given, self._io_properties, "writing them failed")
            raise


@dataclass(frozen=True)
class FileKind:
    """The contents of a batch's files, and how they are registered in the table."""

    content: Content
    schema: Any
    """The Iceberg schema of the file."""
    arrow: pa.Schema
    metrics: MetricsPlan
    spec_id: int
    equality_ids: tuple[int, ...] = ()
    partition: tuple[Any, ...] = ()
    """The values of the partition that all rows belong to."""
    folder: str = ""
    """Named after the partition."""

    @classmethod
    def data(cls, target: WriteTarget) -> Self:
        """Files of rows."""
        schema = parse_schema(_of_files(target))
        columns = _with_extensions(arrow_schema(schema), target.options.extensions)
        metrics = MetricsPlan.of(schema, target.table_properties)
        return cls(Content.DATA, schema, columns, metrics, target.data_spec_id)

    @classmethod
    def deletes(cls, target: WriteTarget) -> Self:
        """Files of keys whose rows are deleted."""
        schema = key_schema(parse_schema(target.schema_json), target.key_ids)
        metrics = MetricsPlan.of(schema, target.table_properties)
        columns = arrow_schema(schema)
        return cls(Content.EQUALITY_DELETES, schema, columns, metrics, target.delete_spec_id, target.key_ids)

    def describe(self, location: str, footer: pq.FileMetaData, size: int) -> WrittenFile:
        """Describe a complete file for the table."""
        metrics, split_offsets = self.metrics.metrics_of(footer)
        if self.schema.fields[-1].field_id in _LINEAGE_IDS:
            metrics = _of_columns_of_the_table(metrics)
        return WrittenFile(
            content=self.content,
            path=location,
            record_count=footer.num_rows,
            size=size,
            spec_id=self.spec_id,
            partition=self.partition,
            metrics=metrics,
            split_offsets=split_offsets,
            equality_ids=self.equality_ids,
        )


def _of_columns_of_the_table(metrics: ColumnMetrics) -> ColumnMetrics:
    kept = {name: {i: v for i, v in known.items() if i not in _LINEAGE_IDS} for name, known in vars(metrics).items()}
    return ColumnMetrics(**kept)


def _nothing() -> None:
    pass


class RollingFiles:
    """Writes rows to files. A context manager: `files` is set when the block ends without an error."""

    def __init__(
        self, kind: FileKind, target: WriteTarget, names: FileNames, *, midway: Callable[[], None] = _nothing
    ) -> None:
        self.files: tuple[WrittenFile, ...] = ()
        self._kind, self._target, self._names, self._midway = kind, target, names, midway
        self._schema = kind.arrow
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._ratio = 1.0  # bytes in a file per byte in memory, as of the last row group
        self._open: _OpenFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._flush()
                self._finish()
        finally:
            if self._open is not None:
                self._open.abandon()

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows in the columns of the file, by name; others are left out."""
        if rows.num_rows == 0:
            return
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        wanted = table.select(self._schema.names)
        if 2 * wanted.nbytes < table.nbytes:
            wanted = _copy(wanted)
        table = wanted.cast(self._schema)
        step = max(1, table.num_rows * self._group_bytes() // max(1, table.nbytes))
        for start in range(0, table.num_rows, step):
            self._add(table.slice(start, step))

    def _add(self, piece: pa.Table) -> None:
        self._waiting.append(piece)
        self._waiting_rows += piece.num_rows
        self._waiting_bytes += piece.nbytes
        if self._waiting_bytes >= self._group_bytes() or self._waiting_rows >= self._target.options.row_group_rows:
            self._flush()

    def _group_bytes(self) -> int:
        """Bytes in memory of a row group: bounded, and a small part of a file unless configured larger."""
        options = self._target.options
        if options.row_group_size is not None:
            wanted = min(options.row_group_size, options.target_file_size)
            return min(_LARGEST_GROUP_BYTES, int(wanted / self._ratio) + 1)
        part = options.target_file_size / _GROUPS_PER_FILE
        return min(_GROUP_BYTES, int(part / self._ratio) + 1)

    def _flush(self) -> None:
        if not self._waiting:
            return
        group = pa.concat_tables(self._waiting)
        expected = int(self._waiting_bytes * self._ratio)
        if self._open is not None and self._open.size + expected > self._target.options.target_file_size:
            self._finish()
        if self._open is None:
            location = self._names.fresh(self._kind.folder, self._kind.content)
            self._open = _OpenFile(location, group, self._target, self._kind.content)
        self._ratio = max(0.01, self._open.append(group) / max(1, self._waiting_bytes))
        self._midway()
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def _finish(self) -> None:
        if self._open is not None:
            footer, size = self._open.complete()
            self.files += (self._kind.describe(self._open.location, footer, size),)
            self._open = None


def key_files(target: WriteTarget, names: FileNames, *, midway: Callable[[], None] = _nothing) -> RollingFiles:
    """Files of keys whose rows are deleted; small, since the key lookup has to hold one in memory."""
    options = replace(target.options, target_file_size=min(target.options.target_file_size, _KEY_FILE_BYTES))
    return RollingFiles(FileKind.deletes(target), replace(target, options=options), names, midway=midway)


def _copy(table: pa.Table) -> pa.Table:
    """Copy rows to their own memory: one column of a Spark message keeps the whole message alive."""
    columns = [
        pa.concat_arrays([*column.chunks, column.chunk(0).slice(0, 0)]) if column.num_chunks else column
        for column in table.columns
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _dictionary_columns(group: pa.Table) -> list[str] | bool:
    """Columns whose values repeat. Arrow never drops a useless dictionary, which makes files slower and larger."""
    if any(pa.types.is_nested(field.type) for field in group.schema):
        return True
    sample = group.slice(0, _SAMPLE_ROWS)
    repeating = sample.num_rows // 2
    return [name for name in sample.column_names if _distinct(sample[name]) <= repeating]


def _distinct(column: pa.ChunkedArray) -> int:
    if isinstance(column.type, pa.BaseExtensionType):  # a UUID
        column = column.cast(column.type.storage_type)
    return int(pc.count_distinct(column, mode="all").as_py())


def _with_extensions(schema: pa.Schema, extensions: Sequence[ArrowExtension]) -> pa.Schema:
    for extension in extensions:
        at = schema.get_field_index(extension.column)
        if at >= 0:
            metadata = {EXTENSION_NAME: extension.name, EXTENSION_METADATA: extension.metadata}
            field = schema.field(at)
            schema = schema.set(at, field.with_metadata({**(field.metadata or {}), **metadata}))
    return schema


def compression_level(options: FileOptions) -> int | None:
    """The compression level within the codec's bounds; None if the codec has no levels."""
    codec, level = options.compression, options.compression_level
    if level is None or codec not in _LEVELLED:
        return None
    least: int = pa.Codec.minimum_compression_level(codec)
    most: int = pa.Codec.maximum_compression_level(codec)
    return min(max(level, least), most)


def _newer_settings(options: FileOptions, group: pa.Table, content: Content) -> dict[str, Any]:
    """Configured settings that older versions of Arrow do not support; unsupported ones are dropped."""
    found: dict[str, Any] = {}
    if options.page_rows is not None:
        found["max_rows_per_page"] = options.page_rows
    columns = set(group.column_names) if content is Content.DATA else set()
    filters = {
        bloom.column: {"ndv": min(bloom.distinct or group.num_rows, group.num_rows), "fpp": bloom.false_positives}
        for bloom in options.bloom_filters
        if bloom.column in columns
    }
    if filters:
        found["bloom_filter_options"] = filters
    return {name: value for name, value in found.items() if name in _KNOWN_SETTINGS}


class _OpenFile:
    """A file that has no footer yet."""

    def __init__(self, location: str, first_group: pa.Table, target: WriteTarget, content: Content) -> None:
        self.location = location
        options = target.options
        self._sink = open_output(location, target.io_properties)
        self._row_group_rows = options.row_group_rows
        self._footers: list[pq.FileMetaData] = []
        self._footer_bytes = 0
        self._writer = pq.ParquetWriter(
            self._sink,
            first_group.schema,
            use_dictionary=_dictionary_columns(first_group),
            compression=options.compression,
            compression_level=compression_level(options),
            data_page_size=options.page_size,
            dictionary_pagesize_limit=options.dictionary_size,
            store_decimal_as_integer=True,  # required by the Iceberg specification
            # readers use field ids; Arrow's schema would be a second source of truth, but only it can store extensions
            store_schema=bool(options.extensions) and content is Content.DATA,
            metadata_collector=self._footers,
            **_newer_settings(options, first_group, content),
        )

    @property
    def size(self) -> int:
        """Approximate size of the file if it ended now."""
        return int(self._sink.tell()) + self._footer_bytes

    def append(self, group: pa.Table) -> int:
        """Write a row group; returns by how many bytes the file grows."""
        before = self.size
        self._writer.write_table(group, row_group_size=self._row_group_rows)
        self._footer_bytes += group.num_columns * _CHUNK_FOOTER_BYTES
        return self.size - before

    def complete(self) -> tuple[pq.FileMetaData, int]:
        """Write the footer and close; returns the footer and the size of the file."""
        self._writer.close()
        size = int(self._sink.tell())
        self._sink.close()
        return self._footers[0], size

    def abandon(self) -> None:
        """Release a file that will never be complete; closing it properly could fail as writing it did."""
        self._writer.is_open = False
        with suppress(OSError):
            self._sink.close()


def partitioner_for(target: WriteTarget) -> Partitioner | None:
    """None for a table without partitions."""
    return partitioner_of(target.schema_json, target.data_spec_json) if target.data_spec_json else None


def _of_files(target: WriteTarget) -> str:
    return target.file_schema_json or target.schema_json


class DataFiles(Protocol):
    """Writes rows to files: `files` is set when the block ends without an error."""

    files: tuple[WrittenFile, ...]

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows in the columns of the file, by name; others are left out."""
        ...


def data_files(target: WriteTarget, names: FileNames, *, midway: Callable[[], None] = _nothing) -> DataFiles:
    """Open the data files for rows of a table, partitioned or not."""
    files = _data_files(target, names, midway)
    return FilledFiles(files, target) if target.file_schema_json else files


def _data_files(target: WriteTarget, names: FileNames, midway: Callable[[], None]) -> DataFiles:
    kind = FileKind.data(target)
    partitioner = partitioner_for(replace(target, schema_json=_of_files(target)))
    if partitioner is None:
        return RollingFiles(kind, target, names, midway=midway)

    def files_of(values: Values) -> RollingFiles:
        of_partition = replace(kind, partition=values, folder=partitioner.folder(values))
        return RollingFiles(of_partition, target, names, midway=midway)

    return PartitionedFiles(partitioner, files_of)


class FilledFiles:
    """Adds the columns that rows lack, with their write defaults."""

    def __init__(self, files: DataFiles, target: WriteTarget) -> None:
        self.files: tuple[WrittenFile, ...] = ()
        self._files = files
        given, schema = parse_schema(target.schema_json).field_ids, parse_schema(target.file_schema_json)
        self._added = [
            (field, _default(known.write_default, field.type))
            for known, field in zip(schema.fields, arrow_schema(schema), strict=True)
            if known.field_id not in given
        ]

    def __enter__(self) -> Self:
        self._files.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *context: object) -> None:
        self._files.__exit__(kind, *context)
        self.files = self._files.files

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        for field, value in self._added:
            rows = rows.append_column(field, pa.repeat(value, rows.num_rows))
        self._files.write(rows)


def _default(value: Any, kind: pa.DataType) -> pa.Scalar:
    """A default value; old versions of Arrow convert no UUIDs."""
    return pa.scalar(value.bytes if isinstance(value, uuid.UUID) else value, kind)


class PartitionedFiles:
    """Writes one partition after the other."""

    def __init__(self, partitioner: Partitioner, files_of: Callable[[Values], RollingFiles]) -> None:
        self.files: tuple[WrittenFile, ...] = ()
        self._partitioner, self._files_of = partitioner, files_of
        self._complete: list[WrittenFile] = []
        self._open: RollingFiles | None = None
        self._values: Values = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(kind)
        if kind is None:
            self.files = tuple(self._complete)

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        for values, piece in self._partitioner.runs(table):
            if self._open is None or not same_partition(values, self._values):
                self._close(None)
                self._open, self._values = self._files_of(values).__enter__(), values
            self._open.write(piece)

    def _close(self, failure: type[BaseException] | None) -> None:
        done, self._open = self._open, None
        if done is not None:
            done.__exit__(failure)
            self._complete += done.files
