"""Runs become fewer: as soon as several are of about one size, they are merged into one, so there are always few.

A merge goes through the hashes range by range, and holds one range of all its runs in memory. It leaves out entries
of data files that left the table and, as far as that is known, of rows that are deleted. It takes nothing away: its
inputs stay until a manifest without them is in the table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calve.index.manifest import IndexedFile, Run
from calve.index.parts import Entries, Part, Parts, rows_per_part
from calve.index.words import Words, widened, widest

_FAN = 4
"""Runs of one size that are merged."""
_SMALLEST = 65_536
"""Entries below which sizes do not matter."""
_HASHES = 1 << 64
_POSITION = np.uint64(0xFFFF_FFFF)
_FILE_SHIFT = np.uint64(32)

Flags = NDArray[np.bool_]


def due(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Runs that are to be merged now; none most of the time."""
    tiers: dict[int, list[Run]] = {}
    for run in runs:
        tiers.setdefault(_tier(run.rows), []).append(run)
    for _, members in sorted(tiers.items()):
        if len(members) >= _FAN:
            return tuple(members)
    return ()


def _tier(rows: int) -> int:
    return (max(rows, _SMALLEST) // _SMALLEST).bit_length() // (_FAN.bit_length() - 1)


@dataclass(frozen=True)
class Merge:
    """What is merged, and what is left out of it."""

    runs: tuple[Run, ...]
    live: frozenset[IndexedFile]
    """Data files of the snapshot."""
    deleted: Mapping[str, Flags]
    """By path: rows that are deleted in it. Files that are not here keep all entries."""

    def run(self, parts: Parts, fresh_name: Callable[[], str]) -> Run:
        """The one run that takes their place. Raises DamagedIndex, TransientError."""
        files = tuple(dict.fromkeys(file for run in self.runs for file in run.files if file in self.live))
        widths = widest(run.widths for run in self.runs if run.parts)
        exact = all(run.exact for run in self.runs)
        kept = _Kept.of(files, self.deleted)
        ranges = -(-sum(run.rows for run in self.runs) // rows_per_part(0 if exact else sum(widths))) or 1
        made: list[Part] = []
        for number in range(ranges):
            low, high = number * _HASHES // ranges, (number + 1) * _HASHES // ranges - 1
            pieces = [piece for run in self.runs for piece in self._pieces(run, (low, high), parts, kept, widths)]
            if any(len(piece) for piece in pieces):
                made.append(parts.put(fresh_name(), Entries.together(pieces)))
        return Run(files, widths, exact, tuple(made))

    def _pieces(
        self, run: Run, between: tuple[int, int], parts: Parts, kept: "_Kept", widths: Sequence[int]
    ) -> list[Entries]:
        numbers = np.array([kept.numbers.get(file, -1) for file in run.files], np.int64)
        found = []
        for part in run.parts:
            if part.low <= between[1] and between[0] <= part.high:
                entries = parts.between(part, *between)
                stays, places = kept.placed(entries.places, numbers)
                words = entries.words[stays]
                words = words if run.exact else widened(words, run.widths, widths)
                found.append(Entries(entries.hashes[stays], places, words))
        return found


@dataclass(frozen=True)
class _Kept:
    """Files of the new run, and one flag for each of their rows that may be deleted."""

    numbers: Mapping[IndexedFile, int]
    starts: NDArray[np.int64]
    """By number of a file: where its flags begin; -1 where it has none."""
    flags: Flags

    @classmethod
    def of(cls, files: Sequence[IndexedFile], deleted: Mapping[str, Flags]) -> "_Kept":
        flags = [deleted.get(file.path, np.empty(0, bool)) for file in files]
        lengths = np.array([len(one) for one in flags], np.int64)
        starts = np.where(lengths > 0, np.cumsum(lengths) - lengths, -1)
        joined = np.concatenate(flags) if flags else np.empty(0, bool)
        return cls({file: number for number, file in enumerate(files)}, starts, joined)

    def placed(self, places: Words, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], Words]:
        """Which entries stay, and their places by the new numbers of files."""
        new = numbers[(places >> _FILE_SHIFT).astype(np.int64)]
        stays = new >= 0
        positions = (places & _POSITION).astype(np.int64)
        starts = np.where(stays, self.starts[new], -1) if len(self.starts) else np.full(len(new), -1)
        known = np.flatnonzero(starts >= 0)
        stays[known] = ~self.flags[starts[known] + positions[known]]
        which = np.flatnonzero(stays)
        return which, (new[which].astype(np.uint64) << _FILE_SHIFT) | positions[which].astype(np.uint64)
