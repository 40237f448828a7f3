"""Manifests and manifest lists of a table, read once: what a snapshot consists of, and what it refers to."""

import errno
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table.snapshots import Snapshot

from calve.iceberg.listing import Line, ManifestLists
from calve.iceberg.manifests import OWN_PREFIX, entries_of, is_live

_KNOWN_MANIFESTS = 1024


class ManifestReader:
    """Manifests and their lists; they never change, so the last ones stay in memory."""

    def __init__(self) -> None:
        self.lists = ManifestLists()
        self._entries: OrderedDict[str, tuple[ManifestEntry, ...]] = OrderedDict()

    def lines_of(self, io: FileIO, snapshot: Snapshot) -> tuple[Line, ...]:
        """The live manifests of a snapshot. Raises OSError."""
        return tuple(line for line in self.all_lines_of(io, snapshot) if is_live(line.manifest))

    def all_lines_of(self, io: FileIO, snapshot: Snapshot) -> tuple[Line, ...]:
        """The manifests of a snapshot. Raises OSError."""
        with _intact(snapshot.manifest_list):
            return self.lists.read(io, snapshot.manifest_list)

    def entries_of(self, io: FileIO, manifest: ManifestFile) -> tuple[ManifestEntry, ...]:
        """The live entries of a manifest. Raises OSError."""
        path = manifest.manifest_path
        known = self._entries.get(path)
        if known is None:
            own = path.rpartition("/")[2].startswith(OWN_PREFIX)
            with _intact(path):
                found = entries_of(io, manifest) if own else manifest.fetch_manifest_entry(io, discard_deleted=True)
            known = self._entries[path] = tuple(found)
            while len(self._entries) > _KNOWN_MANIFESTS:
                self._entries.popitem(last=False)
        return known


def references(
    io: FileIO, manifests: ManifestReader, snapshots: Iterable[Snapshot], *, missing_ok: bool = False
) -> set[str]:
    """Manifest lists, manifests and data files of some snapshots. Raises OSError.

    With `missing_ok`, files that are gone are passed over: whoever removed them looked after what they refer to.
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


@contextmanager
def _intact(location: str) -> Iterator[None]:
    """Turn what a reader of Avro files raises for a damaged one into an OSError that names it."""
    try:
        yield
    except (ValueError, LookupError, TypeError, EOFError, zlib.error) as error:
        raise OSError(errno.EIO, f"the file is damaged: {error}", location) from error
