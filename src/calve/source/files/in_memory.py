"""Reads files in the driver, as Arrow data.

Of Parquet only files whose columns have exactly the types of the source, so that nothing depends on Spark's rules of
conversion; of JSON few lines, without compression. Everything else is left to Spark, which also reports files that
cannot be read: functions of this module return None then.

A footer states the size of rows as they are encoded, and values that repeat take many times that in memory. So what
rows take is counted while they are read, and no more is read once it is too much.
"""

import codecs
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import types as T  # noqa: N812

from calve.model.checkpoint import SizeLimit
from calve.source.files.records import LINES
from calve.spark.version import arrow_schema_of
from calve.storage.listing import KnownFile

MOST_FILES = 1000
_FILES_AT_ONCE = 64
"""Open at the same time."""
_THREADS = 8
_ROWS_AT_ONCE = 1 << 18
"""Row groups of a file with no more rows together are read at once; a larger one alone."""
_ROW_BYTES = 256
"""What a row is expected to take in memory until wider ones were read."""
_MOST_LINES = 5_000
"""Python code converts them one by one, and blocks all other sinks meanwhile."""
_MOST_JSON_BYTES = 4 << 20
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate", ".xz")
"""Names of files that Spark decompresses."""
_LINES = arrow_schema_of(LINES)
_SPARK_VERSION = b"org.apache.spark.version"
_OLD_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""Metadata of files whose dates Spark converts from another calendar."""


def read_parquet(
    store: fs.FileSystem, files: Sequence[KnownFile], records: T.StructType, limit: SizeLimit
) -> pa.Table | None:
    """The rows of files with the columns of `records`, file by file; None if Spark has to read them."""
    wanted = arrow_schema_of(records)
    if len(files) > MOST_FILES or sum(file.size for file in files) > limit.bytes:
        return None
    room, parts = _Room(limit), list[pa.Table]()
    with ThreadPoolExecutor(min(_THREADS, len(files))) as pool:
        for start in range(0, len(files), _FILES_AT_ONCE):
            found = _read_together(store, files[start : start + _FILES_AT_ONCE], wanted, room, pool)
            if found is None:
                return None
            parts += found
    return pa.concat_tables(parts) if parts else wanted.empty_table()


def _read_together(
    store: fs.FileSystem, files: Sequence[KnownFile], wanted: pa.Schema, room: "_Room", pool: ThreadPoolExecutor
) -> list[pa.Table] | None:
    try:
        with ExitStack() as opened:
            sources = [opened.enter_context(store.open_input_file(file.path)) for file in files]
            found = list(pool.map(pq.ParquetFile, sources))
            if not all(_fits(file, wanted) for file in found) or not _may_fit([f.metadata for f in found], room.left):
                return None
            files_read = list(pool.map(lambda file: _read_file(file, wanted, room), found))
    except (OSError, pa.ArrowException):
        return None
    return None if room.is_exceeded else [part for parts in files_read for part in parts]


def _read_file(file: pq.ParquetFile, wanted: pa.Schema, room: "_Room") -> list[pa.Table]:
    """The rows of a file; not all of them if there is no room for more."""
    parts: list[pa.Table] = []
    for groups, rows in _groups_at_once(file.metadata):
        if not room.enter(rows):
            break
        size = 0
        try:
            part = file.read_row_groups(groups, columns=wanted.names, use_threads=True)
            # Each on its own: files may differ in how their writers had values in memory, and in what may be null.
            parts.append(part.select(wanted.names).replace_schema_metadata().cast(wanted))
            size = parts[-1].nbytes
        finally:
            room.leave(rows, size)
    return parts


def _groups_at_once(footer: pq.FileMetaData) -> Iterator[tuple[list[int], int]]:
    """The row groups that are read together, and how many rows they have; none without rows."""
    groups, rows = list[int](), 0
    for number in range(footer.num_row_groups):
        more = footer.row_group(number).num_rows
        if rows and rows + more > _ROWS_AT_ONCE:
            yield groups, rows
            groups, rows = [], 0
        groups.append(number)
        rows += more
    if rows:
        yield groups, rows


class _Room:
    """The memory that rows may still take, for threads that each read a part of them at a time.

    They read no more at the same time than is expected to fit, by the widest rows so far; but always one part.
    """

    def __init__(self, limit: SizeLimit) -> None:
        self._left = limit
        self._reading = 0
        """Rows that are being read."""
        self._row_bytes: float = _ROW_BYTES
        self._changed = threading.Condition()

    @property
    def left(self) -> SizeLimit:
        """What those that were read have left."""
        return self._left

    @property
    def is_exceeded(self) -> bool:
        """Whether those that were read take too much."""
        return self._left.bytes < 0

    def enter(self, rows: int) -> bool:
        """Wait until so many rows may be read; False if no more may be."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_exceeded or self._is_free_for(rows))
            if self.is_exceeded:
                return False
            self._reading += rows
            return True

    def _is_free_for(self, rows: int) -> bool:
        return not self._reading or (self._reading + rows) * self._row_bytes <= self._left.bytes

    def leave(self, rows: int, size: int) -> None:
        """Note that these rows were read, and how many bytes they take."""
        with self._changed:
            self._reading -= rows
            self._left = SizeLimit(self._left.rows - rows, self._left.bytes - size)
            self._row_bytes = max(self._row_bytes, size / rows)
            self._changed.notify_all()


def read_json_lines(store: fs.FileSystem, files: Sequence[KnownFile], limit: SizeLimit) -> pa.Table | None:
    """The lines of files that are not blank, with the columns of `records.LINES`, file by file."""
    if len(files) > MOST_FILES or sum(file.size for file in files) > min(_MOST_JSON_BYTES, limit.bytes):
        return None
    if any(file.path.lower().endswith(_COMPRESSED) for file in files):
        return None
    lines: list[tuple[bytes, str]] = []
    try:
        for file in files:
            with store.open_input_file(file.path) as source:
                data = source.read()
            if data.startswith(codecs.BOM_UTF8):
                return None
            lines += [(line, file.path) for line in data.splitlines() if line.strip(b" ")]
    except OSError:
        return None
    if len(lines) > min(_MOST_LINES, limit.rows):
        return None
    columns = zip(*lines, strict=True) if lines else ((), ())
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, _LINES, strict=True)], schema=_LINES)


def _fits(file: pq.ParquetFile, wanted: pa.Schema) -> bool:
    found, metadata = file.schema_arrow, file.metadata.metadata or {}
    if any(name in metadata for name in _OLD_CALENDAR) or metadata.get(_SPARK_VERSION, b"4") < b"3":
        return False
    names = set(found.names)
    lower = Counter(name.lower() for name in found.names)
    return all(
        lower[field.name.lower()] == 1
        and field.name in names
        and _has_same_values(found.field(field.name).type, field.type)
        for field in wanted
    )


def _has_same_values(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a type of a file has the values of the wanted one: writers may state how they had them in memory."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_large_string(found) or pa.types.is_string_view(found):
        found = pa.string()
    elif pa.types.is_large_binary(found) or pa.types.is_binary_view(found):
        found = pa.binary()
    elif pa.types.is_timestamp(found) and found.tz is not None:
        found = pa.timestamp(found.unit, "UTC")
    return bool(found == wanted)


def _may_fit(footers: Sequence[pq.FileMetaData], limit: SizeLimit) -> bool:
    """Whether the rows, and their bytes as they are encoded, are few enough."""
    size = sum(footer.row_group(i).total_byte_size for footer in footers for i in range(footer.num_row_groups))
    return bool(size <= limit.bytes and sum(footer.num_rows for footer in footers) <= limit.rows)
