"""Which parts an index has, and of which data files: one small record, checked as a whole.

A run is a set of parts whose entries were sorted together. What a manifest says of itself (its name, the table, the
key) is compared with what is asked for, so that the record of another table or an older one under its name is noticed.
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
    """A data file. One with the same path and another size is another file."""

    path: str
    size: int
    rows: int


@dataclass(frozen=True)
class Run:
    """Entries of some data files; the file of a place is the number of one of them."""

    files: tuple[IndexedFile, ...]
    widths: tuple[int, ...]
    """Words of each column of the key."""
    exact: bool
    """Whether hashes tell keys apart, so that no key is stored."""
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """Entries."""
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True)
class IndexOwner:
    """Whose index it is: the table, and the fields of the key."""

    table_uuid: str
    key_ids: tuple[int, ...]


@dataclass(frozen=True)
class IndexManifest:
    """An index. `name` is that of its record."""

    name: str
    owner: IndexOwner
    runs: tuple[Run, ...] = ()

    @property
    def covered(self) -> frozenset[IndexedFile]:
        """Data files whose rows are all in it, but for deleted ones."""
        return frozenset(file for run in self.runs for file in run.files)

    @property
    def rows(self) -> int:
        """Entries of all runs."""
        return sum(run.rows for run in self.runs)

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for run in self.runs for part in run.parts)

    @property
    def part_names(self) -> set[str]:
        """Of all runs."""
        return {part.name for run in self.runs for part in run.parts}

    def encoded(self) -> bytes:
        """The record: a digest, and the rest compressed."""
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
        """Inverse of `encoded`. Raises DamagedIndex for what is not whole, or not what it should be."""
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
