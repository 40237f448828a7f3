"""The memory and the threads that lookups of keys and totals of views use, in one place for all sinks of a process.

Caches take bytes from one budget and give them back when they drop something, or when their sink ends. Whoever comes
first gets them: a cache that finds none left works without, which costs time and never the result. `CALVE_CACHE_MEMORY`
sets the budget of a process; it is read when the first sink starts. What lookups read and do not keep takes as many
bytes again at most, for a moment.
"""

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Condition, Lock, RLock

from calve.spark.session import machine_cpus, machine_memory
from calve.sql.values import parse_size

THREADS = machine_cpus()
"""Threads of one lookup; numpy and Arrow work in them without holding the interpreter."""
_LEAST, _MOST = 256 << 20, 4 << 30
_PART = 12
CACHE_MEMORY = "CALVE_CACHE_MEMORY"
"""The environment variable with the budget, a size such as '2GB'."""


def memory_on(machine: int) -> int:
    """Bytes that the caches of a process may take on a machine with this much memory."""
    return min(max(machine // _PART, _LEAST), _MOST)


class MemoryBudget:
    """Bytes that several caches share. Several threads may use it."""

    def __init__(self, most: int) -> None:
        self._most, self._taken = most, 0
        self._lock = RLock()  # the garbage collector may give back the share of a cache while this thread holds it
        self._read = 0
        self._read_less = Condition()

    @property
    def most(self) -> int:
        """Bytes that all shares may take together."""
        return self._most

    @property
    def taken(self) -> int:
        """Bytes that shares have taken."""
        return self._taken

    def share(self, owner: object) -> "MemoryShare":
        """What one cache has of it; given back when it is closed, or the cache itself, `owner`, is gone."""
        share = MemoryShare(self)
        weakref.finalize(owner, share.give_all)
        return share

    @contextmanager
    def reading(self, size: int) -> Iterator[None]:
        """Read so many bytes in the block, beside those of shares; wait until all reads together fit into the budget.

        A read that is larger than the budget waits until it is alone, so no thread may begin one within another.
        """
        with self._read_less:
            self._read_less.wait_for(lambda: not self._read or self._read + size <= self._most)
            self._read += size
        try:
            yield
        finally:
            with self._read_less:
                self._read -= size
                self._read_less.notify_all()

    def grow(self, size: int) -> bool:
        """Take bytes, or none if there are not enough left."""
        with self._lock:
            fits = self._taken + size <= self._most
            self._taken += size if fits else 0
            return fits

    def shrink(self, size: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._taken -= size


NO_MEMORY = MemoryBudget(0)
"""For caches that keep nothing."""
UNBOUNDED = MemoryBudget(1 << 62)
"""For caches with limits of their own, in tests."""


_first = Lock()


def process_memory() -> MemoryBudget:
    """The budget of this process. Raises InvalidInput if it is set, and not to a size."""
    with _first:  # sinks that start at once would get a budget each
        return _process_memory()


@cache
def _process_memory() -> MemoryBudget:
    given = os.environ.get(CACHE_MEMORY, "")
    return MemoryBudget(parse_size(given) if given else memory_on(machine_memory()))


def limit_caches(size: str) -> None:
    """Set the budget of this process, before it starts a sink, and of those that it starts. Raises InvalidInput."""
    parse_size(size)
    os.environ[CACHE_MEMORY] = size


class MemoryShare:
    """What one cache has taken of a budget. Its owner calls it under a lock of its own."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.taken = 0
        self.closed = False
        """Whether nothing can be taken any more."""

    def take(self, size: int) -> bool:
        """Take bytes; False, and none taken, if there are not enough left."""
        if self.closed or not self._budget.grow(size):
            return False
        self.taken += size
        return True

    def give(self, size: int) -> None:
        """Give some of the bytes back; a closed share has none."""
        if not self.closed:
            self._budget.shrink(size)
            self.taken -= size

    def give_all(self) -> None:
        """Give everything back."""
        self.give(self.taken)

    def close(self) -> None:
        """Give everything back, and take nothing any more: the sink of the cache has ended."""
        self.give_all()
        self.closed = True
