"""Removes files of a table's folder that nothing refers to and never will: crashed writers left them.

    list ──► work in flight ──► newest metadata ──► candidates ──► notes ──► load again ──► remove
             records, removal     all snapshots,      not named,    of the
             journals, holds      the metadata log    old enough    last runs

The order matters: a file moves from a writer to a record and from there into the metadata, so what is looked at later
names what was missed before. A file is removed if

- none of them names it, and it is older than the age limit by the clock of its own store;
- an earlier run noted it, at least that age limit ago: whatever wrote it has had that time to refer to it;
- no compaction that was running when it was noted is still running (`holds`): files of a compaction are named by
  nothing until its commit;
- its name carries the mark of this table (`iceberg/files/names.py`). With `everything`, names of other writers count,
  too, except in folders outside of the table's location; names with the mark of another table never do.

While the records of a sink that the table names are out of reach, only manifest lists are removed: nobody else knows
which other files the sink is about to commit. `forget_sink` excludes such a sink from the table for good.

Memory: hashes of eight bytes for the files that are named, sixteen for those that are noted; the listing is a file.
"""

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calve.catalog.connect import Catalog
from calve.catalog.discard import discard_orphans, remove
from calve.catalog.version_hint import VERSION_HINT
from calve.clock import Clock, IdSource, RandomIds, SystemClock
from calve.commit.journal import Journal
from calve.errors import CalveError, InvalidInput, TerminalError, TransientError
from calve.faults import reached
from calve.iceberg.files.names import is_list, mark_in
from calve.iceberg.files.store import io_properties_of
from calve.iceberg.snapshot.history import NamedSink
from calve.iceberg.snapshot.removal_journal import RemovalJournal
from calve.iceberg.snapshot.table_files import TableView, is_below, locations_in, view_of
from calve.lake import TableRef
from calve.storage import durable
from calve.storage.listing import store_and_path, stored_time_ms, walk_files
from calve.storage.local_folders import make_private
from calve.storage.part_files import part_of, remove_abandoned
from calve.storage.path_hashes import Hashes, PathSet, find, hash_of, hashes_of
from calve.storage.spool import BATCH, Spool, batches_of
from calve.storage.state import StateFolder, StateStore, check_apart

AGE = timedelta(days=3)
LEAST_AGE = timedelta(days=1)
"""Without force: a writer may need hours between writing a file and the record that names it."""
AT_ONCE = 1_000
"""Files that are removed between two loads of the table."""
SHOWN = 100
"""Other files whose names a report contains."""
RESTARTS = 5

_METADATA = ".metadata.json"
_LISTED = pa.schema(
    [
        ("hash", pa.uint64()),
        ("folder", pa.int16()),
        ("below", pa.binary()),
        ("size", pa.int64()),
        ("mtime_ms", pa.int64()),
    ]
)
_NOTED = pa.schema(
    [
        ("path", pa.binary()),
        ("location", pa.binary()),
        ("size", pa.int64()),
        ("noted_ms", pa.int64()),
        ("go", pa.bool_()),
    ]
)
_HOLDS = b"holds"

_log = logging.getLogger(__name__)

Say = Callable[[str], None]


@dataclass(frozen=True)
class OrphanOptions:
    """What to remove."""

    age: timedelta | None = None
    everything: bool = False
    """Also files whose names are not those of calve."""
    dry_run: bool = False
    force: bool = False
    """Permits an age below a day."""

    @property
    def age_ms(self) -> int:
        """The age limit, raised to the minimum unless forced."""
        age = AGE if self.age is None else self.age
        return round((age if self.force else max(age, LEAST_AGE)).total_seconds() * 1000)


@dataclass
class FileTally:
    """A number of files and their size."""

    files: int = 0
    bytes: int = 0

    def add(self, sizes: NDArray[np.int64]) -> None:
        """Count files."""
        self.files += len(sizes)
        self.bytes += int(sizes.sum())


