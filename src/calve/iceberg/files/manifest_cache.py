"""Reads manifest lists and manifests, and writes manifest lists. The only reader of both.

These files never change, so the most recent ones stay in memory. A manifest list is written whole by every commit and
differs from the one before by a line or two: lines stay encoded, so that a commit encodes its own lines only, and reads
no list that this process wrote or read before.
"""

import errno
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from cachetools import LRUCache
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    _inherit_from_manifest,
)
from pyiceberg.table.snapshots import Snapshot

from calve.errors import TerminalError
from calve.iceberg.files.avro import RecordFormat, read_entries, read_manifests
from calve.iceberg.files.content import first_row_id_of, inherit_row_ids, with_first_row_id
from calve.iceberg.files.manifests import manifest_file
from calve.model.files import Manifest

_FORMATS = {version: RecordFormat(MANIFEST_LIST_FILE_SCHEMAS[version], "manifest_file") for version in (2, 3)}
_CACHED_LISTS = 4
_CACHED_ENTRIES = 100_000
_SMALL_CACHE = 2_000
"""Entries that may stay although no known list names them any more; each takes about 6 kB."""
_CACHED_NAMES = 256
_PARALLEL_READS = 16

_Inherited = tuple[str, int | None, int | None]
"""A manifest, and what its entries inherit: the sequence number and the first row id that a list states for it."""


