"""Manifest lists: the manifests of one snapshot.

A list is written whole by every commit and differs from the one before by a line or two. Lines stay encoded in memory,
so that a commit encodes its own lines only, and reads no list that this process wrote or read before.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestFile, read_manifest_list

from calve.iceberg.avro import RecordFormat

_FORMAT = RecordFormat(MANIFEST_LIST_FILE_SCHEMAS[2], "manifest_file")
_KNOWN = 4


@dataclass(frozen=True)
class Line:
    """A manifest in a list."""

    manifest: ManifestFile
    encoded: bytes

    @classmethod
    def of(cls, manifest: ManifestFile) -> "Line":
        """With its snapshot id and sequence number final."""
        return cls(manifest, _FORMAT.encode(manifest))


@dataclass(frozen=True)
class ListHeader:
    """Which snapshot a list belongs to."""

    snapshot_id: int
    parent_id: int | None
    sequence_number: int

    def to_meta(self) -> dict[str, str]:
        """As it is written into the file."""
        return {
            "snapshot-id": str(self.snapshot_id),
            "parent-snapshot-id": "null" if self.parent_id is None else str(self.parent_id),
            "sequence-number": str(self.sequence_number),
            "format-version": "2",
        }


class ManifestLists:
    """Lists by location; the last few stay in memory."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[Line, ...]] = OrderedDict()

    def read(self, io: FileIO, location: str) -> tuple[Line, ...]:
        """The lines of a list. Raises OSError."""
        lines = self._known.get(location)
        if lines is None:
            lines = tuple(Line.of(manifest) for manifest in read_manifest_list(io.new_input(location)))
            self._remember(location, lines)
        return lines

    def write(self, io: FileIO, location: str, header: ListHeader, lines: Iterable[Line]) -> None:
        """Write a list. Raises OSError."""
        written = tuple(lines)
        _FORMAT.write(io.new_output(location), header.to_meta(), [line.encoded for line in written])
        self._remember(location, written)

    def _remember(self, location: str, lines: tuple[Line, ...]) -> None:
        self._known[location] = lines
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
