"""The files of a table as removal sees them: what its metadata, manifest lists and manifests name.

`IcebergFiles` implements the port `TableFiles` of `maintain/removal.py`. Manifests are read without a cache: a removal
reads each once, and must not displace what commits need.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestEntryStatus, read_manifest_list
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table

from calve.catalog.connect import Catalog
from calve.catalog.discard import discard_expired
from calve.catalog.failures import loading, trying
from calve.catalog.rest import checks_requirements_itself
from calve.errors import TransientError
from calve.iceberg.files.avro import read_entries
from calve.iceberg.files.manifest_cache import naming_damaged
from calve.iceberg.files.store import file_sizes, io_properties_of
from calve.iceberg.snapshot.expiry import refusal_of
from calve.iceberg.snapshot.history import NamedSink, named_sinks
from calve.model.spec import TableName
from calve.storage.filesystems import task_properties_of

DATA, DELETES, STATISTICS, MANIFESTS, LISTS = "data", "deletes", "statistics", "manifests", "manifest lists"
KINDS = (DATA, DELETES, STATISTICS, MANIFESTS, LISTS)

_LOADING_MODE = "snapshot-loading-mode"


@dataclass(frozen=True)
class NamedFile:
    """A file that a manifest or a manifest list names."""

    path: str
    kind: str
    size: int = 0


@dataclass(frozen=True)
class TableNames:
    """What one state of a table names."""

    uuid: str
    lists: Mapping[int, str]
    """The manifest list of each snapshot."""
    statistics: frozenset[str] = frozenset()
    sinks: tuple[NamedSink, ...] = ()
    """Sinks that may still commit to the table."""
    refusal: str = ""
    """Why no file may be removed; empty if files may be."""


def load_whole(catalog: Catalog, name: TableName) -> Table | None:
    """Load a table with all its snapshots, whatever the catalog's properties say; None if it does not exist.

    Raises TransientError.
    """
    mode = catalog.properties.get(_LOADING_MODE)
    with loading(f'loading table "{name}"'):
        try:
            if mode is not None:
                catalog.properties[_LOADING_MODE] = "all"
            return catalog.load_table(name.identifier)
        except NoSuchTableError:
            return None
        finally:
            if mode is not None:
                catalog.properties[_LOADING_MODE] = mode


def live_files(io: FileIO, manifest: str) -> Iterator[NamedFile]:
    """The files that a manifest adds or keeps. Raises FileNotFoundError, OSError."""
    with naming_damaged(manifest):
        with io.new_input(manifest).open() as stream:
            content = stream.read()
        for entry in read_entries(content, version=3):
            if entry.status != ManifestEntryStatus.DELETED:
                file = entry.data_file
                kind = DATA if file.content == DataFileContent.DATA else DELETES
                yield NamedFile(file.file_path, kind, file.file_size_in_bytes)


class IcebergFiles:
    """The files of one table of a catalog. Not thread-safe."""

    def __init__(self, catalog: Catalog, name: TableName) -> None:
        self._catalog, self._name = catalog, name
        self._table: Table | None = None

    def load(self) -> TableNames | None:
        """Load the newest metadata, with all snapshots; None if the table is gone. Raises TransientError."""
        self._table = load_whole(self._catalog, self._name)
        if self._table is None:
            return None
        metadata = self._table.metadata
        statistics = (*metadata.statistics, *metadata.partition_statistics)
        return TableNames(
            str(metadata.table_uuid),
            {one.snapshot_id: one.manifest_list for one in metadata.snapshots},
            frozenset(one.statistics_path for one in statistics),
            named_sinks(metadata.properties),
            refusal_of(self._table),
        )

    def lost_refs(self, removed: frozenset[int]) -> frozenset[int] | None:
        """Which of these removed snapshots a ref named in the metadata before they were removed.

        Catalogs whose metadata this process writes refuse an expiry that would lose a ref. The server of a REST catalog
        may not, so the last metadata that had these snapshots is read; None if it is not in the log any more.
        """
        table = self._loaded
        if not checks_requirements_itself(self._catalog):
            return frozenset()
        for entry in reversed(table.metadata.metadata_log):
            try:
                before = FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
            except FileNotFoundError:
                return None
            except (OSError, ValueError) as error:
                raise TransientError("old metadata could not be read", detail=str(error)) from error
            if any(before.snapshot_by_id(one) is not None for one in removed):
                return frozenset(ref.snapshot_id for ref in before.refs.values()) & removed
        return None

    def manifests_in(self, manifest_list: str) -> Sequence[NamedFile]:
        """Return the manifests of a list. Raises FileNotFoundError, OSError."""
        with naming_damaged(manifest_list):
            read = read_manifest_list(self._loaded.io.new_input(manifest_list))
            return [NamedFile(one.manifest_path, MANIFESTS, one.manifest_length) for one in read]

    def files_in(self, manifest: str) -> Sequence[NamedFile]:
        """Return the files that a manifest adds or keeps. Raises FileNotFoundError, OSError."""
        return list(live_files(self._loaded.io, manifest))

    def task_properties(self) -> dict[str, str]:
        """What opens its files in a task. Raises OSError."""
        return task_properties_of(self._loaded.io.properties)

    def sizes_of(self, paths: Sequence[str]) -> Mapping[str, int]:
        """Return the sizes of files, 0 for missing ones. Raises TransientError."""
        with trying(f'looking for files of "{self._name}"'):
            sizes = file_sizes(paths, io_properties_of(self._loaded.io.properties))
        return {path: size or 0 for path, size in sizes.items()}

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files; missing ones are fine. Raises OSError if one could not be removed."""
        discard_expired(self._loaded.io, paths)

    @property
    def _loaded(self) -> Table:
        if self._table is None:
            raise TransientError(f'table "{self._name}" is not loaded')
        return self._table