@dataclass(frozen=True)
class ManifestLine:
    """A line of a manifest list: one manifest."""

    manifest: ManifestFile
    """Its snapshot id and sequence number are final."""
    _encoded: dict[int, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    def encoded(self, version: int) -> bytes:
        """The line as a list of a table of this format version has it; encoded once."""
        known = self._encoded.get(version)
        if known is None:
            known = self._encoded[version] = _FORMATS[version].encode(self.manifest)
        return known


@dataclass(frozen=True)
class ListHeader:
    """The snapshot that a manifest list belongs to."""

    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    first_row_id: int | None = None
    """The table's next row id, in tables of format version 3."""

    @property
    def format_version(self) -> int:
        """The format version of the list."""
        return 2 if self.first_row_id is None else 3

    def to_meta(self) -> dict[str, str]:
        """The header as it is written to the file."""
        lineage = {} if self.first_row_id is None else {"first-row-id": str(self.first_row_id)}
        return {
            "snapshot-id": str(self.snapshot_id),
            "parent-snapshot-id": "null" if self.parent_id is None else str(self.parent_id),
            "sequence-number": str(self.sequence_number),
            **lineage,
            "format-version": str(self.format_version),
        }


class ManifestCache:
    """Caches manifest lists and manifests of one or several tables. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._lists: LRUCache[str, tuple[ManifestLine, ...]] = LRUCache(_CACHED_LISTS)
        self._names: LRUCache[str, tuple[str, ...]] = LRUCache(_CACHED_NAMES)
        self._entries: OrderedDict[_Inherited, tuple[ManifestEntry, ...]] = OrderedDict()
        self._entry_count = 0

    def lines_of(self, io: FileIO, snapshot: Snapshot | None) -> tuple[ManifestLine, ...]:
        """The live manifests of a snapshot. Raises OSError."""
        return tuple(line for line in self.all_lines_of(io, snapshot) if _is_live(line.manifest))

    def all_lines_of(self, io: FileIO, snapshot: Snapshot | None) -> tuple[ManifestLine, ...]:
        """The manifests of a snapshot, including those whose files it removed from the table. Raises OSError."""
        return () if snapshot is None else self.read_list(io, snapshot.manifest_list)

    def read_list(self, io: FileIO, location: str) -> tuple[ManifestLine, ...]:
        """The lines of a manifest list. Raises OSError."""
        with self._lock:
            lines = self._lists.get(location)
        if lines is None:
            with naming_damaged(location):
                lines = tuple(ManifestLine(manifest) for manifest in _read_list(io, location))
            with self._lock:
                self._lists[location] = lines
        return lines

    def write_list(self, io: FileIO, location: str, header: ListHeader, lines: Iterable[ManifestLine]) -> int:
        """Write a manifest list; returns the number of row ids that it hands out. Raises OSError.

        In tables of format version 3, every manifest of data files that has no first row id gets one.
        """
        written, given = _with_row_ids(tuple(lines), header.first_row_id)
        version = header.format_version
        encoded = [line.encoded(version) for line in written]
        _FORMATS[version].write(io.new_output(location), header.to_meta(), encoded)
        with self._lock:
            self._lists[location] = written
            if self._entry_count > _SMALL_CACHE:
                self._forget_unnamed()
        return given

    def entries_of(self, io: FileIO, *manifests: ManifestFile) -> list[ManifestEntry]:
        """The live entries of manifests from any writer, with everything they inherit. Raises OSError."""
        wanted = {_inherited(manifest): manifest for manifest in manifests}
        with self._lock:
            found = {known: self._entries[known] for known in wanted if known in self._entries}
        missing = [known for known in wanted if known not in found]
        if missing:
            read = dict(zip(missing, _read_all(io, [wanted[known] for known in missing]), strict=True))
            self._remember(read, keep=wanted.keys())
            found |= read
        return [entry for manifest in manifests for entry in found[_inherited(manifest)]]

    def files_of(self, io: FileIO, manifest: Manifest) -> tuple[str, ...]:
        """The locations of a manifest's files; the manifest need not be in the table yet. Raises OSError."""
        with self._lock:
            known = self._names.get(manifest.path)
        if known is None:
            listed = manifest_file(manifest, snapshot_id=0, sequence_number=0)
            known = tuple(entry.data_file.file_path for entry in live_entries(io, listed))
            with self._lock:
                self._names[manifest.path] = known
        return known

    def _remember(self, read: dict[_Inherited, tuple[ManifestEntry, ...]], keep: Collection[_Inherited]) -> None:
        """Cache these entries, and limit only the others: one scan of a large table needs all of its manifests."""
        with self._lock:
            for known, entries in read.items():
                if known not in self._entries:
                    self._entries[known] = entries
                    self._entry_count += len(entries)
            while self._entry_count > _CACHED_ENTRIES and next(iter(self._entries)) not in keep:
                self._entry_count -= len(self._entries.popitem(last=False)[1])

    def _forget_unnamed(self) -> None:
        """Drop manifests that left the table: a process that commits for months would keep all that it ever read."""
        named = {line.manifest.manifest_path for lines in self._lists.values() for line in lines}
        for known in [known for known in self._entries if known[0] not in named]:
            self._entry_count -= len(self._entries.pop(known))


def live_entries(io: FileIO, manifest: ManifestFile) -> tuple[ManifestEntry, ...]:
    """Read the live entries of one manifest, with everything they inherit. Raises OSError."""
    with naming_damaged(manifest.manifest_path):
        with io.new_input(manifest.manifest_path).open() as stream:
            content = stream.read()
        entries = read_entries(content, version=3)
        live = (_inherit_from_manifest(e, manifest) for e in entries if e.status != ManifestEntryStatus.DELETED)
        return tuple(inherit_row_ids(live, manifest))


def _inherited(manifest: ManifestFile) -> _Inherited:
    return manifest.manifest_path, manifest.sequence_number, first_row_id_of(manifest)


def _read_list(io: FileIO, location: str) -> list[ManifestFile]:
    with io.new_input(location).open() as stream:
        return list(read_manifests(stream.read()))


def _with_row_ids(lines: tuple[ManifestLine, ...], first_row_id: int | None) -> tuple[tuple[ManifestLine, ...], int]:
    """Give ids to the manifests of data files that have none, from `first_row_id` on; also how many were given."""
    if first_row_id is None:
        if any(first_row_id_of(line.manifest) is not None for line in lines):
            raise TerminalError("a manifest list of format version 2 cannot hold row ids")
        return lines, 0
    following, given = first_row_id, list[ManifestLine]()
    for line in lines:
        manifest = line.manifest
        if manifest.content is ManifestContent.DELETES or first_row_id_of(manifest) is not None:
            given.append(line)
            continue
        given.append(ManifestLine(with_first_row_id(manifest, following)))
        following += (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
    return tuple(given), following - first_row_id


def references(
    io: FileIO, manifests: ManifestCache, snapshots: Iterable[Snapshot], *, missing_ok: bool = False
) -> set[str]:
    """The manifest lists, manifests and data files of some snapshots. Raises OSError.

    With `missing_ok`, files that do not exist are skipped: the process that removed them also removed what they name.
    """
    found: set[str] = set()
    for snapshot in snapshots:
        found.add(snapshot.manifest_list)
        try:
            lines = manifests.all_lines_of(io, snapshot)
        except FileNotFoundError:
            if missing_ok:
                continue
            raise
        for line in lines:
            if line.manifest.manifest_path in found:
                continue
            found.add(line.manifest.manifest_path)
            try:
                entries = manifests.entries_of(io, line.manifest)
            except FileNotFoundError:
                if missing_ok:
                    continue
                raise
            found.update(entry.data_file.file_path for entry in entries)
    return found


def _read_all(io: FileIO, manifests: Sequence[ManifestFile]) -> list[tuple[ManifestEntry, ...]]:
    if len(manifests) == 1:
        return [live_entries(io, manifests[0])]
    with ThreadPoolExecutor(min(_PARALLEL_READS, len(manifests))) as pool:
        return list(pool.map(lambda manifest: live_entries(io, manifest), manifests))


def _is_live(manifest: ManifestFile) -> bool:
    """False when all files of a manifest have left the table; missing counts prove nothing."""
    counts = (manifest.added_files_count, manifest.existing_files_count)
    return None in counts or any(counts)


@contextmanager
def naming_damaged(location: str) -> Iterator[None]:
    """Turn the errors of Avro readers for a damaged file into an OSError that names it."""
    try:
        yield
    except (ValueError, LookupError, TypeError, EOFError, zlib.error) as error:
        raise OSError(errno.EIO, f"the file is damaged: {error}", location) from error
