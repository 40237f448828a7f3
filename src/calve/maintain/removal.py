"""Removes the files of expired snapshots, some time after they expired.

    journal entry ──► the table was seen without its snapshots ──► grace ──► work in flight ──► newest metadata
                                                                                                    │
        entry ◄── manifest lists ◄── manifests ◄── data, deletes, statistics ◄── load again ◄── difference

A file is removed only if nothing names it: no snapshot of the table, neither in the metadata loaded before the
difference was computed nor in that loaded right before the deletion; no record of a batch that is not committed; no
snapshot that expired less than `grace` ago. Records are read before the metadata, because that is how files move: a
batch that is in neither was committed in between, and the metadata names it.

Everything is done in an order that survives a crash at any point: what names a file is removed after the file, and
the entry last. Several processes may do the same at the same time; a missing file is a removed one.

Only manifests that no kept snapshot names are candidates. Their files are compared with those of all kept manifests,
`CHUNK` files at a time; where the manifests are large, all at once by Spark tasks (`removal_tasks.py`). Either way
memory is bounded by a chunk and by the names of the manifests; and whatever was compared when, `still_unnamed` decides
right before files are removed, with every manifest that was added since.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field, replace
from errno import ENOENT
from typing import Protocol

from calve.clock import Clock
from calve.errors import TransientError
from calve.faults import reached
from calve.iceberg.snapshot.expired_files import LISTS, STATISTICS, NamedFile, TableNames
from calve.iceberg.snapshot.removal_journal import RemovalEntry, RemovalJournal, RemovedSnapshot
from calve.model.spec import DAY_MS
from calve.storage.path_hashes import PathSet, hashes_of

CHUNK = 200_000
"""Files that are compared at once."""
AT_ONCE = 1_000
"""Files that are removed between two loads of the table."""
ABANDONED_MS = DAY_MS
"""An expiry that the table does not show for this long was not applied: what the table has leaves its entry."""
LAST_LOADS = 5
"""How often the table is loaded before files are removed, if it is different every time."""
RESTARTS = 3
"""How often the kept files are determined again because a file of theirs was gone."""

_log = logging.getLogger(__name__)


class TableFiles(Protocol):
    """The files of one table, and its newest metadata."""

    def load(self) -> TableNames | None:
        """Load the newest metadata, with all snapshots; None if the table is gone. Raises TransientError."""
        ...

    def lost_refs(self, removed: frozenset[int]) -> frozenset[int] | None:
        """Which of these removed snapshots a ref named in the metadata before they were removed.

        None if that metadata cannot be found. Raises TransientError.
        """
        ...

    def manifests_in(self, manifest_list: str) -> Sequence[NamedFile]:
        """Return the manifests of a list. Raises FileNotFoundError, OSError."""
        ...

    def files_in(self, manifest: str) -> Sequence[NamedFile]:
        """Return the files that a manifest adds or keeps. Raises FileNotFoundError, OSError."""
        ...

    def sizes_of(self, paths: Sequence[str]) -> Mapping[str, int]:
        """Return the sizes of files, 0 for missing ones. Raises TransientError."""
        ...

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files; missing ones are fine. Raises OSError if one could not be removed."""
        ...


@dataclass(frozen=True)
class FileDifference:
    """What only some manifests name."""

    missing: frozenset[str]
    """Kept manifests that do not exist."""
    unnamed: Iterator[list[NamedFile]]
    """The files of candidates that no kept manifest names, each once, in chunks."""


class TaskComparison(Protocol):
    """Compares the files of many manifests outside of this process."""

    @property
    def from_bytes(self) -> int:
        """The size of all manifests from which on it is worth that."""
        ...

    def compare(
        self, candidates: Collection[str], kept: Collection[str], check: Callable[[], None]
    ) -> AbstractContextManager[FileDifference]:
        """Compare the files of manifests. Candidates may be missing. Nothing is read again after the start.

        `check` is called again and again, and may raise. Raises TransientError if a manifest cannot be read.
        """
        ...


@dataclass(frozen=True)
class InFlight:
    """Work that may still be committed, and the files it names."""

    manifests: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    unknown_sinks: frozenset[str] = frozenset()
    """Sinks of the table whose records are out of reach."""


