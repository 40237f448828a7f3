"""The files that a source has read or is about to read: a chain of small entries in the state location.

    ledger/<n>-<digest>    the files of checkpoint n, and the digest of the previous entry
    seen/<n>-<digest>      all files up to entry n, folded into one set; earlier entries are no longer needed

An entry is written before its files are read. Its digest covers its contents and its predecessor, and the offsets of a
checkpoint are (n, digest): two racing runs may both write an entry n, and the recorded offsets decide which one counts.
Reading cannot resume at offsets whose entry is missing: that is an error, and the folder is not listed again.

Only committed entries are folded, and a fold is written before earlier entries are deleted: a superseded run folds
nothing that its successor needs, and a run that reads the chain while another folds it finds it on a second attempt.

`SeenFiles` is small enough for millions of files: each takes 32 bytes, a hash of its path (16 bytes), its timestamp and
its size, in two arrays sorted by hash. A collision would need about 10^19 files.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from calve import faults
from calve.errors import SourceLost
from calve.model.checkpoint import Offsets, canonical_offsets
from calve.storage.listing import KnownFile
from calve.storage.state import StateStore

_HASH = 16
_RECENT_SHARE = 16
"""The newer part is merged into the larger one when it is this fraction of it."""


@dataclass(frozen=True)
class ChangedSource:
    """A file that changed since it was recorded."""

    now: KnownFile
    mtime_ns: int
    size: int


@dataclass(frozen=True, eq=False)
class SeenFiles:
    """A set that only grows: one large sorted part and a smaller recent one, so that adding a few files is cheap."""

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

    def compare(self, listed: Sequence[KnownFile]) -> tuple[list[KnownFile], list[ChangedSource]]:
        """The files that are not in the set, and those that changed since."""
        fresh, changed = self._compare(listed)
        if self.recent is None:
            return fresh, changed
        fresh, more = self.recent.compare(fresh)
        return fresh, changed + more

    def _compare(self, listed: Sequence[KnownFile]) -> tuple[list[KnownFile], list[ChangedSource]]:
        if not len(self.hashes) or not listed:
            return list(listed), []
        hashes = _hashes(listed)
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        known = self.hashes[places] == hashes
        then = self.stamps[places]
        differs = known & (then != _stamps(listed)).any(axis=1)
        changed = [ChangedSource(listed[i], int(then[i][0]), int(then[i][1])) for i in np.flatnonzero(differs).tolist()]
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


FOLD_EVERY = 100
"""Committed entries that are folded at once; five times as many once there are `MANY` files."""
MANY = 100_000
_LOOKS = 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """A position in the chain."""

    number: int
    digest: str

    @classmethod
    def of(cls, offsets: Offsets) -> "Place":
        """The place that offsets name."""
        if offsets is None:
            return cls(0, "")
        body = json.loads(offsets)
        return cls(int(body["ledger"]), str(body["digest"]))

    def to_offsets(self) -> Offsets:
        """Inverse of `of`."""
        return canonical_offsets({"ledger": self.number, "digest": self.digest}) if self.number else None

    @property
    def name(self) -> str:
        """The name of its entry and its fold."""
        return f"{self.number:08d}-{self.digest}"


@dataclass(frozen=True)
class Entry:
    """The files of one checkpoint."""

    root: str
    """The folder that was listed."""
    previous: str
    files: tuple[KnownFile, ...]

    def to_json(self) -> bytes:
        """The record of it."""
        files = [[f.mtime_ns, f.path, f.size] for f in self.files]
        return json.dumps({"root": self.root, "previous": self.previous, "files": files}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Entry":
        """Inverse of `to_json`."""
        body = json.loads(data)
        return cls(body["root"], body["previous"], tuple(KnownFile(*f) for f in body["files"]))


class Ledger:
    """The chain of one source that lists `root`. In memory: the set of files up to one place."""

    def __init__(self, store: StateStore, root: str) -> None:
        self._store = store
        self._root = root
        self._place = Place(0, "")
        self._seen = SeenFiles.of([])
        self._folded = 0

    def seen(self, place: Place) -> SeenFiles:
        """All files up to `place`."""
        if place != self._place:
            self._seen = self._walk(place)
            self._place = place
        return self._seen

    def files(self, start: Place, end: Place) -> list[KnownFile]:
        """The files of the entries after `start` up to `end`, in the order of reading."""
        found: list[tuple[KnownFile, ...]] = []
        here = end
        while here.number > start.number:
            entry = self._entry(here)
            found.append(entry.files)
            here = Place(here.number - 1, entry.previous)
        if here != start:
            raise SourceLost(
                "the offsets of a file source do not follow each other",
                detail=f"{end.name} does not come after {start.name}.",
                hint="They belong to different runs: create a new sink with a new table.",
            )
        return [file for files in reversed(found) for file in files]

    def add(self, place: Place, files: Iterable[KnownFile]) -> Place:
        """Write the entry after `place`, durably, before its files are read."""
        entry = Entry(self._root, place.digest, tuple(sorted(files)))
        data = entry.to_json()
        following = Place(place.number + 1, hashlib.sha256(data).hexdigest()[:16])
        faults.reached("ledger.before")
        self._store.put(f"ledger/{following.name}", data)
        faults.reached("ledger.after")
        if place == self._place:
            self._seen = self._seen.with_files(entry.files)
            self._place = following
        return following

    def fold(self, committed: Place) -> None:
        """Replace committed entries by one set once there are enough, so that the chain stays short."""
        if committed.number - self._folded < FOLD_EVERY * (5 if len(self._seen) > MANY else 1):
            return
        try:
            seen = self._walk(committed)
        except SourceLost:
            # The run that took over has folded them; this one will notice that it lost its fence.
            _log.debug("the ledger is not folded: entries before %s are missing", committed.name)
            self._folded = committed.number
            return
        self._store.put(f"seen/{committed.name}", seen.to_bytes())
        self._folded = committed.number
        for name in [*self._store.list("ledger"), *self._store.list("seen")]:
            if _number(name) < committed.number:
                self._store.delete(name)

    def _walk(self, place: Place) -> SeenFiles:
        for _ in range(_LOOKS - 1):
            try:
                return self._walk_once(place)
            except SourceLost:
                continue  # another run may have folded entries meanwhile
        return self._walk_once(place)

    def _walk_once(self, place: Place) -> SeenFiles:
        """Walk back along the chain, to its beginning or to the first fold."""
        found: list[KnownFile] = []
        while place.number:
            folded = self._store.read(f"seen/{place.name}")
            if folded is not None:
                self._folded = max(self._folded, place.number)
                return SeenFiles.from_bytes(folded).with_files(found)
            entry = self._entry(place)
            found += entry.files
            place = Place(place.number - 1, entry.previous)
        return SeenFiles.of(found)

    def _entry(self, place: Place) -> Entry:
        data = self._store.read(f"ledger/{place.name}")
        if data is None or hashlib.sha256(data).hexdigest()[:16] != place.digest:
            what = "is not in the state location" if data is None else "is damaged"
            raise SourceLost(
                "the ledger of a file source is incomplete",
                detail=f"Entry {place.name} {what}, so it is unknown which files were read.",
                hint="Restore the state location, or create a new sink with a new table.",
            )
        entry = Entry.from_json(data)
        if entry.root != self._root:
            raise SourceLost(
                "the folder of a file source has changed",
                detail=f"It read {entry.root}, and now reads {self._root}: it is unknown which of these files are new.",
                hint="Use the previous folder, or create a new sink with a new table.",
            )
        return entry


def _number(name: str) -> int:
    return int(name.rpartition("/")[2].partition("-")[0])
