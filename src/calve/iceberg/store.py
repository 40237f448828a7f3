"""Files of a table by location, on the driver and on executors.

A location is a URI whose path is written as it is, without percent-encoding: `file:///tmp/a b%20c/x` names the file `x`
in the folder `a b%20c`; a location without a scheme is a local path (see `catalog/connect.py` for when that is used).

Nothing here deletes a file of a table.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import pyarrow as pa
from pyarrow.fs import FileSystem, FileType
from pyiceberg.io.pyarrow import PyArrowFileIO

_BUFFER = 1 << 20
_LOOKUPS = 16
"""Parallel requests when many files are looked up; matters for object stores only."""


def filesystem_of(location: str, io_properties: Mapping[str, str]) -> tuple[FileSystem, str]:
    """The filesystem of a location, and its path there. Filesystems are reused within a process."""
    scheme, host, path = PyArrowFileIO.parse_location(location, dict(io_properties))
    return _filesystem(scheme, host, tuple(sorted(io_properties.items()))), path


@lru_cache(maxsize=64)
def _filesystem(scheme: str, host: str, io_properties: tuple[tuple[str, str], ...]) -> FileSystem:
    return PyArrowFileIO(dict(io_properties)).fs_by_scheme(scheme, host)


def open_output(location: str, io_properties: Mapping[str, str]) -> pa.NativeFile:
    """A binary sink for a new file; folders are made. Close it to complete the file. Raises OSError."""
    filesystem, path = filesystem_of(location, io_properties)
    return filesystem.open_output_stream(path, buffer_size=_BUFFER)


def open_input(location: str, io_properties: Mapping[str, str]) -> pa.NativeFile:
    """A file for random reads. Raises FileNotFoundError, OSError."""
    filesystem, path = filesystem_of(location, io_properties)
    return filesystem.open_input_file(path)


def file_sizes(locations: Iterable[str], io_properties: Mapping[str, str]) -> dict[str, int | None]:
    """Size in bytes of each file, None for one that does not exist. Raises OSError when the store cannot be asked."""

    def size(location: str) -> int | None:
        filesystem, path = filesystem_of(location, io_properties)
        info = filesystem.get_file_info(path)
        return None if info.type is not FileType.File else int(info.size)

    wanted = list(dict.fromkeys(locations))
    if len(wanted) <= _LOOKUPS:
        return {location: size(location) for location in wanted}
    with ThreadPoolExecutor(min(_LOOKUPS, len(wanted))) as pool:
        return dict(zip(wanted, pool.map(size, wanted), strict=True))


def absent(locations: Iterable[str], io_properties: Mapping[str, str]) -> tuple[str, ...]:
    """Those locations that have no file. Raises OSError when the store cannot be asked."""
    return tuple(location for location, size in file_sizes(locations, io_properties).items() if size is None)


_IO_PREFIXES = ("adls.", "client.", "gcs.", "hdfs.", "hf.", "oss.", "s3.", "DEFAULT_")
_IO_NAMES = frozenset({"buffer-size", "py-io-impl"})


def io_properties_of(properties: Mapping[str, str]) -> dict[str, str]:
    """Those properties that a store needs: endpoints and credentials of files, never the catalog's own."""
    return {k: v for k, v in properties.items() if k.startswith(_IO_PREFIXES) or k in _IO_NAMES}
