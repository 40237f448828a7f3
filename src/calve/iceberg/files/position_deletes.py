"""Writes position delete files, sorted by path and position as the specification demands. Runs on executors.

All deletes of one partition share a file, except for those of a data file with many deletes: a separate file is read
only with that data file, whereas a shared one is read with every data file of the partition within its bounds. Bounds
of paths are never truncated, so that readers see which data file a delete file refers to.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from calve.iceberg.files.names import own_name
from calve.iceberg.files.store import DataLocations, open_output, remove_new
from calve.iceberg.schema.arrow import MetricsPlan, arrow_schema
from calve.model.files import ColumnMetrics, Content, WrittenFile
from calve.model.scan import ScanFile

PATH_ID, POSITION_ID = 2147483546, 2147483545
"""Field ids of the columns `file_path` and `pos`."""

POSITION_DELETES = Schema(
    NestedField(PATH_ID, "file_path", StringType(), required=True),
    NestedField(POSITION_ID, "pos", LongType(), required=True),
)
_METRICS = MetricsPlan.of(POSITION_DELETES, {"write.metadata.metrics.default": "full"})
_PATHS, _POSITIONS = arrow_schema(POSITION_DELETES)
_COLUMNS = pa.schema([_PATHS.with_type(pa.dictionary(pa.int32(), pa.string())), _POSITIONS])
"""Paths are dictionary-encoded: they are written that way and never expanded in memory."""
OWN_FILE = 10_000
"""From this many deletes of one data file on, they get a separate file."""
_MOST_ROWS = 5_000_000
"""The most deletes in one file; limits the memory of its writer and its readers."""
_WRITES = 8
"""Files that are written at the same time: to create one takes longer than to write its few rows."""
_NAMESPACE = uuid.UUID("0c0d7f6e-6f0b-5a53-8d7a-706f736974e6")

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class RowPositions:
    """The positions, ascending, of rows of a data file that should be deleted."""

    file: ScanFile
    positions: Positions
    keys: Positions | None = None
    """If the key index found them: for each position, the row of its key among the keys of the batch."""

    def taken(self, which: slice | Positions) -> "RowPositions":
        """A part of the rows, in the same order."""
        return RowPositions(self.file, self.positions[which], None if self.keys is None else self.keys[which])


@dataclass(frozen=True)
class DeletePlace:
    """Where delete files go. Plain values, because it is sent to executors."""

    data_location: str
    table_properties: Mapping[str, str] = field(default_factory=dict)
    io_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    mark: str = ""
    """Part of the names of files (`iceberg/files/names.py`)."""
    vectors: bool = False
    """Whether positions are written as deletion vectors (format version 3)."""


def write_position_deletes(
    place: DeletePlace,
    found: Iterable[RowPositions],
    writer: str,
    wrote: Callable[[str, Sequence[RowPositions]], None] | None = None,
) -> tuple[WrittenFile, ...]:
    """Write the delete files, all or none. Names are derived from `writer`, which must be unique. Raises OSError.

    `wrote` is told the path and the contents of each file.
    """
    locations = DataLocations(place.data_location.rstrip("/"), place.table_properties)
    unique = uuid.uuid5(_NAMESPACE, writer)
    contents = list(_files(found))
    names = [locations.of(own_name(place.mark, f"{at:05d}-{unique}.parquet")) for at in range(len(contents))]
    begun: list[str] = []

    def write(name: str, members: Sequence[RowPositions]) -> WrittenFile:
        begun.append(name)
        return _write_file(members, name, place)

    try:
        written = _all_of(write, names, contents)
    except BaseException:
        remove_new(begun, place.io_properties, "writing deletes failed")
        raise
    if wrote is not None:
        for name, members in zip(names, contents, strict=True):
            wrote(name, members)
    return written


def _all_of(
    write: Callable[[str, Sequence[RowPositions]], WrittenFile],
    names: Sequence[str],
    contents: Sequence[Sequence[RowPositions]],
) -> tuple[WrittenFile, ...]:
    """Write several files at a time: a table may need one for each of its partitions. None is begun after a failure."""
    if len(names) <= 1:
        return tuple(map(write, names, contents))
    with ThreadPoolExecutor(min(_WRITES, len(names))) as pool:
        try:
            return tuple(pool.map(write, names, contents))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _files(found: Iterable[RowPositions]) -> Iterator[list[RowPositions]]:
    """Group the deletes by the file that they go to."""
    shared: dict[tuple[object, ...], list[RowPositions]] = {}
    for one in sorted(found, key=lambda f: f.file.path):
        if len(one.positions) >= OWN_FILE:
            for start in range(0, len(one.positions), _MOST_ROWS):
                yield [replace(one, positions=one.positions[start : start + _MOST_ROWS])]
        elif len(one.positions):
            shared.setdefault((one.file.spec_id, *map(repr, one.file.partition)), []).append(one)
    for members in shared.values():
        step = _MOST_ROWS // OWN_FILE
        for start in range(0, len(members), step):
            yield members[start : start + step]


def _write_file(members: Sequence[RowPositions], location: str, place: DeletePlace) -> WrittenFile:
    paths = [one.file.path for one in members]
    numbers = np.repeat(np.arange(len(paths), dtype=np.int32), [len(one.positions) for one in members])
    table = pa.Table.from_arrays(
        [
            pa.DictionaryArray.from_arrays(pa.array(numbers), pa.array(paths, pa.string())),
            pa.array(np.concatenate([one.positions for one in members]), pa.int64()),
        ],
        schema=_COLUMNS,
    )
    footers: list[pq.FileMetaData] = []
    with open_output(location, place.io_properties) as sink:
        with pq.ParquetWriter(
            sink,
            table.schema,
            compression="zstd",
            use_dictionary=["file_path"],
            store_schema=False,
            metadata_collector=footers,
        ) as writer:
            writer.write_table(table)
        size = int(sink.tell())
    metrics, offsets = _METRICS.metrics_of(footers[0])
    return WrittenFile(
        content=Content.POSITION_DELETES,
        path=location,
        record_count=table.num_rows,
        size=size,
        spec_id=members[0].file.spec_id,
        partition=members[0].file.partition,
        metrics=_with_whole_paths(metrics, paths),
        split_offsets=offsets,
    )


def _with_whole_paths(metrics: ColumnMetrics, paths: Sequence[str]) -> ColumnMetrics:
    """Set the bounds of the paths, which are ascending: Parquet omits statistics of very long values."""
    return replace(
        metrics,
        lower_bounds={**metrics.lower_bounds, PATH_ID: paths[0].encode()},
        upper_bounds={**metrics.upper_bounds, PATH_ID: paths[-1].encode()},
    )
