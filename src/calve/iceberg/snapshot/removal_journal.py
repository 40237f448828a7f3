"""The journal of expired snapshots whose files are still to be removed.

    removal/<table uuid>/<entry id>      in the state location, shared by all sinks and by maintenance by hand

An entry is written before the commit that removes its snapshots: whatever happens after that, somebody finds the
manifest lists, which the table no longer names. `maintain/removal.py` removes the files, and then the entry. A damaged
entry is ignored: its files become orphans.
"""

import json
import logging
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from calve.errors import CommitConflict, TransientError
from calve.faults import reached
from calve.storage.state import StateStore

FORMAT = 1
FOLDER = "removal"

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemovedSnapshot:
    """A snapshot that an expiry removes."""

    snapshot_id: int
    manifest_list: str
    sink_id: str | None = None
    loose: bool = False
    """Whether it was in no ref's ancestry: rolled back, or cut off from the branch."""


@dataclass(frozen=True)
class RemovalEntry:
    """The snapshots of one expiry."""

    entry_id: str
    table_uuid: str
    snapshots: tuple[RemovedSnapshot, ...]
    statistics: tuple[str, ...]
    """Statistics files of these snapshots."""
    put_ms: int
    seen_ms: int | None = None
    """When the table was first seen without these snapshots; None: the expiry may not have been applied."""
    spared: tuple[int, ...] = ()
    """Snapshots whose files stay for good: a tag named them when the catalog removed them."""

    @property
    def ids(self) -> frozenset[int]:
        """The ids of its snapshots."""
        return frozenset(one.snapshot_id for one in self.snapshots)

    def seen(self, now_ms: int, spared: Iterable[int]) -> "RemovalEntry":
        """This entry once the table was seen without its snapshots."""
        return replace(self, seen_ms=now_ms, spared=tuple(sorted(spared)))

    def without(self, ids: AbstractSet[int]) -> "RemovalEntry":
        """This entry without some snapshots."""
        return replace(self, snapshots=tuple(one for one in self.snapshots if one.snapshot_id not in ids))


class RemovalJournal:
    """The entries in one state location."""

    def __init__(self, store: StateStore) -> None:
        """`store` is the root of the state location, not the folder of a sink."""
        self._store = store

    def put(self, entry: RemovalEntry) -> None:
        """Write an entry, or replace it. Raises TransientError."""
        body = {"format": FORMAT, **asdict(entry)}
        self._store.put(_name(entry), json.dumps(body, separators=(",", ":")).encode())

    def entries(self, table_uuid: str) -> list[RemovalEntry]:
        """The entries of a table, oldest first. Raises TransientError."""
        found = []
        for name in self._store.list(f"{FOLDER}/{table_uuid}"):
            data = self._store.read(name)
            if data is None:
                continue
            try:
                found.append(_parse(data))
            except (ValueError, TypeError, KeyError) as error:
                _log.warning("damaged record %s is ignored; its files become orphans: %s", name, error)
        return sorted(found, key=lambda entry: (entry.put_ms, entry.entry_id))

    def delete(self, entry: RemovalEntry) -> None:
        """Remove an entry. Raises TransientError."""
        self._store.delete(_name(entry))


def journalled(journal: RemovalJournal, entry: RemovalEntry, commit: Callable[[], T]) -> T:
    """Commit an expiry whose files can be found afterwards, whatever becomes of this process or of the response.

    Raises what `commit` raises; an entry whose expiry certainly was not applied is removed.
    """
    journal.put(entry)
    reached("expiry.journal")
    try:
        return commit()
    except CommitConflict:
        with suppress(TransientError):  # it is ignored until it is too old
            journal.delete(entry)
        raise


def _name(entry: RemovalEntry) -> str:
    return f"{FOLDER}/{entry.table_uuid}/{entry.entry_id}"


def _parse(data: bytes) -> RemovalEntry:
    body = json.loads(data)
    return RemovalEntry(
        entry_id=body["entry_id"],
        table_uuid=body["table_uuid"],
        snapshots=tuple(RemovedSnapshot(**one) for one in body["snapshots"]),
        statistics=tuple(body["statistics"]),
        put_ms=int(body["put_ms"]),
        seen_ms=None if body["seen_ms"] is None else int(body["seen_ms"]),
        spared=tuple(body["spared"]),
    )
