"""Records of runs in the state location. Each run has its own directory, which is what fences them.

    table.json                      UUID of the table, written at the first start
    runs/<epoch>-<run id>           an epoch that was taken; only the last ones are kept
    rec/<epoch>-<run id>/adopt      what the run took over, written before its own entries
    rec/<epoch>-<run id>/<number>   its entries, in order
    stage/<epoch>-<run id>/...      changes of checkpoints that wait for their window; the entries refer to them

A run writes to its own directory only, so a run that lost its fence cannot do any damage. Entries are never overwritten
with different contents. A directory is valid once it contains an adoption record. A damaged record is treated as
missing: its changes are read from the source again, or an error names them if the source cannot go back.
"""

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from calve.model.checkpoint import (
    Adoption,
    CheckpointEntry,
    Entry,
    Offsets,
    Staged,
    adoption_from_json,
    adoption_to_json,
    entry_from_json,
    entry_to_json,
    offsets_digest,
)
from calve.model.numbers import whole_number
from calve.model.progress import Fence
from calve.storage.state import StateStore

_log = logging.getLogger(__name__)

FORMAT = 1
_ADOPT = "adopt"
_EPOCHS_PER_START = 100
"""Epochs of older runs that a start forgets at most: it should not take long."""


@dataclass(frozen=True)
class RunRecords:
    """A predecessor's adoption record, and its entries up to the first gap in their numbers."""

    adoption: Adoption
    entries: tuple[Entry, ...]