@dataclass
class OrphanReport:
    """What was found and removed; with `dry_run`, what would be removed."""

    listed: FileTally = field(default_factory=FileTally)
    orphans: FileTally = field(default_factory=FileTally)
    """Old enough, and named by nothing."""
    removed: FileTally = field(default_factory=FileTally)
    waiting: FileTally = field(default_factory=FileTally)
    """Orphans that a later run removes: they were noted too recently."""
    withheld: FileTally = field(default_factory=FileTally)
    """Orphans that stay while a sink or a compaction may still refer to them."""
    others: FileTally = field(default_factory=FileTally)
    """Files that nothing names and whose names are not those of calve for this table."""
    some_others: list[str] = field(default_factory=list)
    refusal: str = ""
    """Why nothing may be removed from this table; empty if files may be."""
    warnings: list[str] = field(default_factory=list)


def remove_orphans(
    table: TableRef,
    options: OrphanOptions | None = None,
    *,
    states: Sequence[str] = (),
    clock: Clock | None = None,
    say: Say = lambda _: None,
) -> OrphanReport:
    """Remove the orphan files of a table. `states` are further known state locations, which must not be in its folder.

    OrphanNotes are kept in the home folder. Raises TransientError; InvalidInput if the folder holds other things, too;
    TerminalError if the names of files in the metadata and in the listing do not match.
    """
    job = _OrphanJob(table, options or OrphanOptions(), states, clock or SystemClock(), RandomIds(), say)
    return job.run()


@dataclass(frozen=True)
class _Named:
    """The paths that something names."""

    here: PathSet
    """In the stores of the listed folders."""
    elsewhere: PathSet
    """In other stores: they must not be equal to a listed path."""
    manifests: set[str]
    lists: set[str]