@dataclass
class RemovalReport:
    """What was removed, and what waits."""

    files: Counter[str] = field(default_factory=Counter)
    """By kind."""
    bytes: Counter[str] = field(default_factory=Counter)
    waiting: list[RemovalEntry] = field(default_factory=list)
    refusal: str = ""

    @property
    def next_ms(self) -> int | None:
        """When the first waiting entry was seen; None if none is."""
        return min((entry.seen_ms for entry in self.waiting if entry.seen_ms is not None), default=None)


class Removal:
    """Removes files of expired snapshots of one table."""

    def __init__(  # noqa: PLR0913 - those after the star are options by name
        self,
        table: TableFiles,
        journal: RemovalJournal,
        in_flight: Callable[[TableNames], InFlight],
        clock: Clock,
        *,
        grace_ms: int,
        check: Callable[[], None] = lambda: None,
        tasks: TaskComparison | None = None,
        at_once: int = AT_ONCE,
    ) -> None:
        """`check` is called between steps, and may raise to end the removal. Without `tasks`, this process compares."""
        self._table, self._journal, self._in_flight = table, journal, in_flight
        self._clock, self._grace_ms, self._check = clock, grace_ms, check
        self._tasks, self._at_once = tasks, at_once

    def run(self, *, dry_run: bool = False) -> RemovalReport:
        """Note which expiries the table shows, and remove the files of those whose grace is over.

        Raises TransientError; what is not done then is done by a later call.
        """
        report = RemovalReport()
        names = self._table.load()
        if names is None:
            return report
        settled = (self._settle(entry, names, dry_run=dry_run) for entry in self._journal.entries(names.uuid))
        entries = [entry for entry in settled if entry is not None]
        report.refusal = names.refusal
        now_ms = self._clock.now_ms()
        due = [entry for entry in entries if is_due(entry, now_ms, self._grace_ms)]
        if names.refusal or not due:
            report.waiting = entries
            return report
        work = _Work(self._table, self._journal, self._in_flight, self._check, self._tasks)
        removed = work.compare(due)
        report.waiting = [entry for entry in entries if entry not in removed]
        if removed:
            self._remove(work, removed, report, dry_run=dry_run)
        return report

    def _settle(self, entry: RemovalEntry, names: TableNames, *, dry_run: bool) -> RemovalEntry | None:
        """Note that the table no longer has the snapshots of an entry; None if the entry was dropped."""
        left, now_ms = entry, self._clock.now_ms()
        if is_there(entry, names):
            if entry.seen_ms is None and now_ms - entry.put_ms <= ABANDONED_MS:
                return entry  # its expiry may still be applied
            left = self._without_present(entry)
            if not left.snapshots:
                why = "its expiry was not applied" if entry.seen_ms is None else "its snapshots are in the table again"
                self._drop(entry, why, dry_run=dry_run)
                return None
        if left.seen_ms is None:
            lost = self._table.lost_refs(left.ids)
            if lost is None:
                self._drop(entry, "the metadata before the expiry cannot be read", dry_run=dry_run)
                return None
            if lost:
                _log.warning("a tag or branch was lost in an expiry; the files of its snapshot stay: %s", sorted(lost))
            left = left.seen(now_ms, lost)
        if left != entry and not dry_run:
            self._journal.put(left)
        return left

    def _without_present(self, entry: RemovalEntry) -> RemovalEntry:
        """The entry without snapshots that the table has: they came back, or others expired the rest of them.

        The table is loaded once more: they may have expired after it was loaded.
        """
        names = self._table.load()
        return entry.without(frozenset(names.lists)) if names is not None else entry

    def _drop(self, entry: RemovalEntry, why: str, *, dry_run: bool) -> None:
        _log.info("files of %d expired snapshots are not removed: %s", len(entry.snapshots), why)
        if not dry_run:
            self._journal.delete(entry)

    def _remove(self, work: "_Work", entries: Sequence[RemovalEntry], report: RemovalReport, *, dry_run: bool) -> None:
        def delete(files: Sequence[NamedFile]) -> None:
            for start in range(0, len(files), self._at_once):
                left = work.still_unnamed(files[start : start + self._at_once])
                if not dry_run:
                    self._delete(left)
                for file in left:
                    report.files[file.kind] += 1
                    report.bytes[file.kind] += file.size

        reached("removal.before")
        with closing(work.files()) as chunks:
            for chunk in chunks:
                delete(chunk)
        delete(work.statistics(entries))
        reached("removal.files")
        delete(work.manifests())
        reached("removal.manifests")
        delete(work.lists())
        reached("removal.lists")
        if dry_run:
            return
        for entry in entries:
            left = work.left_of(entry)
            if left is None:
                self._journal.delete(entry)
            elif left != entry:
                self._journal.put(left)
        reached("removal.after")
        _log.info("removed files of %d expired snapshots: %s", sum(len(e.snapshots) for e in entries), report.files)

    def _delete(self, files: Sequence[NamedFile]) -> None:
        try:
            self._table.remove([file.path for file in files])
        except OSError as error:
            raise TransientError("files of expired snapshots could not be removed", detail=str(error)) from error


