"""The set of files that were handed out, small enough for millions of them.

A file is known by 16 bytes of a hash of its path, with its time stamp and size: 32 bytes each in three arrays, sorted
by hash. Two paths with the same hash would need some 10^19 files.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from calve.listing import KnownFile

_HASH = 16
_RECENT_SHARE = 16
"""The newer part is merged into the larger one when it is this fraction of it."""


@dataclass(frozen=True)
class Change:
    """A file that is not what it was when it was handed out."""

    now: KnownFile
    mtime_ns: int
    size: int


@dataclass(frozen=True, eq=False)
class SeenFiles:
    """A set that only grows: one large sorted part, and what came since, so that a few more files cost little."""

    hashes: NDArray[np.bytes_]
    stamps: NDArray[np.int64]
    """Time stamp and size, in the order of the hashes."""
    recent: "SeenFiles | None" = None

    @classmethod
    def of(cls, files: Iterable[KnownFile]) -> "SeenFiles":
        """A set of these files."""
        listed = list(files)
        return cls(*_sorted(_hashes(listed), _stamps(listed)))

    def __len__(self) -> int:
        return len(self.hashes) + (len(self.recent) if self.recent else 0)

    def with_files(self, files: Iterable[KnownFile]) -> "SeenFiles":
        """This set and some more files."""
        more = SeenFiles.of(files)
        recent = more if self.recent is None else self.recent.merged(more)
        if len(recent) * _RECENT_SHARE > len(self.hashes):
            return self.merged(recent)
        return SeenFiles(self.hashes, self.stamps, recent)

    def merged(self, other: "SeenFiles") -> "SeenFiles":
        """The sorted parts of both as one."""
        hashes = np.concatenate([self.hashes, other.hashes])
        return SeenFiles(*_sorted(hashes, np.concatenate([self.stamps, other.stamps])))

    def compare(self, listed: Sequence[KnownFile]) -> tuple[list[KnownFile], list[Change]]:
        """The files that are not in the set, and those that changed since."""
        fresh, changed = self._compare(listed)
        if self.recent is None:
            return fresh, changed
        fresh, more = self.recent.compare(fresh)
        return fresh, changed + more

    def _compare(self, listed: Sequence[KnownFile]) -> tuple[list[KnownFile], list[Change]]:
        if not len(self.hashes) or not listed:
            return list(listed), []
        hashes = _hashes(listed)
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        known = self.hashes[places] == hashes
        then = self.stamps[places]
        differs = known & (then != _stamps(listed)).any(axis=1)
        changed = [Change(listed[i], int(then[i][0]), int(then[i][1])) for i in np.flatnonzero(differs).tolist()]
        return [listed[i] for i in np.flatnonzero(~known).tolist()], changed

    def to_bytes(self) -> bytes:
        """For a state location."""
        whole = self if self.recent is None else self.merged(self.recent)
        return whole.hashes.tobytes() + np.ascontiguousarray(whole.stamps, "<i8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "SeenFiles":
        """Inverse of `to_bytes`."""
        count = len(data) // (_HASH + 16)
        hashes = np.frombuffer(data, f"S{_HASH}", count)
        return cls(hashes, np.frombuffer(data, "<i8", count * 2, count * _HASH).reshape(-1, 2).astype(np.int64))


def _stamps(files: Sequence[KnownFile]) -> NDArray[np.int64]:
    return np.array([(f.mtime_ns, f.size) for f in files], np.int64).reshape(-1, 2)


def _hashes(files: Sequence[KnownFile]) -> NDArray[np.bytes_]:
    data = b"".join(blake2b(f.path.encode(errors="surrogateescape"), digest_size=_HASH).digest() for f in files)
    return np.frombuffer(data, f"S{_HASH}")


def _sorted(hashes: NDArray[np.bytes_], stamps: NDArray[np.int64]) -> tuple[NDArray[np.bytes_], NDArray[np.int64]]:
    """By hash; of a file that was given twice the last one stays."""
    backwards = hashes[::-1]
    unique, first = np.unique(backwards, return_index=True)
    return unique, stamps[::-1][first]