class Journal:
    """Reads the records of all runs; each method that writes takes the fence of the run that writes."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def known_uuid(self) -> str | None:
        """Return the table's UUID as recorded at the first start."""
        body = self._read("table.json")
        return None if body is None else str(body["uuid"])

    def remember_uuid(self, uuid: str) -> None:
        """Record the table's UUID, unless one is recorded already."""
        if self.known_uuid() is None:
            self._put("table.json", {"format": FORMAT, "uuid": uuid})

    def newest_epoch(self) -> int:
        """Return the highest epoch that any run has taken, 0 without runs."""
        names = [*self._store.list("runs"), *self._store.list("rec")]
        return max((_epoch(name) for name in names), default=0)

    def is_of(self, table_uuid: str, epoch: int | None) -> bool:
        """Whether it has the records of a table that states this epoch, and not older or other ones."""
        return self.known_uuid() == table_uuid and (epoch is None or self.newest_epoch() >= epoch)

    def has_claimed(self) -> bool:
        """Whether any run has claimed the table: each writes its adoption record right after the claim."""
        return any(name.endswith(f"/{_ADOPT}") for name in self._store.list("rec"))

    def take_epoch(self, fence: Fence) -> None:
        """Make the epoch of a run visible to later runs."""
        self._put_new(f"runs/{_directory(fence)}", {"format": FORMAT, "version": fence.version})

    def forget_older_epochs(self, fence: Fence) -> None:
        """Remove epochs that runs before `fence` took, but for the last one; runs that commit nothing leave them.

        A listing that another start makes meanwhile may lack the epoch of `fence`, which is new. It then has the one
        before, so no start takes a lower epoch than without the removal; only the claim decides which run is newer.
        """
        older = [name for name in self._store.list("runs") if _epoch(name) < fence.epoch]
        for name in older[:-1][:_EPOCHS_PER_START]:
            self._store.delete(name)

    def newest(self) -> RunRecords | None:
        """Return the records of the newest run that has an adoption record."""
        return self.predecessor(self.newest_epoch() + 1)

    def predecessor(self, epoch: int) -> RunRecords | None:
        """Return the records of the newest run below `epoch` that has an adoption record."""
        adopted = [n.split("/")[1] for n in self._store.list("rec") if n.endswith(f"/{_ADOPT}") and _epoch(n) < epoch]
        if not adopted:
            return None
        folder = f"rec/{max(adopted)}"
        body = self._read(f"{folder}/{_ADOPT}")
        if body is None:
            return None
        return RunRecords(adoption_from_json(body), self._entries(folder))

    def _entries(self, folder: str) -> tuple[Entry, ...]:
        """Return a run's entries up to the first one that is missing or damaged.

        The run may still remove committed entries from the front, also after its successor has claimed the table. So if
        an entry that was listed is gone when it is read, they are listed again. That ends: without the fence the run
        commits nothing more.
        """
        read: dict[int, Entry] = {}  # entries are not overwritten: none is read twice
        while True:
            numbers = self._numbers(folder)
            unread = self._read_entries(folder, numbers, read)
            if unread is None or unread in self._numbers(folder):
                return tuple(read[number] for number in numbers if unread is None or number < unread)

    def _numbers(self, folder: str) -> list[int]:
        """List the numbers of a run's entries, up to the first gap."""
        found = (whole_number(name.rpartition("/")[2]) for name in self._store.list(folder))
        numbers = sorted(number for number in found if number is not None)
        return [number for at, number in enumerate(numbers) if number == numbers[0] + at]

    def _read_entries(self, folder: str, numbers: Iterable[int], read: dict[int, Entry]) -> int | None:
        """Add these entries to `read`; returns the number of the first one that is missing or damaged."""
        for number in numbers:
            if number not in read:
                body = self._read(f"{folder}/{number:08d}")
                if body is None:
                    return number
                read[number] = entry_from_json(body)
        return None

    def adopt(self, fence: Fence, adoption: Adoption) -> None:
        """Write the adoption record, the first record of a run."""
        self._put(f"rec/{_directory(fence)}/{_ADOPT}", adoption_to_json(adoption))

    def append(self, fence: Fence, number: int, entry: Entry) -> None:
        """Write the entry with that number."""
        self._put_new(f"rec/{_directory(fence)}/{number:08d}", entry_to_json(entry))

    def forget(self, fence: Fence, numbers: Iterable[int]) -> None:
        """Remove a run's entries that are no longer needed; in order, so that no gap is ever visible."""
        for number in sorted(numbers):
            self._store.delete(f"rec/{_directory(fence)}/{number:08d}")

    def forget_predecessors(self, fence: Fence) -> None:
        """Remove the directories of older runs. Only the fence holder may call it, after its first commit."""
        for name in [*self._store.list("rec"), *self._store.list("runs")]:
            if _epoch(name) < fence.epoch:
                self._store.delete(name)

    def named_manifests(self) -> frozenset[str]:
        """Return the manifests of all batches that records name: they may still be committed, or be so again.

        A successor copies records to its own directory before it removes them. So the records are listed again after
        they were read, and the new ones are read, until there are none. Raises TransientError; ValueError, KeyError or
        TypeError if a record is damaged: then nobody knows what it named.
        """
        before: list[str] = []
        read: dict[str, frozenset[str]] = {}  # records are not overwritten: after a change only new ones are read
        while (names := self._store.list("rec")) != before:
            before = names
            for name in names:
                if name not in read and (data := self._store.read(name)) is not None:
                    read[name] = _manifests_in(name, json.loads(data))
        return frozenset(path for paths in read.values() for path in paths)

    def stage_folder(self, fence: Fence) -> str:
        """Return the folder of the state location in which a run stages changes."""
        return f"stage/{_directory(fence)}"

    def staged(self) -> frozenset[str]:
        """List the staged files of all runs."""
        return frozenset(self._store.list("stage"))

    def remove_staged(self, committed: Iterable[Staged]) -> None:
        """Remove staged files that are no longer needed."""
        for staged in committed:
            for name in staged.files:
                self._store.delete(name)

    def forget_stages(self, fence: Fence, kept: Iterable[Staged]) -> None:
        """Remove what older runs staged, except `kept`. Only the fence holder may call it, after its first commit."""
        self.forget_stages_up_to(fence.epoch - 1, kept)

    def forget_stages_up_to(self, epoch: int, kept: Iterable[Staged] = ()) -> None:
        """Remove what runs up to this epoch staged, except `kept`. Anybody may call it once these cannot commit."""
        needed = {name for staged in kept for name in staged.files}
        for name in self._store.list("stage"):
            if _epoch(name) <= epoch and name not in needed:
                self._store.delete(name)

    def offsets_with(self, digest: str) -> tuple[bool, Offsets]:
        """Search all records for the offsets with this digest: (found, offsets)."""
        for name in self._store.list("rec"):
            body = self._read(name)
            if body is None:
                continue
            adoption = adoption_from_json(body) if name.endswith(_ADOPT) else None
            entries = adoption.entries if adoption else (entry_from_json(body),)
            candidates = [e.committable.offsets for e in entries if e.committable]
            candidates += [adoption.end] if adoption else []
            candidates += [e.identity.end for e in entries if isinstance(e, CheckpointEntry)]
            for offsets in candidates:
                if offsets_digest(offsets) == digest:
                    return True, offsets
        return False, None

    def _put(self, name: str, body: dict[str, Any]) -> None:
        self._store.put(name, _encoded(body))

    def _put_new(self, name: str, body: dict[str, Any]) -> None:
        self._store.put_new(name, _encoded(body))

    def _read(self, name: str) -> dict[str, Any] | None:
        data = self._store.read(name)
        if data is None:
            return None
        try:
            body: dict[str, Any] = json.loads(data)
        except ValueError:
            _log.warning("damaged state record %s is treated as missing", name)
            return None
        return body


def _manifests_in(name: str, body: dict[str, Any]) -> frozenset[str]:
    entries = adoption_from_json(body).entries if name.endswith(_ADOPT) else (entry_from_json(body),)
    committables = (entry.committable for entry in entries if entry.committable is not None)
    return frozenset(m.path for one in committables for m in (*one.manifests, *one.keys))


def _encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _directory(fence: Fence) -> str:
    return f"{fence.epoch:08d}-{fence.run_id}"


def _epoch(name: str) -> int:
    return int(name.split("/")[1].partition("-")[0])
