"""A table as orphan removal sees it: its folders, the files that its metadata names, its sinks, and its holds."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import read_manifest_list
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType

from calve.catalog.connect import Catalog
from calve.catalog.failures import trying
from calve.catalog.guarded import locations_of
from calve.errors import CalveError, InvalidInput
from calve.iceberg.files.names import own_name, table_mark
from calve.iceberg.snapshot.expired_files import live_files, load_whole
from calve.iceberg.snapshot.expiry import refusal_of
from calve.iceberg.snapshot.history import NamedSink, named_sinks
from calve.iceberg.snapshot.holds import PREFIX, is_past_its_age
from calve.model.spec import TableName
from calve.storage.listing import store_and_path

_PARALLEL = 8


@dataclass(frozen=True)
class TableView:
    """One state of a table."""

    table: Table

    @property
    def uuid(self) -> str:
        """Its UUID."""
        return str(self.table.metadata.table_uuid)

    @property
    def mark(self) -> str:
        """The part of the UUID in the names of its files."""
        return table_mark(self.table.metadata.table_uuid)

    @property
    def io(self) -> FileIO:
        """Access to its files."""
        return self.table.io

    @property
    def location(self) -> str:
        """Its folder."""
        return self.table.location()

    @property
    def folders(self) -> tuple[str, ...]:
        """Its folder, and those outside of it that its properties name for data or metadata."""
        provider = locations_of(self.table)
        found = [self.location.rstrip("/")]
        for other in (provider.data_path.rstrip("/"), provider.metadata_path.rstrip("/")):
            if not any(is_below(other, folder) for folder in found):
                found.append(other)
        return tuple(found)

    @property
    def refusal(self) -> str:
        """Why no file may be removed; empty if files may be."""
        return refusal_of(self.table)

    @property
    def last_sequence_number(self) -> int:
        """The greatest sequence number of its snapshots."""
        return max((one.sequence_number or 0 for one in self.table.metadata.snapshots), default=0)

    @property
    def sinks(self) -> tuple[NamedSink, ...]:
        """The sinks that may still commit to it."""
        return named_sinks(self.table.metadata.properties)

    def holds(self, now_ms: int) -> frozenset[str]:
        """The tags of work in progress that is based on a snapshot: compactions, whose files nothing names yet."""
        metadata = self.table.metadata
        return frozenset(
            name
            for name, ref in metadata.refs.items()
            if name.startswith(PREFIX) and not is_past_its_age(metadata, ref, now_ms)
        )

    @property
    def own_files(self) -> tuple[str, ...]:
        """The files that the metadata itself names: metadata files and statistics."""
        metadata = self.table.metadata
        logged = [entry.metadata_file for entry in metadata.metadata_log]
        statistics = [one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics)]
        return (self.table.metadata_location, *logged, *statistics)

    @property
    def lists(self) -> frozenset[str]:
        """The manifest lists of all its snapshots."""
        return frozenset(one.manifest_list for one in self.table.metadata.snapshots)

    @property
    def head_lists(self) -> frozenset[str]:
        """The manifest lists of the heads of its branches."""
        metadata = self.table.metadata
        heads = {r.snapshot_id for r in metadata.refs.values() if r.snapshot_ref_type == SnapshotRefType.BRANCH}
        return frozenset(one.manifest_list for one in metadata.snapshots if one.snapshot_id in heads)

    def manifests_in(self, manifest_list: str) -> tuple[str, ...]:
        """The manifests of a list. Raises FileNotFoundError, OSError."""
        with _naming(manifest_list):
            return tuple(one.manifest_path for one in read_manifest_list(self.io.new_input(manifest_list)))

    def files_in(self, manifests: Sequence[str], *, missing_ok: bool = False) -> Iterator[str]:
        """The files that manifests add or keep, a few manifests at a time. Raises FileNotFoundError, OSError."""
        with ThreadPoolExecutor(_PARALLEL) as pool:
            for start in range(0, len(manifests), _PARALLEL):
                read = [
                    pool.submit(self._files_in, m, missing_ok=missing_ok) for m in manifests[start : start + _PARALLEL]
                ]
                for one in read:
                    yield from one.result()

    def _files_in(self, manifest: str, *, missing_ok: bool) -> list[str]:
        try:
            with _naming(manifest):
                return [file.path for file in live_files(self.io, manifest)]
        except FileNotFoundError:
            if missing_ok:
                return []
            raise

    def probe(self, unique: str) -> str:
        """The location of a file with which the clock of the store is read."""
        return locations_of(self.table).new_metadata_location(own_name(self.mark, f"probe-{unique}"))


def view_of(catalog: Catalog, name: TableName) -> TableView:
    """Load the newest state of a table, with all snapshots. Raises TransientError, InvalidInput."""
    table = load_whole(catalog, name)
    if table is None:
        raise InvalidInput(f'table "{name}" does not exist')
    return TableView(table)


def locations_in(catalog: Catalog, besides: TableName) -> Iterator[tuple[str, str | None]]:
    """Name and location of the other tables of a catalog, None if a table cannot be loaded. Raises TransientError."""
    with trying("listing the tables of the catalog"):
        names = [found for level in catalog.list_namespaces() for found in catalog.list_tables(level)]
    for found in names:
        if found != besides.identifier:
            with suppress(NoSuchTableError, NoSuchNamespaceError):
                yield ".".join(found), _location_of(catalog, found)


def _location_of(catalog: Catalog, name: tuple[str, ...]) -> str | None:
    try:
        with trying(f'loading table "{".".join(name)}"'):
            return catalog.load_table(name).location()
    except (CalveError, ValueError, OSError):
        return None


def is_below(location: str, folder: str) -> bool:
    """Whether a location is a folder or below it, whatever the spelling of its store."""
    store, path = store_and_path(location.rstrip("/"))
    other, base = store_and_path(folder.rstrip("/"))
    return store == other and f"{path}/".startswith(f"{base}/")


class _naming:  # noqa: N801 - used like a function
    """Gives the error for a missing or damaged file the location of the file."""

    def __init__(self, location: str) -> None:
        self._location = location

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(error.errno, "missing", self._location) from error
        if isinstance(error, ValueError | LookupError | TypeError | EOFError):
            raise OSError(5, f"the file is damaged: {error}", self._location) from error