class _OrphanJob:
    """One run. Not thread-safe."""

    def __init__(
        self, table: TableRef, options: OrphanOptions, states: Sequence[str], clock: Clock, ids: IdSource, say: Say
    ) -> None:
        self._ref, self._lake, self._options = table, table.lake, options
        self._states, self._clock, self._ids, self._say = states, clock, ids, say
        self._catalog: Catalog = table.lake.open()
        self._report = OrphanReport()
        self._holds: frozenset[str] = frozenset()
        self._read_at = ""
        """The metadata file whose names were read last."""

    def run(self) -> OrphanReport:
        first = view_of(self._catalog, self._ref.name)
        report = self._report
        report.refusal = first.refusal
        if report.refusal:
            return report
        if self._options.age is not None and not self._options.force and self._options.age < LEAST_AGE:
            report.warnings.append("files are removed when they are a day old at the earliest; --force permits less")
        self._check_apart(first)
        expected = self._live_files(first)
        now_ms = self._clock.now_ms() if self._options.dry_run else self._store_time(first)
        with tempfile.TemporaryDirectory(prefix="calve-orphans-") as scratch:
            listing = Path(scratch) / "listing.arrow"
            self._list(first, listing, expected)
            reached("orphans.listed")
            named, withheld = self._look(first)
            notes = OrphanNotes.read(self._notes_file(first))
            candidates = Path(scratch) / "candidates.arrow"
            holds = {tag: notes.holds.get(tag, now_ms) for tag in self._holds}
            decide = _Decision(first, self._options, notes, holds, now_ms, only_lists=bool(withheld))
            self._compare(listing, candidates, named, decide)
            report.warnings += withheld
            if self._options.dry_run:
                _count_removable(candidates, report)
                return report
            notes.replace(candidates)
            reached("orphans.noted")
            self._remove(candidates, named)
        return report

    # ---- before the listing

    def _check_apart(self, view: TableView) -> None:
        """Check that the listed folders hold nothing but this table. Raises InvalidInput."""
        states = {*self._states, str(self._lake.home / "state")}
        states |= {sink.state_location for sink in view.sinks if sink.state_location}
        for folder in view.folders:
            for state in sorted(states):
                check_apart(state, folder)
        self._say("looking for tables in the same folder")
        for name, location in locations_in(self._catalog, self._ref.name):
            if location is None:
                if not self._options.everything:
                    continue  # its files do not carry the mark of this table
                raise InvalidInput(
                    f'the location of table "{name}" is unknown, so its files may be in the folder of this one',
                    hint="Leave out --all, or restore that table.",
                )
            if any(is_below(location, folder) for folder in view.folders):
                raise InvalidInput(
                    f'the folder of table "{self._ref.name}" contains another table',
                    detail=f'It contains {location}, the location of "{name}".',
                    hint="Orphan files of such a table cannot be told from those of the other.",
                )

    def _live_files(self, view: TableView) -> "_Expected":
        """The files of the current heads: a listing that lacks one of them has other names for its files."""
        expected = _Expected(view.folders)
        manifests = sorted({path for one in view.head_lists for path in _reading(view.manifests_in, one)})
        for path in _stream(view.files_in(manifests)):
            expected.add(path)
        return expected

    def _store_time(self, view: TableView) -> int:
        """The time by the clock of the table's store, which also dates its files. Raises TransientError."""
        probe, properties = view.probe(self._ids.new_id()), io_properties_of(view.io.properties)
        try:
            with view.io.new_output(probe).create(overwrite=True) as stream:
                stream.write(b"calve reads the clock of this store")
            now_ms = stored_time_ms(probe, properties)
            remove(view.io, probe)
        except OSError as error:
            raise TransientError("the clock of the table's store could not be read", detail=str(error)) from error
        if now_ms is None:
            raise InvalidInput("the table's store does not say when files were written")
        return now_ms

    # ---- listing

    def _list(self, view: TableView, target: Path, expected: "_Expected") -> None:
        properties = io_properties_of(view.io.properties)
        with Spool(target, _LISTED) as spool:
            for number, folder in enumerate(view.folders):
                base = store_and_path(folder)[1].encode(errors="surrogateescape")
                for file in walk_files(folder, properties):
                    spool.add((hash_of(base + b"/" + file.below), number, file.below, file.size, file.mtime_ms))
                    self._report.listed.files += 1
                    self._report.listed.bytes += file.size
                    if self._report.listed.files % BATCH == 0:
                        self._say(f"listed {self._report.listed.files:,} files")
        missing = expected.missing_in(target)
        if missing:
            raise TerminalError(
                f'the listing of table "{self._ref.name}" lacks files of its current snapshot',
                detail=f"{missing:,} of {expected.count:,} files were not listed, although their folder was.",
                hint="The store or a link names them differently. Nothing was removed.",
            )

    # ---- what names files

    def _look(self, first: TableView) -> tuple[_Named, list[str]]:
        """Read work in flight, then the newest metadata; also returns why most orphans stay, if they do."""
        for _ in range(RESTARTS):
            before = view_of(self._catalog, self._ref.name)
            named, self._read_at = _Named(PathSet(), PathSet(), set(), set()), ""
            stores = {store_and_path(folder)[0] for folder in first.folders}
            self._say("reading work in flight")
            withheld = self._read_work(before, named, stores)
            reached("orphans.work")
            after = view_of(self._catalog, self._ref.name)
            self._check_same(first, after)
            if _sinks(before) != _sinks(after):
                continue  # a sink claimed the table meanwhile: it may have work in flight
            self._say("reading the metadata of the table")
            if self._read_metadata(after, named, stores):
                now_ms = self._clock.now_ms()
                self._holds = before.holds(now_ms) | after.holds(now_ms)
                return named, withheld
        raise TransientError(f'table "{self._ref.name}" changed too fast to find its orphan files')

    def _check_same(self, first: TableView, view: TableView) -> None:
        if view.uuid != first.uuid or view.folders != first.folders:
            raise TransientError(f'table "{self._ref.name}" was replaced or moved meanwhile')
        if view.refusal:
            raise TransientError(f"orphan files are not removed: {view.refusal}")

    def _read_work(self, view: TableView, named: _Named, stores: set[str]) -> list[str]:
        roots: dict[str, StateStore] = {"": self._lake.state_root(None)}
        withheld = []
        for sink in view.sinks:
            try:
                root, manifests = self._records_of(sink, view.uuid)
            except (CalveError, ValueError, KeyError, TypeError, OSError) as error:
                _log.info("the state of sink %s is out of reach: %s", sink.sink_id, error)
                withheld.append(_out_of_reach(sink, error))
                continue
            roots[sink.state_location or ""] = root
            for path in _with_files(view, sorted(manifests)):
                _add(named, path, stores)
        for root in roots.values():
            for entry in RemovalJournal(root).entries(view.uuid):
                self._read_expired(
                    view, [one.manifest_list for one in entry.snapshots], entry.statistics, named, stores
                )
        return withheld

    def _records_of(self, sink: NamedSink, table_uuid: str) -> tuple[StateStore, frozenset[str]]:
        """The state location of a sink, and the manifests that its records name. Raises if it is out of reach."""
        if sink.state_location is None or sink.epoch is None:
            raise InvalidInput("the table does not state where its records are")
        root = self._lake.state_root(sink.state_location)
        journal = Journal(StateFolder(root, sink.sink_id))
        if not journal.is_of(table_uuid, sink.epoch):
            raise InvalidInput(f"its records are not in {sink.state_location}")
        return root, journal.named_manifests()

    def _read_expired(
        self, view: TableView, lists: Sequence[str], statistics: Sequence[str], named: _Named, stores: set[str]
    ) -> None:
        """Files of expired snapshots that wait for their removal: readers may still use them."""
        for path in (*lists, *statistics):
            _add(named, path, stores)
        for location in lists:
            with suppress(FileNotFoundError):
                for path in _with_files(view, _reading(view.manifests_in, location, missing_ok=True)):
                    _add(named, path, stores)

    def _read_metadata(self, view: TableView, named: _Named, stores: set[str]) -> bool:
        """Add everything that the metadata names; False if a file is missing that newer metadata may not name.

        Raises TransientError if the newest metadata names a file that cannot be read.
        """
        if view.table.metadata_location == self._read_at:
            return True
        try:
            self._add_snapshots(view, named, stores)
        except FileNotFoundError as error:
            again = view_of(self._catalog, self._ref.name)
            if again.table.metadata_location == view.table.metadata_location:
                detail = f"{error.filename} is missing."
                raise TransientError("a file that the table names could not be read", detail=detail) from error
            return False
        self._read_at = view.table.metadata_location
        return True

    def _add_snapshots(self, view: TableView, named: _Named, stores: set[str]) -> None:
        for path in view.own_files:
            _add(named, path, stores)
        new: set[str] = set()
        for location in view.lists - named.lists:
            _add(named, location, stores)
            new |= set(_reading(view.manifests_in, location, missing_ok=True))
        for path in new - named.manifests:
            _add(named, path, stores)
        for path in _stream(view.files_in(sorted(new - named.manifests)), missing_ok=True):
            _add(named, path, stores)
        named.lists.update(view.lists)
        named.manifests.update(new)

    # ---- the difference

    def _compare(self, listing: Path, target: Path, named: _Named, decide: "_Decision") -> None:
        report, folders = self._report, decide.folders
        bases = [store_and_path(folder)[1].encode(errors="surrogateescape") for folder in folders]
        with Spool(target, _NOTED, {_HOLDS: json.dumps(decide.holds).encode()}) as spool:
            for batch in batches_of(listing):
                below, which = batch["below"].to_pylist(), batch["folder"].to_numpy()
                paths = [bases[number] + b"/" + name for number, name in zip(which, below, strict=True)]
                hashes = batch["hash"].to_numpy()
                kept = named.here.contains(hashes)
                twins = ~kept & named.elsewhere.contains(hashes)
                if twins.any():
                    raise _same_path(self._ref, os.fsdecode(paths[int(np.argmax(twins))]))
                sizes, old = batch["size"].to_numpy(), decide.is_old(batch["mtime_ms"].to_numpy())
                known, noted = decide.notes_on(hashes)
                for place in np.flatnonzero(~kept & old):
                    name = below[place]
                    kind = decide.kind_of(name, int(which[place]))
                    size = sizes[place : place + 1]
                    if kind is None:
                        continue
                    if kind == _OTHER:
                        report.others.add(size)
                        if len(report.some_others) < SHOWN:
                            report.some_others.append(os.fsdecode(paths[place]))
                        continue
                    report.orphans.add(size)
                    noted_ms = int(noted[place])
                    go = bool(known[place]) and decide.goes(name, noted_ms)
                    if not go:
                        withheld = decide.is_withheld(name, noted_ms)
                        (report.withheld if withheld and known[place] else report.waiting).add(size)
                    location = folders[int(which[place])].encode(errors="surrogateescape") + b"/" + name
                    spool.add((paths[place], location, int(size[0]), noted_ms, go))

    # ---- removal

    def _remove(self, candidates: Path, named: _Named) -> None:
        stores = {store_and_path(folder)[0] for folder in view_of(self._catalog, self._ref.name).folders}
        for batch in batches_of(candidates):
            chosen = batch.filter(batch["go"])
            for start in range(0, len(chosen), AT_ONCE):
                piece = chosen.slice(start, AT_ONCE)
                view = view_of(self._catalog, self._ref.name)
                if view.refusal or not self._read_metadata(view, named, stores):
                    raise TransientError("the table changed while its orphan files were removed")
                left = ~named.here.contains(hashes_of(piece["path"].to_pylist()))
                piece = piece.filter(pa.array(left))
                reached("orphans.remove")
                removed = discard_orphans(view.io, [os.fsdecode(one) for one in piece["location"].to_pylist()])
                self._report.removed.files += removed
                self._report.removed.bytes += int(piece["size"].to_numpy().sum())
                self._say(f"removed {self._report.removed.files:,} files")

    def _notes_file(self, view: TableView) -> Path:
        return self._lake.home / "orphans" / f"{view.uuid}.arrow"


