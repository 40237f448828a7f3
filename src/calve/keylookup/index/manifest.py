"""The manifest of an index: its parts, and the data files that they cover. One small record, verified as a whole.

A run is a set of parts whose entries were sorted together. A manifest states its name, table and key; they are compared
with the expected ones, so that the record of another table, or an older one under the same name, is detected.
"""

import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

from calve.keylookup.index.parts import DamagedIndex, Part

_FORMAT = 1
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class IndexedFile:
    """A data file. The same path with a different size is a different file."""

    path: str
    size: int
    rows: int


@dataclass(frozen=True)
class Run:
    """The entries of some data files; a place refers to a file by its index in `files`."""

    files: tuple[IndexedFile, ...]
    widths: tuple[int, ...]
    """Words of each column of the key."""
    exact: bool
    """Whether hashes are unique per key, so that keys are not stored."""
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """The number of entries."""
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True)
class IndexOwner:
    """The table and the key fields that an index belongs to."""

    table_uuid: str
    key_ids: tuple[int, ...]


@dataclass(frozen=True)
class IndexManifest:
    """An index. `name` is the name of its record."""

    name: str
    owner: IndexOwner
    runs: tuple[Run, ...] = ()

    @property
    def covered(self) -> frozenset[IndexedFile]:
        """The data files whose rows, except for deleted ones, are all in the index."""
        return frozenset(file for run in self.runs for file in run.files)

    @property
    def rows(self) -> int:
        """The number of entries of all runs."""
        return sum(run.rows for run in self.runs)

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for run in self.runs for part in run.parts)

    @property
    def part_names(self) -> set[str]:
        """The names of all parts."""
        return {part.name for run in self.runs for part in run.parts}

    def encoded(self) -> bytes:
        """The record: a digest, followed by the compressed body."""
        body = {
            "format": _FORMAT,
            "name": self.name,
            "table": self.owner.table_uuid,
            "key": list(self.owner.key_ids),
            "runs": [_run_to_json(run) for run in self.runs],
        }
        packed = zlib.compress(json.dumps(body, separators=(",", ":")).encode(), 1)
        return hashlib.sha256(packed).digest() + packed

    @classmethod
    def decoded(cls, name: str, data: bytes, owner: IndexOwner) -> Self:
        """Inverse of `encoded`. Raises DamagedIndex if the record is damaged or belongs to something else."""
        packed = data[_DIGEST_BYTES:]
        if hashlib.sha256(packed).digest() != data[:_DIGEST_BYTES]:
            raise DamagedIndex(name)
        body = json.loads(zlib.decompress(packed))
        if (body["format"], body["name"]) != (_FORMAT, name):
            raise DamagedIndex(name)
        if IndexOwner(body["table"], tuple(body["key"])) != owner:
            raise DamagedIndex(name)
        return cls(name, owner, tuple(_run_from_json(run) for run in body["runs"]))


def _run_to_json(run: Run) -> dict[str, object]:
    return {
        "files": [[file.path, file.size, file.rows] for file in run.files],
        "widths": list(run.widths),
        "exact": run.exact,
        "parts": [asdict(part) for part in run.parts],
    }


def _run_from_json(body: dict[str, Sequence[object]]) -> Run:
    files = tuple(IndexedFile(*entry) for entry in body["files"])  # type: ignore[misc]
    parts = tuple(Part(**part) for part in body["parts"])  # type: ignore[arg-type]
    return Run(files, tuple(body["widths"]), bool(body["exact"]), parts)  # type: ignore[arg-type]
