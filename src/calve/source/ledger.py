"""Which files a file source has handed out: a chain of small entries in the state location.

    ledger/<n>-<digest>    the files of checkpoint n, and the digest of the entry before it
    seen/<n>-<digest>      all files up to entry n, folded (see `seen`); entries below it are not needed any more

An entry is put before its files are read. Its digest covers its contents and its predecessor, and the offsets of a
checkpoint are (n, digest): two runs that race may both put an entry n, and the offsets that were recorded say which one
counts. Offsets whose entry is gone cannot be continued: that is an error, never a second look at the folder.

Only what is committed is folded, and a fold is put before the entries below it are deleted: a run that was overtaken
folds nothing that its successor needs, and a run that reads the chain while another folds finds it on a second look.
"""

import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from calve import faults
from calve.errors import SourceLost
from calve.listing import KnownFile
from calve.model.checkpoint import Offsets, canonical_offsets
from calve.source.seen import SeenFiles
from calve.state import StateStore

FOLD_EVERY = 100
"""Committed entries that are folded together; five times as many once there are `MANY` files."""
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
        """Under which entries and folds are kept."""
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
        """All files handed out up to `place`."""
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
                hint="They belong to different runs; start a new sink into a new table.",
            )
        return [file for files in reversed(found) for file in files]

    def add(self, place: Place, files: Iterable[KnownFile]) -> Place:
        """Put the entry after `place`; durable before anybody reads its files."""
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
        """Now and then: replace the entries that are committed by one set, so that the chain stays short."""
        if committed.number - self._folded < FOLD_EVERY * (5 if len(self._seen) > MANY else 1):
            return
        try:
            seen = self._walk(committed)
        except SourceLost:
            # The run that took over has folded already; this one will notice that it was overtaken.
            _log.debug("the ledger is not folded: entries before %s are gone", committed.name)
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
                continue  # entries may have been folded meanwhile
        return self._walk_once(place)

    def _walk_once(self, place: Place) -> SeenFiles:
        """Back along the chain, to its beginning or to the first fold."""
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
                "the ledger of a file source is gone",
                detail=f"Entry {place.name} {what}, so it is not known which files were read.",
                hint="Restore the state location, or start a new sink into a new table.",
            )
        entry = Entry.from_json(data)
        if entry.root != self._root:
            raise SourceLost(
                "a file source reads another folder than before",
                detail=f"It read {entry.root}, and now reads {self._root}: nobody knows which of these files are new.",
                hint="Use the folder of before, or start a new sink into a new table.",
            )
        return entry


def _number(name: str) -> int:
    return int(name.rpartition("/")[2].partition("-")[0])