_OWN, _OTHER = "own", "other"


class _Decision:
    """Decides about files that nothing names."""

    def __init__(
        self,
        view: TableView,
        options: OrphanOptions,
        notes: "OrphanNotes",
        holds: Mapping[str, int],
        now_ms: int,
        *,
        only_lists: bool,
    ) -> None:
        self.folders, self.holds = view.folders, dict(holds)
        self._mark, self._options, self._notes, self._now_ms = view.mark, options, notes, now_ms
        self._only_lists = only_lists
        self._oldest_hold_ms = min(holds.values(), default=None)

    def is_old(self, mtimes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which files are older than the limit."""
        return np.asarray(self._now_ms - mtimes >= self._options.age_ms)

    def kind_of(self, below: bytes, folder: int) -> str | None:
        """Whether a file belongs to this job or is another one; None for files that are never orphans."""
        try:
            text = below.decode()
        except UnicodeDecodeError:
            return _OTHER  # neither calve nor any other writer of tables chose this name
        name = text.rpartition("/")[2]
        if name == VERSION_HINT or _METADATA in name:
            return None  # metadata files belong to the catalog and to delete-after-commit
        mark = mark_in(text)
        if mark is not None:
            return _OWN if mark == self._mark else None
        if any(part.startswith(("_", ".")) and "=" not in part for part in text.split("/")):
            return None  # of other tools: no reader takes them for a file of a table
        return _OWN if self._options.everything and folder == 0 else _OTHER

    def notes_on(self, hashes: Hashes) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Whether an earlier run noted files, and when; now, if none did."""
        return self._notes.on(hashes, self._now_ms)

    def is_withheld(self, below: bytes, noted_ms: int) -> bool:
        """Whether a sink or a compaction that nobody can look into may still refer to a file."""
        if is_list(os.fsdecode(below).rpartition("/")[2]):
            return False
        if self._only_lists:
            return True
        # A compaction that is running wrote a noted file only if it was already running when the file was noted.
        return self._oldest_hold_ms is not None and self._oldest_hold_ms <= noted_ms

    def goes(self, below: bytes, noted_ms: int) -> bool:
        """Whether a file that an earlier run noted is removed now."""
        return self._now_ms - noted_ms >= self._options.age_ms and not self.is_withheld(below, noted_ms)


class OrphanNotes:
    """Which orphans earlier runs found, and when; and when each hold was first seen."""

    def __init__(self, file: Path, hashes: NDArray[np.uint64], times: NDArray[np.int64], holds: dict[str, int]) -> None:
        self._file, self._hashes, self._times, self.holds = file, hashes, times, holds

    @classmethod
    def read(cls, file: Path) -> "OrphanNotes":
        """Read the notes; damaged or missing ones are empty, so that everything waits again."""
        hashes, times, holds = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], dict[str, int]()
        try:
            if file.exists():
                for batch in batches_of(file):
                    hashes.append(hashes_of(batch["path"].to_pylist()))
                    times.append(batch["noted_ms"].to_numpy())
                    holds = json.loads((batch.schema.metadata or {}).get(_HOLDS, b"{}"))
        except (pa.ArrowException, ValueError, KeyError) as error:
            _log.warning("the notes about orphan files in %s are damaged: %s", file, error)
            return cls(file, np.empty(0, np.uint64), np.empty(0, np.int64), {})
        joined, known = np.concatenate(hashes), np.concatenate(times)
        order = np.argsort(joined)
        return cls(file, joined[order], known[order], holds)

    def on(self, hashes: Hashes, otherwise: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Whether paths were noted, and when first."""
        found, places = find(self._hashes, hashes)
        times = np.full(len(hashes), otherwise, np.int64)
        times[found] = self._times[places[found]]
        return found, times

    def replace(self, candidates: Path) -> None:
        """Replace the notes by what a run found. Raises OSError."""
        make_private(self._file.parent)
        remove_abandoned(self._file.parent)
        part = part_of(self._file)
        shutil.copyfile(candidates, part)
        durable.sync([part])
        part.replace(self._file)
        durable.sync_folder(self._file.parent)


class _Expected:
    """Files that a listing must contain."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = [store_and_path(folder) for folder in folders]
        self._paths = PathSet()

    def add(self, location: str) -> None:
        """Expect a file, if it is below a listed folder."""
        store, path = store_and_path(location)
        if any(store == other and path.startswith(f"{base}/") for other, base in self._folders):
            self._paths.add(path.encode(errors="surrogateescape"))

    @property
    def count(self) -> int:
        """How many files are expected."""
        return len(self._paths)

    def missing_in(self, listing: Path) -> int:
        """How many of them were not listed."""
        wanted = self._paths.hashes
        seen = np.zeros(len(wanted), bool)
        for batch in batches_of(listing):
            found, places = find(wanted, batch["hash"].to_numpy())
            seen[places[found]] = True
        return int((~seen).sum())


def _add(named: _Named, location: str, stores: set[str]) -> None:
    store, path = store_and_path(location)
    (named.here if store in stores else named.elsewhere).add(path.encode(errors="surrogateescape"))


def _sinks(view: TableView) -> list[tuple[str, str | None]]:
    return [(sink.sink_id, sink.state_location) for sink in view.sinks]


def _reading(read: Callable[..., Any], *arguments: str, missing_ok: bool = False) -> Any:
    """Read files of the table. Raises TransientError; FileNotFoundError with `missing_ok`."""
    try:
        return read(*arguments)
    except FileNotFoundError as error:
        if missing_ok:
            raise
        raise TransientError("a file that the table names could not be read", detail=f"{error}.") from error
    except OSError as error:
        raise TransientError("a file that the table names could not be read", detail=f"{error}.") from error


def _stream(paths: Iterator[str], *, missing_ok: bool = False) -> Iterator[str]:
    while (found := _reading(lambda: next(paths, None), missing_ok=missing_ok)) is not None:
        yield found


def _with_files(view: TableView, manifests: Sequence[str]) -> Iterator[str]:
    """Manifests that may be missing, and their files."""
    yield from manifests
    yield from _stream(view.files_in(manifests, missing_ok=True))


def _count_removable(candidates: Path, report: OrphanReport) -> None:
    for batch in batches_of(candidates):
        report.removed.add(batch.filter(batch["go"])["size"].to_numpy())


def _out_of_reach(sink: NamedSink, error: Exception) -> str:
    reason = error.primary if isinstance(error, CalveError) else f"a record is damaged ({error})"
    return (
        f"the state of sink {sink.sink_id} is out of reach, so only manifest lists are removed: {reason}; "
        f"if the sink never runs again: --forget {sink.sink_id}"
    )


def _same_path(table: TableRef, path: str) -> TerminalError:
    return TerminalError(
        f'table "{table.name}" names a file of another store that has the path of a file in its folder',
        detail=f"The path is {path}.",
        hint="If both are the same store, its names do not match. Nothing was removed.",
    )
