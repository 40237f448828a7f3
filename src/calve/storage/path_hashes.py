"""Sets of paths as hashes of eight bytes: millions of names in a few megabytes.

Two paths with one hash are taken for the same: a file is kept that could be removed, or is removed one run earlier.
Among ten million paths the probability of that is below one in 100,000.
"""

from array import array
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]


def hash_of(path: bytes) -> int:
    """The hash of a path."""
    return int.from_bytes(blake2b(path, digest_size=8).digest())


def hashes_of(paths: Iterable[bytes]) -> Hashes:
    """The hashes of several paths, in their order."""
    return np.array([hash_of(path) for path in paths], np.uint64)


class PathSet:
    """A set of paths that grows, and can be asked for many paths at once."""

    def __init__(self) -> None:
        self._new: array[int] = array("Q")
        self._sorted: Hashes = np.empty(0, np.uint64)

    def add(self, path: bytes) -> None:
        """Add a path."""
        self._new.append(hash_of(path))

    def __len__(self) -> int:
        self._settle()
        return len(self._sorted)

    def contains(self, hashes: Hashes) -> NDArray[np.bool_]:
        """One flag per hash: whether its path is in the set."""
        self._settle()
        return find(self._sorted, hashes)[0]

    @property
    def hashes(self) -> Hashes:
        """All hashes, ascending."""
        self._settle()
        return self._sorted

    def _settle(self) -> None:
        if self._new:
            self._sorted = np.union1d(self._sorted, np.frombuffer(self._new, np.uint64))
            self._new = array("Q")


def find(ascending: Hashes, hashes: Hashes) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """For each hash whether it is among the ascending ones, and its place there if it is."""
    if not len(ascending):
        return np.zeros(len(hashes), bool), np.zeros(len(hashes), np.intp)
    places = np.minimum(np.searchsorted(ascending, hashes), len(ascending) - 1)
    return ascending[places] == hashes, places
