"""Turns Parquet files that Spark wrote, sorted by key, into files of the table.

Files are moved to their final names; metrics come from their footers; the keys to delete are read back from the key
columns, a small part of the data. Files that are too large, or that contain a key twice in a row, are rewritten with
the last row of every key. All of this runs on the driver, a row group at a time.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileInfo, FileSelector, FileSystem

from calve.iceberg.files.store import filesystem_of
from calve.model.change import DELETE, OP, ORDER
from calve.model.files import WrittenFile
from calve.write.consolidate import last_of_runs
from calve.write.data_files import FileKind, FileNames, RollingFiles, key_files
from calve.write.job import WriteJob

_THREADS = 4
_ROWS_PER_DELETE_FILE = 2_000_000
"""Each thread that reads keys writes its own file; few keys are not worth several files."""
_READ_ROWS = 1 << 17
_SPARK_NAME = re.compile(r"part-(\d+)-.*[-.]c(\d+)\..*parquet")


@dataclass(frozen=True)
class _SparkFile:
    """A file that Spark wrote. `path` is relative to the filesystem, without a scheme."""

    path: str
    footer: pq.FileMetaData
    size: int


@dataclass(frozen=True)
class _Output:
    """The files of one kind that one task wrote, in the order of their rows."""

    files: tuple[_SparkFile, ...]
    deletes: bool
    """Whether the rows are deletes, of which only the keys matter."""

    @property
    def rows(self) -> int:
        """Of all files."""
        return sum(file.footer.num_rows for file in self.files)


class SparkOutput:
    """The files of one Spark job in `folder`. `unique` says that every key has one row there."""

    def __init__(self, folder: str, job: WriteJob, names: FileNames, *, unique: bool) -> None:
        self._job, self._names, self._unique = job, names, unique
        self._filesystem, path = filesystem_of(folder, job.target.io_properties)
        self._outputs = _outputs(self._filesystem, path)
        self.rows = sum(output.rows for output in self._outputs)

    def files(self) -> tuple[WrittenFile, ...]:
        """Create the files of the table, complete and at their final locations."""
        threads = min(_THREADS, len(self._outputs))
        if self._job.deletes:
            threads = min(threads, -(-self.rows // _ROWS_PER_DELETE_FILE))
        shares = [self._outputs[i::threads] for i in range(threads)]
        with ThreadPoolExecutor(_THREADS) as pool:
            return tuple(file for files in pool.map(self._to_table_files, shares) for file in files)

    def _to_table_files(self, outputs: Sequence[_Output]) -> tuple[WrittenFile, ...]:
        files: list[WrittenFile] = []
        with key_files(self._job.target, self._names) as keys:
            for output in outputs:
                distinct = self._count_keys(output, keys) if self._job.deletes or not self._unique else output.rows
                if not output.deletes:
                    files += self._data_files(output, repeated=distinct < output.rows)
        return (*files, *keys.files)

    def _count_keys(self, output: _Output, keys: RollingFiles) -> int:
        """Count the distinct keys, and write them to `keys` if the job deletes."""
        distinct = 0
        key = self._job.layout.key_names
        columns = [*key, *(c.name for c in self._job.layout.columns if c.name == ORDER)]
        for batch in last_of_runs(self._batches(output, columns), key):
            distinct += batch.num_rows
            if self._job.deletes:
                keys.write(batch)
        return distinct

    def _data_files(self, output: _Output, *, repeated: bool) -> Iterable[WrittenFile]:
        target = self._job.target
        kind = FileKind.data(target)
        if repeated or any(file.size > target.options.target_file_size for file in output.files):
            with RollingFiles(kind, target, self._names) as out:
                for batch in last_of_runs(self._batches(output, None), self._job.layout.key_names):
                    out.write(batch)
            yield from out.files
            return
        for file in output.files:
            location = self._names.fresh()
            filesystem, path = filesystem_of(location, target.io_properties)
            filesystem.create_dir(path.rpartition("/")[0])  # the table's layout may use subfolders
            self._filesystem.move(file.path, path)
            yield kind.describe(location, file.footer, file.size)

    def _batches(self, output: _Output, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        for file in output.files:
            with self._filesystem.open_input_file(file.path) as source:
                yield from pq.ParquetFile(source).iter_batches(_READ_ROWS, columns=columns, use_threads=False)


def _outputs(filesystem: FileSystem, folder: str) -> list[_Output]:
    """The files that Spark wrote, without the empty file it writes for an empty frame."""
    infos = filesystem.get_file_info(FileSelector(folder, recursive=True))
    placed = sorted((place, info) for info in infos if (place := _place(info)) is not None)
    outputs = []
    for (deletes, _), group in groupby(placed, key=lambda entry: entry[0][:2]):
        found = (_SparkFile(i.path, pq.read_metadata(i.path, filesystem=filesystem), i.size) for _, i in group)
        outputs.append(_Output(tuple(f for f in found if f.footer.num_rows), deletes))
    return [output for output in outputs if output.files]


def _place(info: FileInfo) -> tuple[bool, int, int] | None:
    """Kind, task and number of a file; None for anything but a file of rows."""
    name = _SPARK_NAME.fullmatch(info.base_name)
    return (f"/{OP}={DELETE}/" in info.path, int(name[1]), int(name[2])) if name and info.is_file else None