def is_there(entry: RemovalEntry, names: TableNames) -> bool:
    """Whether the table has a snapshot of this entry."""
    return any(one in names.lists for one in entry.ids)


def is_due(entry: RemovalEntry, now_ms: int, grace_ms: int) -> bool:
    """Whether the files of an entry may be removed: its grace is over."""
    return entry.seen_ms is not None and now_ms - entry.seen_ms >= grace_ms


class _Work:
    """The difference between what expired snapshots name and what anything else names."""

    def __init__(
        self,
        table: TableFiles,
        journal: RemovalJournal,
        in_flight: Callable[[TableNames], InFlight],
        check: Callable[[], None],
        tasks: TaskComparison | None,
    ) -> None:
        self._table, self._journal, self._tasks = table, journal, tasks
        self._find_in_flight, self._check = in_flight, check
        self._due: frozenset[str] = frozenset()
        """The entries that are carried out."""
        self._lists: set[str] = set()
        """Manifest lists that are kept."""
        self._manifests: set[str] = set()
        """Manifests that are kept."""
        self._kept_bytes = 0
        """Their size."""
        self._optional: set[str] = set()
        """Those of them that may be missing: work in flight and expired snapshots name them."""
        self._files: set[str] = set()
        """Other files that are kept."""
        self._late = PathSet()
        """Files of kept manifests that were found while files were being removed."""
        self._candidate_lists: dict[str, RemovedSnapshot] = {}
        self._candidates: dict[str, NamedFile] = {}
        """Manifests to be removed."""

    def compare(self, due: Sequence[RemovalEntry]) -> list[RemovalEntry]:
        """Determine what is kept and what is not; returns the entries whose files are removed."""
        self._due = frozenset(entry.entry_id for entry in due)
        for _ in range(RESTARTS):
            flying, names = self._look()
            entries = [entry for entry in due if not is_there(entry, names)]
            try:
                self._keep(names, flying, entries)
            except FileNotFoundError as error:
                self._check_gone(str(error.filename), error)
                continue
            for entry in entries:
                for one in entry.snapshots:
                    if not must_stay(one, entry, flying):
                        self._add_candidate(one)
            return entries
        raise unreadable("The table changes too fast.")

    def _look(self) -> tuple[InFlight, TableNames]:
        """Work in flight first, and the table's metadata last: files move from the one to the other."""
        first = self._load()
        flying = self._find_in_flight(first)
        return flying, self._load()

    def _load(self) -> TableNames:
        names = self._table.load()
        if names is None or names.refusal:
            raise TransientError(f"files are not removed: {names.refusal if names else 'the table is gone'}")
        return names

    def _keep(self, names: TableNames, flying: InFlight, entries: Sequence[RemovalEntry]) -> None:
        self._files = set(flying.files) | set(names.statistics)
        self._optional = set(flying.manifests)
        self._lists, self._manifests, self._kept_bytes = set(), set(flying.manifests), 0
        self._keep_lists(names.lists.values())
        self._keep_expired(one for entry in entries for one in entry.snapshots if must_stay(one, entry, flying))
        self._keep_waiting(names)

    def _keep_waiting(self, names: TableNames) -> set[str]:
        """Keep the files of snapshots that expired less than a grace ago; returns manifests not known before.

        The journal is read after the metadata: a snapshot that the metadata no longer has was in the journal before.
        """
        waiting = [entry for entry in self._journal.entries(names.uuid) if entry.entry_id not in self._due]
        self._files.update(path for entry in waiting for path in entry.statistics)
        return self._keep_expired(not_yet(waiting))

    def _keep_expired(self, snapshots: Iterable[RemovedSnapshot]) -> set[str]:
        found: dict[str, NamedFile] = {}
        for one in snapshots:
            if one.manifest_list in self._lists:
                continue
            self._lists.add(one.manifest_list)
            with suppress(FileNotFoundError), _readable(one.manifest_list):  # another process removed its files
                found |= {manifest.path: manifest for manifest in self._table.manifests_in(one.manifest_list)}
        new = self._keep_manifests(found)
        self._optional |= new
        return new

    def _keep_lists(self, lists: Iterable[str]) -> set[str]:
        """Keep manifest lists of the table, and return their manifests that were not known before."""
        found: dict[str, NamedFile] = {}
        for location in lists:
            if location not in self._lists:
                self._check()
                with _readable(location):
                    found |= {manifest.path: manifest for manifest in self._table.manifests_in(location)}
                self._lists.add(location)
        self._optional -= found.keys()  # also those that work in flight names
        return self._keep_manifests(found)

    def _keep_manifests(self, found: Mapping[str, NamedFile]) -> set[str]:
        """Keep manifests, and return those that were not known before."""
        new = found.keys() - self._manifests
        self._manifests |= new
        self._kept_bytes += sum(found[path].size for path in new)
        return new

    def _check_gone(self, path: str, error: OSError) -> None:
        """Check that the table no longer names a manifest or list that is missing. Raises TransientError if it does."""
        names = self._load()
        named = path in names.lists.values() or any(self._names(location, path) for location in names.lists.values())
        if named:
            raise unreadable(f"{path} is missing.") from error

    def _names(self, manifest_list: str, path: str) -> bool:
        with _readable(manifest_list):
            return any(manifest.path == path for manifest in self._table.manifests_in(manifest_list))

    def left_of(self, entry: RemovalEntry) -> RemovalEntry | None:
        """What the journal must still say of an entry that was carried out; None for nothing.

        Another entry may name the same snapshots, and is withdrawn if its expiry is refused: what was kept for it
        is left to a later run.
        """
        kept = tuple(one for one in entry.snapshots if one.manifest_list in self._lists)
        statistics = tuple(path for path in entry.statistics if path in self._files)
        return replace(entry, snapshots=kept, statistics=statistics) if kept or statistics else None

    def _add_candidate(self, one: RemovedSnapshot) -> None:
        if one.manifest_list in self._lists:
            return
        self._check()
        self._candidate_lists[one.manifest_list] = one
        try:
            manifests = self._table.manifests_in(one.manifest_list)
        except FileNotFoundError:
            return  # its files were removed before it
        except OSError as error:
            raise unreadable(str(error)) from error
        self._candidates |= {m.path: m for m in manifests if m.path not in self._manifests}

    def files(self) -> Generator[list[NamedFile], None, None]:
        """The files of candidates that nothing else names, in chunks."""
        size = self._kept_bytes + sum(one.size for one in self._candidates.values())
        if self._tasks is not None and size >= self._tasks.from_bytes:
            yield from self._files_by_tasks(self._tasks)
        else:
            yield from self._files_here()

    def _files_by_tasks(self, tasks: TaskComparison) -> Iterator[list[NamedFile]]:
        if not self._candidates:
            return
        with tasks.compare(self._candidates, self._manifests, self._check) as difference:
            for manifest in sorted(difference.missing - self._optional):
                self._check_gone(manifest, FileNotFoundError(ENOENT, "missing", manifest))
            for chunk in difference.unnamed:
                yield [file for file in chunk if file.path not in self._files]

    def _files_here(self) -> Iterator[list[NamedFile]]:
        chunk: dict[str, NamedFile] = {}
        for manifest in self._candidates:
            self._check()
            try:
                found = self._table.files_in(manifest)
            except FileNotFoundError:
                continue  # its files were removed before it
            except OSError as error:
                raise unreadable(str(error)) from error
            chunk |= {file.path: file for file in found if file.path not in self._files}
            if len(chunk) >= CHUNK:
                yield self._unnamed(chunk, self._manifests)
                chunk = {}
        if chunk:
            yield self._unnamed(chunk, self._manifests)

    def _unnamed(self, files: dict[str, NamedFile], manifests: Iterable[str]) -> list[NamedFile]:
        """Those of the files that these manifests do not name."""
        left = dict(files)
        for manifest in sorted(manifests):
            if not left:
                break
            for file in self._kept_in(manifest):
                left.pop(file.path, None)
        return list(left.values())

    def _kept_in(self, manifest: str) -> Sequence[NamedFile]:
        """The files of a kept manifest; none if it is gone and the table no longer names it. Raises TransientError."""
        self._check()
        try:
            return self._table.files_in(manifest)
        except FileNotFoundError as error:
            if manifest not in self._optional:
                self._check_gone(manifest, error)
        except OSError as error:
            refuse_unreadable(error)
        return ()

    def still_unnamed(self, files: Sequence[NamedFile]) -> list[NamedFile]:
        """Those of the files that the newest metadata does not name either. Called right before they are removed.

        Reading what is new takes a moment, so the table is loaded until nothing is, within reason. What one call finds
        counts for all later ones: their files were compared before that.
        """
        left = {file.path: file for file in files}
        for _ in range(LAST_LOADS):
            names = self._load()
            if any(one.snapshot_id in names.lists for one in self._candidate_lists.values()):
                raise TransientError("an expired snapshot is in the table again")
            known = len(self._lists)
            try:
                new = self._keep_lists(names.lists.values()) | self._keep_waiting(names)
            except FileNotFoundError as error:
                raise unreadable(str(error)) from error
            kept = (self._files | names.statistics, self._manifests, self._lists)
            left = {path: file for path, file in left.items() if not any(path in one for one in kept)}
            for manifest in sorted(new):
                for file in self._kept_in(manifest):
                    self._late.add(_encoded(file.path))
            late = self._late.contains(hashes_of(map(_encoded, left)))
            left = {path: file for (path, file), again in zip(left.items(), late, strict=True) if not again}
            if len(self._lists) == known:
                break
        return list(left.values())

    def statistics(self, entries: Sequence[RemovalEntry]) -> list[NamedFile]:
        """Statistics files of the expired snapshots."""
        paths = dict.fromkeys(path for entry in entries for path in entry.statistics if path not in self._files)
        return [NamedFile(path, STATISTICS, size) for path, size in self._table.sizes_of(list(paths)).items()]

    def manifests(self) -> list[NamedFile]:
        """Manifests that only expired snapshots name."""
        return list(self._candidates.values())

    def lists(self) -> list[NamedFile]:
        """Manifest lists of the expired snapshots."""
        sizes = self._table.sizes_of(list(self._candidate_lists))
        return [NamedFile(path, LISTS, size) for path, size in sizes.items()]


