"""Loads the tables of sinks for display, in threads, at a bounded rate.

    wanted ──► due? ──► a thread: locate, load, describe ──► shown until the next one

A table is loaded again when its sink committed, or after a while, and never more often than every few seconds. The
longer a load computes, the longer is the pause after it: large tables take no more of the process than small ones. A
catalog that does not respond delays only its own tables: what was loaded before stays, with the error, and retries back
off.
Nothing is loaded unless somebody looks.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from calve.api.letters import LetterNote, newest_letters
from calve.catalog.connect import Catalog
from calve.clock import Clock, SystemClock
from calve.errors import CalveError, InvalidInput
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.loading import load_table
from calve.iceberg.planning.table_details import TableDetails, details_of
from calve.iceberg.planning.table_scan import Scan
from calve.iceberg.planning.travel import AsOf
from calve.lake import TableRef
from calve.retry import Backoff

_log = logging.getLogger(__name__)

LEAST_SECONDS = 5.0
"""Between two loads of one table."""
REST_PER_SECOND = 400.0
"""Pause after a load, as a multiple of its CPU time; the first load of a table also reads what later ones remember."""
LONGEST_REST = 600.0
MOST_SECONDS = 60.0
"""After which a table is loaded again although its sink did not commit: others may have."""
LETTERS = 20
"""Dead letters that are shown."""
LONGEST_WAIT = 120.0
"""Before a retry."""
THREADS = 4
"""Loads at the same time."""


@dataclass(frozen=True)
class TableAddress:
    """Where the table of a sink is."""

    ref: TableRef
    sink_id: str | None
    """None if only the sink's status is known, not its definition."""
    branch: str
    letters: TableRef | None = None
    """The dead letter table, if the sink has one."""
    sink: str = ""
    """The sink's name in that table."""


@dataclass(frozen=True)
class LoadedTable:
    """What is known of a table."""

    details: TableDetails | None = None
    loaded_ms: int | None = None
    error: str = ""
    """Why the last attempt failed; the rest is then older."""
    letters: tuple[LetterNote, ...] = ()
    """The newest dead letters, newest first."""


def rest_after(cpu_seconds: float) -> float:
    """Seconds until a table may be loaded again."""
    return max(LEAST_SECONDS, min(REST_PER_SECOND * cpu_seconds, LONGEST_REST))


Locate = Callable[[str], TableAddress | None]
"""Finds the table of a sink by the sink's name; None if nothing says where it is."""


@dataclass
class _Watched:
    known: LoadedTable = field(default_factory=LoadedTable)
    backoff: Backoff = field(default_factory=lambda: Backoff(LEAST_SECONDS, LONGEST_WAIT))
    loading: bool = False
    not_before: float = 0.0
    stale_at: float = 0.0
    version: object = None
    """What the sink had reported when the table was loaded."""
    letters_at: int | None = None
    """The snapshot of the dead letter table that was read."""
    catalog: Catalog | None = None
    address: TableAddress | None = None
    manifests: ManifestCache = field(default_factory=ManifestCache)

    def is_due(self, version: object, now: float) -> bool:
        changed = version != self.version and not self.known.error
        return not self.loading and now >= self.not_before and (changed or now >= self.stale_at)


class TableWatch:
    """The tables of a home's sinks."""

    def __init__(self, locate: Locate, clock: Clock | None = None) -> None:
        self._locate = locate
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._closed = False

    def want(self, sinks: Mapping[str, object]) -> None:
        """Load what is due of these sinks; returns at once. Another value of a sink means that its table changed."""
        now = self._clock.monotonic()
        with self._lock:
            for name in self._watched.keys() - sinks.keys():
                del self._watched[name]
            free = 0 if self._closed else THREADS - sum(watched.loading for watched in self._watched.values())
            waiting = {name: self._watched.setdefault(name, _Watched()) for name in sinks}
            due = [name for name, watched in waiting.items() if watched.is_due(sinks[name], now)]
            for name in sorted(due, key=lambda name: waiting[name].not_before)[:free]:
                waiting[name].loading = True
                # a daemon: the end of the process does not wait for a catalog
                arguments = (name, sinks[name], waiting[name])
                threading.Thread(target=self._load, args=arguments, name=f"calve-page-{name}", daemon=True).start()

    def of(self, sink: str) -> LoadedTable:
        """What is known of the table of a sink; never waits."""
        with self._lock:
            watched = self._watched.get(sink)
            return watched.known if watched else LoadedTable()

    def close(self) -> None:
        """Start no more loads."""
        with self._lock:
            self._closed = True

    def _load(self, name: str, version: object, watched: _Watched) -> None:
        began, first = time.thread_time(), watched.known.loaded_ms is None
        try:
            details, letters = self._described(name, watched)
            known, wait = LoadedTable(details, self._clock.now_ms(), letters=letters), MOST_SECONDS
        except Exception as error:  # noqa: BLE001 - the thread's last resort; the page shows the error
            if not isinstance(error, CalveError):
                _log.warning("the table of sink %s could not be described", name, exc_info=True)
            # other texts may contain addresses with credentials
            text = str(error) if isinstance(error, CalveError) else f"{type(error).__name__}; see the log of this page"
            known = replace(watched.known, error=text)
            watched.catalog = None
            wait = watched.backoff.next()
        else:
            watched.backoff.reset()
        now = self._clock.monotonic()
        rest = LEAST_SECONDS if first else rest_after(time.thread_time() - began)
        with self._lock:
            watched.known, watched.version = known, version
            watched.not_before = now + (wait if known.error else rest)
            watched.stale_at = now + max(wait, rest)
            watched.loading = False

    def _described(self, name: str, watched: _Watched) -> tuple[TableDetails | None, tuple[LetterNote, ...]]:
        """Raises CalveError."""
        address = self._locate(name)
        if address is None:
            return None, ()
        if watched.catalog is None or address != watched.address:
            watched.catalog, watched.address, watched.letters_at = address.ref.lake.open(), address, None
        try:
            table = load_table(watched.catalog, address.ref.name)
        except InvalidInput:
            if address.sink_id is None:  # the table is elsewhere
                return None, ()
            raise
        ids = () if address.sink_id is None else (address.sink_id,)
        details = details_of(table, watched.manifests, ids, address.branch)
        return details, self._letters(address, watched.catalog, watched)

    def _letters(self, address: TableAddress, catalog: Catalog, watched: _Watched) -> tuple[LetterNote, ...]:
        """The newest dead letters; they are read again only if there are new ones."""
        if address.letters is None:
            return ()
        try:
            table = load_table(catalog, address.letters.name)
        except InvalidInput:  # it is created by the first letter
            return ()
        if watched.letters_at != table.metadata.current_snapshot_id:
            found = tuple(newest_letters(Scan.of(table, AsOf()), address.sink, LETTERS))
            watched.letters_at = table.metadata.current_snapshot_id
            return found
        return watched.known.letters
