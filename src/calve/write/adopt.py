"""Parquet files that Spark wrote -> files of the table.

They are moved to their final names; metrics come from their footers; the keys to delete are read back from the key
columns, which is a small part of what was written. All of it runs on the driver, a row group at a time.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileSystem

from calve.iceberg.store import filesystem_of
from calve.model.change import DELETE, OP
from calve.model.files import WrittenFile
from calve.write.job import WriteJob
from calve.write.rolling import FileKind, FileNames, RollingFiles

_THREADS = 4
_ROWS_PER_THREAD = 2_000_000
"""Each thread that reads keys writes a file of its own: few keys are not worth several files."""
_READ_ROWS = 1 << 17


@dataclass(frozen=True)
class _Found:
    """A file that Spark wrote. `path` is the filesystem's own form."""

    path: str
    footer: pq.FileMetaData
    size: int

    @property
    def deletes(self) -> bool:
        """Whether its rows are deletes, of which the keys alone matter."""
        return f"/{OP}={DELETE}/" in self.path


def adopt(folder: str, job: WriteJob, names: FileNames) -> tuple[WrittenFile, ...]:
    """The files of the table, out of what Spark left in `folder`."""
    filesystem, path = filesystem_of(folder, job.target.io_properties)
    found = _found(filesystem, path)
    with ThreadPoolExecutor(_THREADS) as pool:
        keys = list(pool.map(lambda some: _keys(filesystem, some, job, names), _shares(found) if job.deletes else []))
        rows = list(pool.map(lambda one: _rows(filesystem, one, job, names), [f for f in found if not f.deletes]))
    return tuple(file for files in rows + keys for file in files)


def _found(filesystem: FileSystem, folder: str) -> list[_Found]:
    """Files with rows, in the order of their tasks. Spark leaves a file without any for an empty frame."""
    infos = filesystem.get_file_info(FileSelector(folder, recursive=True))
    complete = sorted((i for i in infos if i.is_file and i.base_name.endswith(".parquet")), key=lambda i: i.base_name)
    found = (_Found(i.path, pq.read_metadata(i.path, filesystem=filesystem), i.size) for i in complete)
    return [f for f in found if f.footer.num_rows]


def _shares(found: Sequence[_Found]) -> list[Sequence[_Found]]:
    """Files for each thread that reads keys."""
    rows = sum(f.footer.num_rows for f in found)
    threads = max(1, min(_THREADS, len(found), rows // _ROWS_PER_THREAD))
    return [share for i in range(threads) if (share := found[i::threads])]


def _keys(filesystem: FileSystem, found: Sequence[_Found], job: WriteJob, names: FileNames) -> tuple[WrittenFile, ...]:
    with RollingFiles(FileKind.deletes(job.target), job.target, names) as out:
        for one in found:
            for batch in _batches(filesystem, one.path, job.layout.key_names):
                out.write(batch)
    return out.files


def _rows(filesystem: FileSystem, one: _Found, job: WriteJob, names: FileNames) -> tuple[WrittenFile, ...]:
    kind = FileKind.data(job.target)
    if one.size > job.target.options.target_file_size:
        with RollingFiles(kind, job.target, names) as out:
            for batch in _batches(filesystem, one.path, None):
                out.write(batch)
        return out.files
    location = names.fresh()
    _, path = filesystem_of(location, job.target.io_properties)
    filesystem.move(one.path, path)
    return (kind.described(location, one.footer, one.size, job.target),)


def _batches(filesystem: FileSystem, path: str, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    with filesystem.open_input_file(path) as source:
        yield from pq.ParquetFile(source).iter_batches(_READ_ROWS, columns=columns, use_threads=False)