def not_yet(waiting: Sequence[RemovalEntry]) -> Iterator[RemovedSnapshot]:
    """Expired snapshots whose grace is not over: their files stay, even if others that share them are due."""
    for entry in waiting:
        yield from entry.snapshots


def must_stay(one: RemovedSnapshot, entry: RemovalEntry, flying: InFlight) -> bool:
    """Whether the files of an expired snapshot stay, although its grace is over.

    Either a tag named it when the catalog removed it; or it may have been rolled back, and records that nobody can read
    may commit its files again.
    """
    return one.snapshot_id in entry.spared or (one.loose and bool(flying.unknown_sinks))


def refuse_unreadable(error: OSError) -> None:
    """Refuse to remove files while something that the table names cannot be read. Raises TransientError."""
    raise unreadable(str(error)) from error


def unreadable(detail: str) -> TransientError:
    """A file that the table or an expired snapshot names cannot be read, so nothing may be removed."""
    return TransientError("files of expired snapshots were not removed", detail=detail)


def _encoded(path: str) -> bytes:
    return path.encode(errors="surrogateescape")


class _readable:  # noqa: N801 - used like a function
    """Turns failures to read a file of the table into TransientError, except for a missing file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(error.errno, "missing", self._path) from error
        if isinstance(error, OSError):
            raise unreadable(str(error)) from error
