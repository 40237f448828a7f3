"""Reads manifest lists and manifests, and writes manifest lists. The only reader of both.

These files never change, so the most recent ones stay in memory. A manifest list is written whole by every commit and
differs from the one before by a line or two: lines stay encoded, so that a commit encodes its own lines only, and reads
no list that this process wrote or read before.
"""

import errno
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from cachetools import LRUCache
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    _inherit_from_manifest,
    read_manifest_list,
)
from pyiceberg.table.snapshots import Snapshot

from calve.iceberg.files.avro import RecordFormat, read_entries
from calve.iceberg.files.manifests import manifest_file
from calve.model.files import Manifest

_FORMAT = RecordFormat(MANIFEST_LIST_FILE_SCHEMAS[2], "manifest_file")
_CACHED_LISTS = 4
_CACHED_ENTRIES = 100_000
_CACHED_NAMES = 256
_PARALLEL_READS = 16


@dataclass(frozen=True)
class ManifestLine:
    """A line of a manifest list: one manifest."""

    manifest: ManifestFile
    encoded: bytes

    @classmethod
    def of(cls, manifest: ManifestFile) -> "ManifestLine":
        """Encode a manifest, whose snapshot id and sequence number are final."""
        return cls(manifest, _FORMAT.encode(manifest))


@dataclass(frozen=True)
class ListHeader:
    """The snapshot that a manifest list belongs to."""

    snapshot_id: int
    parent_id: int | None
    sequence_number: int

    def to_meta(self) -> dict[str, str]:
        """The header as it is written to the file."""
        return {
            "snapshot-id": str(self.snapshot_id),
            "parent-snapshot-id": "null" if self.parent_id is None else str(self.parent_id),
            "sequence-number": str(self.sequence_number),
            "format-version": "2",
        }


class ManifestCache:
    """Caches manifest lists and manifests of one or several tables. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._lists: LRUCache[str, tuple[ManifestLine, ...]] = LRUCache(_CACHED_LISTS)
        self._names: LRUCache[str, tuple[str, ...]] = LRUCache(_CACHED_NAMES)
        self._entries: OrderedDict[str, tuple[ManifestEntry, ...]] = OrderedDict()
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
                lines = tuple(ManifestLine.of(manifest) for manifest in read_manifest_list(io.new_input(location)))
            with self._lock:
                self._lists[location] = lines
        return lines

    def write_list(self, io: FileIO, location: str, header: ListHeader, lines: Iterable[ManifestLine]) -> None:
        """Write a manifest list. Raises OSError."""
        written = tuple(lines)
        _FORMAT.write(io.new_output(location), header.to_meta(), [line.encoded for line in written])
        with self._lock:
            self._lists[location] = written

    def entries_of(self, io: FileIO, *manifests: ManifestFile) -> list[ManifestEntry]:
        """The live entries of manifests from any writer, with everything they inherit. Raises OSError."""
        paths = [manifest.manifest_path for manifest in manifests]
        with self._lock:
            found = {path: self._entries[path] for path in paths if path in self._entries}
        missing = [manifest for manifest in manifests if manifest.manifest_path not in found]
        if missing:
            read = dict(zip((m.manifest_path for m in missing), _read_all(io, missing), strict=True))
            self._remember(read, keep=set(paths))
            found |= read
        return [entry for path in paths for entry in found[path]]

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

    def _remember(self, read: dict[str, tuple[ManifestEntry, ...]], keep: set[str]) -> None:
        """Cache these entries, and limit only the others: one scan of a large table needs all of its manifests."""
        with self._lock:
            for path, entries in read.items():
                if path not in self._entries:
                    self._entries[path] = entries
                    self._entry_count += len(entries)
            while self._entry_count > _CACHED_ENTRIES and next(iter(self._entries)) not in keep:
                self._entry_count -= len(self._entries.popitem(last=False)[1])


def live_entries(io: FileIO, manifest: ManifestFile) -> tuple[ManifestEntry, ...]:
    """Read the live entries of one manifest, with everything they inherit. Raises OSError."""
    with naming_damaged(manifest.manifest_path):
        with io.new_input(manifest.manifest_path).open() as stream:
            content = stream.read()
        entries = read_entries(content, version=3)
        return tuple(_inherit_from_manifest(e, manifest) for e in entries if e.status != ManifestEntryStatus.DELETED)


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
