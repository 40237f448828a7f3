"""A part: entries sorted by hash, as one object of the store.

    page 0 │ page 1 │ ... │ fences: the first hash of each page │ a checksum of each page

Everything is 64-bit words. A page has PAGE entries, column by column: hashes, places (file << 32 | position), and the
words of the keys if hashes are not unique per key. So a lookup of few keys reads only the pages that the fences point
to, and a lookup of many keys reads all of them. Checksums depend on the name of the part, so that another part in its
place is detected.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from calve.keylookup.index.words import Keys, Words, same
from calve.reader.resources import NO_MEMORY, MemoryBudget
from calve.storage.state import StateStore

PAGE = 512
"""The number of entries in a page."""
PART_BYTES = 32 << 20
"""The approximate size of a part; a merge needs a small multiple of it in memory."""
_WORD = 8
_CACHED = 1 << 16
"""Entries that a cache of the processor holds."""
_COPIES = 2
"""A read has the bytes of the store, and columns that it makes of them."""
_MOST_PAGES = 4
"""If at least one page in this many is needed, the whole part is read at once and kept."""
_NOWHERE = np.uint64(0xFFFF_FFFF_FFFF_FFFF)

Numbers = NDArray[np.int64]


def rows_per_part(words: int) -> int:
    """The number of entries in a part that stores this many words of each key."""
    return PART_BYTES // ((2 + words) * _WORD)


@dataclass(frozen=True)
class KeyPlaces:
    """Where keys are: file << 32 | position."""

    places: Words
    rows: Numbers
    """The row of each place's key, among all keys of the lookup."""

    def __len__(self) -> int:
        return len(self.places)


class DamagedIndex(Exception):
    """A part of the index is missing, truncated or changed."""


@dataclass(frozen=True)
class Entries:
    """Entries sorted by hash. `words` has no columns if hashes are unique per key."""

    hashes: Words
    places: Words
    words: Words

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def size(self) -> int:
        """The size in memory, in bytes."""
        return self.hashes.nbytes + self.places.nbytes + self.words.nbytes

    def taken(self, which: NDArray[np.bool_] | Numbers | slice) -> "Entries":
        """A selection of the entries."""
        return Entries(self.hashes[which], self.places[which], self.words[which])

    @classmethod
    def together(cls, parts: Sequence["Entries"]) -> "Entries":
        """Merge entries, sorted by hash."""
        hashes = np.concatenate([part.hashes for part in parts])
        order = np.argsort(hashes)
        return cls(
            hashes[order],
            np.concatenate([part.places for part in parts])[order],
            np.concatenate([part.words for part in parts])[order],
        )

    def with_keys(self, keys: Keys, widths: Sequence[int]) -> KeyPlaces:
        """All entries that have one of the keys, which are sorted by hash."""
        at = self._places_of(keys.hashes)
        at = at[: np.searchsorted(at, len(self.hashes))]  # ascending, like the keys
        of_key = np.flatnonzero(self.hashes[at] == keys.hashes[: len(at)])
        at = at[of_key]
        pieces = [(at, of_key)]
        while len(at):  # once, unless keys have several entries
            at = at + 1
            at = at[: np.searchsorted(at, len(self.hashes))]
            more = np.flatnonzero(self.hashes[at] == keys.hashes[of_key[: len(at)]])
            at, of_key = at[more], of_key[more]
            pieces.append((at, of_key))
        found, wanted = (np.concatenate([piece[side] for piece in pieces]) for side in (0, 1))
        if self.words.shape[1] and len(found):
            equal = same(self.words[found], widths, keys.words[wanted], keys.widths)
            found, wanted = found[equal], wanted[equal]
        return KeyPlaces(self.places[found], keys.rows[wanted])

    def _places_of(self, hashes: Words) -> Numbers:
        """The first entry that is not below each of some ascending hashes.

        Entries of large parts are in no cache of the processor, and a search waits for memory at every step. So all
        hashes are searched together: in the first entries of pages, then in their pages, all of them step by step. What
        one step reads for a hash does not depend on the others, and arrives at the same time.
        """
        if len(self.hashes) <= _CACHED:
            return np.searchsorted(self.hashes, hashes)
        at: Numbers = np.maximum(np.searchsorted(self._fences, hashes) - 1, 0) * PAGE
        step = PAGE
        while step := step >> 1:
            at += step * (self.hashes.take(at + (step - 1), mode="clip") < hashes)
        at += self.hashes.take(at, mode="clip") < hashes
        return np.minimum(at, len(self.hashes))  # the last page may have fewer entries

    @cached_property
    def _fences(self) -> Words:
        return np.ascontiguousarray(self.hashes[::PAGE])


