"""Looks up the keys of a batch in the sink's key index, and takes data files in that it lacks.

A file that the index has is not opened at all. What the index finds is compared with the deletes of the snapshot, as
everything that is found. Files that are too many to be taken in at once are left to the search of key columns, and
taken in by later batches.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calve.iceberg.key_scan import Candidate, KeyScan
from calve.iceberg.position_deletes import Found
from calve.index.build import KeyReader
from calve.index.key_index import Base, KeyIndex, Positions, indexed
from calve.index.manifest import IndexedFile, Owner, Run
from calve.index.words import Keys, NotIndexable, sorted_keys
from calve.model.scan import ScanFile
from calve.model.spec import KeyIndexUse
from calve.model.table import TableState
from calve.resolve.search import THREADS
from calve.scan.positions import PositionFinder, Remembered


@dataclass(frozen=True)
class IndexLimits:
    """When an index is worth its while, and how much of a table is taken in by one batch."""

    rows: int = 3_000_000
    """Rows to compare, from which on a look-up costs less than to read their keys and to write the index."""
    bytes: int = 24 << 20
    """The same, of key columns."""
    taken_rows: int = 30_000_000
    keys: int = 5_000_000
    """Keys of a batch that are looked up in memory."""

    def worthwhile(self, scan: KeyScan) -> bool:
        """Whether reading the keys of all candidates costs more."""
        rows = sum(c.file.rows for c in scan.candidates)
        return rows >= self.rows or sum(c.key_bytes for c in scan.candidates) >= self.bytes


BY_MEASUREMENT = IndexLimits()


@dataclass(frozen=True)
class Answer:
    """What the index found, and what is left to be searched."""

    found: tuple[Found, ...]
    rest: KeyScan
    reference: str
    """The manifest to be named by the snapshot; empty for the one that the table names already."""


class IndexedSearch:
    """Asks the index of one sink."""

    def __init__(self, index: KeyIndex, use: KeyIndexUse, limits: IndexLimits = BY_MEASUREMENT) -> None:
        self._index, self._use, self._limits = index, use, limits

    def ask(self, scan: KeyScan, state: TableState, commit_id: str, remembered: Remembered) -> Answer:
        """Raises TransientError, TerminalError."""
        nothing = Answer((), scan, "")
        if self._use is KeyIndexUse.OFF or sum(key.rows for key in scan.keys) > self._limits.keys:
            return nothing
        if self._use is KeyIndexUse.AUTO and not self._limits.worthwhile(scan):
            return nothing
        finder = PositionFinder(scan.target, [c.file for c in scan.candidates], remembered)
        try:
            keys = sorted_keys(finder.key_columns_of(scan.candidates[0].file))
        except NotIndexable:
            return nothing
        return self._asked(scan, _base(scan, state), keys, _Search(finder, remembered, commit_id))

    def _asked(self, scan: KeyScan, base: Base, keys: Keys, search: "_Search") -> Answer:
        before = self._index.opened(base)
        found, lost = self._index.lookup(before.runs, keys)
        runs = [run for run in before.runs if run not in lost]
        reader = KeyReader(scan.target, scan.key_ids, search.remembered, THREADS)
        new = self._index.take_in(reader, self._lacking(scan.candidates, runs))
        more, lost = self._index.lookup(new, keys)
        runs += [run for run in new if run not in lost]
        manifest = self._index.publish(base, runs, search.commit_id)
        covered = manifest.covered
        by_file = {indexed(c.file): c.file for c in scan.candidates}
        live = tuple(search.live(by_file[file], at) for file, at in {**found, **more}.items() if file in by_file)
        self._index.merge_if_due(base, manifest, lambda paths: search.deleted(by_file.values(), paths))
        self._index.tidy(base, manifest)
        rest = tuple(c for c in scan.candidates if indexed(c.file) not in covered)
        return Answer(live, replace(scan, candidates=rest), manifest.name)

    def _lacking(self, candidates: Sequence[Candidate], runs: Sequence[Run]) -> list[ScanFile]:
        """Files that are to be taken in now."""
        covered = {file for run in runs for file in run.files}
        lacking: list[ScanFile] = []
        room = self._limits.taken_rows
        for candidate in candidates:
            if indexed(candidate.file) not in covered and candidate.file.rows <= room:
                lacking.append(candidate.file)
                room -= candidate.file.rows
        return lacking


@dataclass(frozen=True)
class _Search:
    """What one question needs of the table."""

    finder: PositionFinder
    remembered: Remembered
    commit_id: str

    def live(self, file: ScanFile, positions: Positions) -> Found:
        """Those of the positions that are not deleted yet."""
        return Found(file, positions[~self.finder.deleted(file)[positions]])

    def deleted(self, files: Collection[ScanFile], paths: Collection[str]) -> dict[str, NDArray[np.bool_]]:
        """Flags of deleted rows of those of the files that are asked for; copies, for they are read by a thread."""
        return {file.path: self.finder.deleted(file).copy() for file in files if file.path in paths}


def _base(scan: KeyScan, state: TableState) -> Base:
    reference = next((s.own.key_index for s in state.ancestors if s.own), "")
    return Base(
        owner=Owner(state.uuid, scan.key_ids),
        reference=reference,
        snapshots=tuple(s.snapshot_id for s in state.ancestors),
        live=frozenset(IndexedFile(path, size, rows) for path, (size, rows) in scan.live.items()),
    )
