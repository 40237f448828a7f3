"""Files of a table by location, on the driver and on executors. They are removed in `catalog/discard.py` only.

Where the files of a table go: as its properties say (`write.data.path`, `write.object-storage.enabled`).
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


def remove_new(locations: Iterable[str], io_properties: Mapping[str, str], why: str = "their writer failed") -> None:
    """Remove files that their writer made and told nobody about; one that stays is an orphan."""
    discard(StoreIO(dict(io_properties)), locations, why)


_DATA_PATH = "write.data.path"


@dataclass(frozen=True)
class _Folder:
    """All that providers ask of a partition."""

    path: str

    def to_path(self) -> str:
        return self.path


class DataLocations:
    """Locations of new files below the folder `data_location`."""

    def __init__(self, data_location: str, table_properties: Mapping[str, str]) -> None:
        self._provider = location_provider(data_location, {**table_properties, _DATA_PATH: data_location})

    def of(self, name: str, partition_folder: str = "") -> str:
        """The location of a file, in the folder of its partition if it has one."""
        folder = cast("PartitionKey", _Folder(partition_folder)) if partition_folder else None
        return self._provider.new_data_location(name, folder)