@dataclass(frozen=True)
class Part:
    """The description of a part in a manifest."""

    name: str
    rows: int
    words: int
    """The number of words of each key that are stored."""
    low: int
    high: int
    """The first and the last hash."""
    checksum: int
    """The checksum of the fences and the page checksums."""

    @property
    def pages(self) -> int:
        """The number of pages; the last one is padded."""
        return -(-self.rows // PAGE)

    @property
    def page_bytes(self) -> int:
        """The size of one page."""
        return PAGE * (2 + self.words) * _WORD

    @property
    def size(self) -> int:
        """The size of the object in bytes."""
        return self.pages * (self.page_bytes + 2 * _WORD)


def encoded(name: str, entries: Entries) -> tuple[Part, bytes]:
    """Encode at least one entry; returns the part and its bytes."""
    count, width = -(-len(entries) // PAGE), 2 + entries.words.shape[1]
    columns = np.full((width, count * PAGE), _NOWHERE)
    for number, column in enumerate((entries.hashes, entries.places, *entries.words.T)):
        columns[number, : len(entries)] = column
    pages = np.ascontiguousarray(columns.reshape(width, count, PAGE).swapaxes(0, 1))
    footer = np.concatenate([pages[:, 0, 0], _checksums(name, pages)]).astype("<u8").tobytes()
    low, high = int(entries.hashes[0]), int(entries.hashes[-1])
    part = Part(name, len(entries), width - 2, low, high, zlib.crc32(footer))
    return part, pages.astype("<u8", copy=False).tobytes() + footer


def pages_between(fences: Words, lows: Words, highs: Words) -> Numbers:
    """The pages that may have hashes of some ranges, ascending. Equal hashes may span several pages."""
    first = np.maximum(np.searchsorted(fences, lows, "left") - 1, 0)
    behind = np.searchsorted(fences, highs, "right")
    steps = np.zeros(len(fences) + 1, np.int64)
    np.add.at(steps, first, 1)
    np.subtract.at(steps, np.maximum(behind, first + 1), 1)
    return np.flatnonzero(np.cumsum(steps)[:-1] > 0)


def _checksums(name: str, pages: Words) -> Words:
    """The checksum of each page. Weights are odd, so any change of one word is detected, and more almost certainly."""
    words = pages.reshape(len(pages), -1)
    weights = np.random.default_rng(7).integers(0, 1 << 63, words.shape[1], np.uint64) * np.uint64(2) + np.uint64(1)
    found: Words = words @ weights + np.uint64(zlib.crc32(name.encode()))
    return found


class Parts:
    """Reads parts, and caches the first ones that fit. Several threads may use it.

    Nothing is evicted to make room: every batch queries all parts in turn, so if the index is larger than the cache, an
    LRU cache would always evict the parts that are needed next.
    """

    def __init__(self, store: StateStore, memory: MemoryBudget = NO_MEMORY) -> None:
        self._store, self._memory = store, memory
        self._whole: dict[str, Entries] = {}
        self._footers: dict[str, tuple[Words, Words]] = {}
        self._room = memory.share(self)
        self._lock = Lock()

    def put(self, name: str, entries: Entries) -> Part:
        """Write a part and cache it. Raises TransientError."""
        part, data = encoded(name, entries)
        self._store.put_new(name, data)
        self._keep(name, entries)
        return part

    def retain(self, names: set[str]) -> None:
        """Drop all other parts from the cache."""
        with self._lock:
            for name in self._whole.keys() - names:
                self._room.give(self._whole.pop(name).size)
            for name in self._footers.keys() - names:
                del self._footers[name]

    def close(self) -> None:
        """Give the memory back, and keep nothing any more. A thread that still reads or writes parts may go on."""
        with self._lock:
            self._room.close()
            self._whole, self._footers = {}, {}

    def lookup(self, part: Part, keys: Keys, widths: Sequence[int]) -> KeyPlaces:
        """The places of the keys, which are sorted by hash. Raises DamagedIndex, TransientError."""
        low, high = np.searchsorted(keys.hashes, np.array([part.low, part.high], np.uint64), "left")
        high += int(np.searchsorted(keys.hashes[high:], np.uint64(part.high), "right"))
        if low == high:
            return KeyPlaces(np.empty(0, np.uint64), np.empty(0, np.int64))
        wanted = Keys(keys.hashes[low:high], keys.words[low:high], keys.widths, keys.rows[low:high], keys.exact)
        entries = self._kept(part.name)
        if entries is not None:
            return entries.with_keys(wanted, widths)
        pages = pages_between(self._footer(part)[0], wanted.hashes, wanted.hashes)
        whole = len(pages) * _MOST_PAGES >= part.pages
        with self._memory.reading(_COPIES * part.page_bytes * (part.pages if whole else len(pages))):
            entries = self.whole(part) if whole else self._read(part, pages)
            return entries.with_keys(wanted, widths)

    def whole(self, part: Part) -> Entries:
        """All entries of a part. Raises DamagedIndex, TransientError."""
        entries = self._kept(part.name)
        if entries is None:
            entries = self._read(part, np.arange(part.pages))
            self._keep(part.name, entries)
        return entries

    def between(self, part: Part, low: int, high: int) -> Entries:
        """Entries with low <= hash <= high, without caching them. Raises DamagedIndex, TransientError."""
        entries = self._kept(part.name)
        if entries is None:
            fences, _ = self._footer(part)
            entries = self._read(part, pages_between(fences, np.array([low], np.uint64), np.array([high], np.uint64)))
        start = int(np.searchsorted(entries.hashes, np.uint64(low), "left"))
        return entries.taken(slice(start, int(np.searchsorted(entries.hashes, np.uint64(high), "right"))))

    def _footer(self, part: Part) -> tuple[Words, Words]:
        known = self._footers.get(part.name)
        if known is not None:
            return known
        (data,) = self._ranges(part, [(part.pages * part.page_bytes, 2 * part.pages * _WORD)])
        if zlib.crc32(data) != part.checksum:
            raise DamagedIndex(part.name)
        words = np.frombuffer(data, "<u8").astype(np.uint64)
        found = words[: part.pages], words[part.pages :]
        with self._lock:
            if not self._room.closed:
                self._footers[part.name] = found
        return found

    def _read(self, part: Part, pages: Numbers) -> Entries:
        _, checksums = self._footer(part)
        breaks = np.flatnonzero(np.diff(pages) != 1) + 1
        spans = [(int(s[0]), len(s)) for s in np.split(pages, breaks) if len(s)]
        data = self._ranges(part, [(at * part.page_bytes, count * part.page_bytes) for at, count in spans])
        words = np.frombuffer(b"".join(data), "<u8").astype(np.uint64, copy=False)
        found = words.reshape(len(pages), 2 + part.words, PAGE)
        if not np.array_equal(_checksums(part.name, found), checksums[pages]):
            raise DamagedIndex(part.name)
        columns = [np.ascontiguousarray(found[:, number, :]).reshape(-1) for number in range(2 + part.words)]
        rows = len(columns[0])
        if len(pages) and pages[-1] == part.pages - 1:
            rows -= part.pages * PAGE - part.rows  # the last page is padded
        keys = np.column_stack(columns[2:]) if part.words else np.empty((len(columns[0]), 0), np.uint64)
        return Entries(columns[0][:rows], columns[1][:rows], keys[:rows])

    def _ranges(self, part: Part, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        data = self._store.read_ranges(part.name, ranges)
        if data is None or [len(piece) for piece in data] != [length for _, length in ranges]:
            raise DamagedIndex(part.name)
        return data

    def _kept(self, name: str) -> Entries | None:
        with self._lock:
            return self._whole.get(name)

    def _keep(self, name: str, entries: Entries) -> None:
        with self._lock:
            if name not in self._whole and self._room.take(entries.size):
                self._whole[name] = entries
