"""Which files a file source has handed out: a chain of small entries in the state location.

    ledger/<n>-<digest>    the files of checkpoint n, and the digest of the entry before it
    seen/<n>-<digest>      all files up to entry n, folded; entries below it are not needed any more

An entry is put before its files are read. Its digest covers its contents and its predecessor, and the offsets of a
checkpoint are (n, digest): two runs that race may both put an entry n, and the offsets that were recorded say which one
counts. Offsets whose entry is gone cannot be continued: that is an error, never a second look at the folder.
"""

import hashlib
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from calve import faults
from calve.errors import SourceLost
from calve.model.checkpoint import Offsets, canonical_offsets
from calve.state import StateStore

FOLD_EVERY = 100
"""Committed entries that are folded together."""


@dataclass(frozen=True, order=True)
class KnownFile:
    """A file as it was when it was handed out; the order is the order of reading."""

    mtime_ns: int
    path: str
    size: int


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
        """Under which entries and folds are kept."""
        return f"{self.number:08d}-{self.digest}"


class Ledger:
    """One chain at a time in memory: the set of files up to `place`."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._place = Place(0, "")
        self._seen: dict[str, KnownFile] = {}
        self._folded = 0

    def seen(self, place: Place) -> dict[str, KnownFile]:
        """All files handed out up to `place`, by path."""
        if place != self._place:
            self._seen = {f.path: f for f in self._walk(place)}
            self._place = place
        return self._seen

    def files(self, place: Place) -> list[KnownFile]:
        """The files of one entry, in order."""
        return sorted(self._entry(place)[1])

    def add(self, place: Place, files: Iterable[KnownFile]) -> Place:
        """Put the entry after `place`; durable before anybody reads its files."""
        listed = sorted(files)
        body = json.dumps({"previous": place.digest, "files": [[f.mtime_ns, f.path, f.size] for f in listed]})
        following = Place(place.number + 1, hashlib.sha256(body.encode()).hexdigest()[:16])
        faults.reached("ledger.before")
        self._store.put(f"ledger/{following.name}", body.encode())
        faults.reached("ledger.after")
        if place == self._place:
            self._seen.update((f.path, f) for f in listed)
            self._place = following
        return following

    def fold(self, committed: Place) -> None:
        """Now and then: replace the entries that are committed by one list, so that the chain stays short."""
        if committed.number - self._folded < FOLD_EVERY:
            return
        listed = sorted(self._walk(committed))
        body = json.dumps([[f.mtime_ns, f.path, f.size] for f in listed])
        self._store.put(f"seen/{committed.name}", zlib.compress(body.encode()))
        self._folded = committed.number
        for name in [*self._store.list("ledger"), *self._store.list("seen")]:
            if _number(name) < committed.number:
                self._store.delete(name)

    def _walk(self, place: Place) -> list[KnownFile]:
        """Back along the chain, to its beginning or to the first fold."""
        found: list[KnownFile] = []
        while place.number:
            folded = self._store.read(f"seen/{place.name}")
            if folded is not None:
                self._folded = max(self._folded, place.number)
                return found + [KnownFile(*f) for f in json.loads(zlib.decompress(folded))]
            previous, files = self._entry(place)
            found += files
            place = Place(place.number - 1, previous)
        return found

    def _entry(self, place: Place) -> tuple[str, list[KnownFile]]:
        data = self._store.read(f"ledger/{place.name}")
        if data is None:
            raise SourceLost(
                "the ledger of a file source is gone",
                detail=f"Entry {place.name} is not in the state location, so it is not known which files were read.",
                hint="Restore the state location, or start a new sink into a new table.",
            )
        body = json.loads(data)
        return body["previous"], [KnownFile(*f) for f in body["files"]]


def _number(name: str) -> int:
    return int(name.rpartition("/")[2].partition("-")[0])
