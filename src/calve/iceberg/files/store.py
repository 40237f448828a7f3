"""Opens and looks up files of a table by location, on the driver and on executors; chooses locations of new files.

Locations follow the table's properties (`write.data.path`, `write.object-storage.enabled`). Only `catalog/discard.py`
removes files.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
from pyarrow.fs import FileType
from pyiceberg.partitioning import PartitionKey

from calve.catalog.discard import discard
from calve.catalog.guarded import location_provider
from calve.storage.filesystems import StoreIO, filesystem_of, io_properties_of

__all__ = ["absent", "file_sizes", "filesystem_of", "io_properties_of", "open_input", "open_output", "remove_new"]

_BUFFER = 1 << 20
_LOOKUPS = 16
"""Parallel requests when many files are looked up; matters for object stores only."""


def open_output(location: str, io_properties: Mapping[str, str]) -> pa.NativeFile:
    """Open a new file for writing and create its folders. Close it to complete the file. Raises OSError."""
    filesystem, path = filesystem_of(location, io_properties)
    return filesystem.open_output_stream(path, buffer_size=_BUFFER)


def open_input(location: str, io_properties: Mapping[str, str]) -> pa.NativeFile:
    """Open a file for random reads. Raises FileNotFoundError, OSError."""
    filesystem, path = filesystem_of(location, io_properties)
    return filesystem.open_input_file(path)


def file_sizes(locations: Iterable[str], io_properties: Mapping[str, str]) -> dict[str, int | None]:
    """The size of each file in bytes, None if it does not exist. Raises OSError if the store cannot be reached."""

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
    """The locations that have no file. Raises OSError if the store cannot be reached."""
    return tuple(location for location, size in file_sizes(locations, io_properties).items() if size is None)


def remove_new(locations: Iterable[str], io_properties: Mapping[str, str], why: str = "their writer failed") -> None:
    """Remove new files that nothing refers to yet; a file whose removal fails is an orphan."""
    discard(StoreIO(dict(io_properties)), locations, why)


_DATA_PATH = "write.data.path"


@dataclass(frozen=True)
class _Folder:
    """The part of `PartitionKey` that location providers use."""

    path: str

    def to_path(self) -> str:
        return self.path


class DataLocations:
    """Chooses locations of new files below the folder `data_location`."""

    def __init__(self, data_location: str, table_properties: Mapping[str, str]) -> None:
        self._provider = location_provider(data_location, {**table_properties, _DATA_PATH: data_location})

    def of(self, name: str, partition_folder: str = "") -> str:
        """The location of a file, in the folder of its partition if it has one."""
        folder = cast("PartitionKey", _Folder(partition_folder)) if partition_folder else None
        return self._provider.new_data_location(name, folder)
