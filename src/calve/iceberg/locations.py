"""Where the files of a table go: as its properties say (`write.data.path`, `write.object-storage.enabled`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from pyiceberg.partitioning import PartitionKey

from calve.catalog.guarded import location_provider

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
