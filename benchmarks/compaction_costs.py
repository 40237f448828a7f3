"""Rows rewritten per change and predicted cost of reads by policy: `python benchmarks/compaction_costs.py`.

    PYTHONPATH=. python benchmarks/compaction_costs.py --measure [--rows 500000] [--batch 10000] [--spark]

A table of 5 million rows gets batches of changes; files, their deletes and their keys are numbers, the choice of files
is calve's. No file is read or written, so it takes no quiet machine. Each line is one policy on one workload:

    rewritten   rows rewritten per changed row
    reads       predicted cost of a full read, as a ratio to a fresh table: mean over all batches
    worst       the same, the highest

With `--measure`, a real table of `--rows` rows is changed, compacted by the default policy and read by DuckDB,
pyiceberg and calve, and with `--spark` by Spark with the Iceberg runtime, beside the prediction (`measured_reads.py`).

`uniform` updates any row, `recent` mostly the newest tenth of the keys, `inserts` adds nine rows for each update.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calve.iceberg.planning.compaction_cost import read_ratio, tradeoff
from calve.iceberg.planning.compaction_groups import AUTOMATIC, CompactionPolicy, ages_by, due_groups
from calve.model.scan import DeleteFile, DeleteKind, ScanFile

ROWS = 5_000_000
ROW_BYTES = 17
TARGET = 512_000_000
BUCKETS = 64
"""Ranges of keys: rows of one range are alike."""
LOOK_EVERY, LOOK_SECONDS = 8, 600.0
"""When a sink plans, as in `calve.pipeline.upkeep`, which would import Spark."""
MEASURE_EVERY = 4
"""Batches between two reads of a real table."""

Counts = NDArray[np.float64]


@dataclass(eq=False)
class File:
    """A data file: its live rows by range of keys, and the number of deleted ones."""

    live: Counts
    sequence: int
    dead: float = 0.0

    def scanned(self, name: int, kind: DeleteKind) -> ScanFile:
        """The file as a reader sees it."""
        rows = max(1, round(float(self.live.sum()) + self.dead))
        gone = DeleteFile(kind, f"d{name}", 100, round(self.dead), self.sequence)
        deletes = (gone,) if gone.rows else ()
        return ScanFile(str(name), rows * ROW_BYTES, rows, self.sequence, deletes=deletes)


@dataclass(frozen=True)
class Workload:
    """What the batches change."""

    name: str
    weights: Counts
    """How likely a row of each range is updated."""
    inserts: float = 0.0
    """Share of the changes that insert rows, into the last range."""


RECENT = np.where(np.arange(BUCKETS) >= BUCKETS * 0.9, 1.0, 0.02)
WORKLOADS = (
    Workload("uniform", np.ones(BUCKETS)),
    Workload("recent", RECENT),
    Workload("inserts", np.ones(BUCKETS), inserts=0.9),
)


@dataclass
class Result:
    """What came of a run."""

    rewritten: float = 0.0
    changed: float = 0.0
    ratios: list[float] = field(default_factory=list)
    compactions: int = 0


def fresh(live: Counts, sequence: int, file_size: int) -> list[File]:
    """Files of the desired size with these rows, in the order of their keys."""
    pieces = max(1, math.ceil(live.sum() * ROW_BYTES / file_size - 0.25))
    ends = np.cumsum(live)
    bounds = np.linspace(0, ends[-1], pieces + 1)
    covered = np.clip(ends[None, :], bounds[:-1, None], bounds[1:, None]) - np.clip(
        (ends - live)[None, :], bounds[:-1, None], bounds[1:, None]
    )
    return [File(rows, sequence) for rows in covered]


def simulate(
    workload: Workload, policy: CompactionPolicy, kind: DeleteKind, *, batch: int, seconds: float, batches: int
) -> Result:
    """Apply batches, and compact as a sink does."""
    files = fresh(np.full(BUCKETS, ROWS / BUCKETS), 0, 16 << 20)
    done, times, looked = Result(), [(0, 0)], 0
    for sequence in range(1, batches + 1):
        times.append((sequence, round(sequence * seconds * 1000)))
        rows: Counts = np.sum([file.live for file in files], axis=0)
        weighted = rows * workload.weights
        updates = batch * (1 - workload.inserts)
        share = np.divide(weighted * updates / weighted.sum(), rows, out=np.zeros(BUCKETS), where=rows > 0)
        for file in files:
            hit = file.live * np.minimum(share, 1.0)
            file.live, file.dead = file.live - hit, file.dead + float(hit.sum())
        new = rows * share
        new[-1] += batch * workload.inserts
        files.append(File(new, sequence))
        done.changed += batch
        if sequence >= looked + LOOK_EVERY or (sequence - looked) * seconds >= LOOK_SECONDS:
            looked = sequence
            files = compacted(files, policy, kind, times, done)
        scanned = [file.scanned(number, kind) for number, file in enumerate(files)]
        done.ratios.append(read_ratio(scanned, max(16 << 20, min(TARGET, sum(f.size for f in scanned) // 8))))
    return done


def compacted(
    files: Sequence[File], policy: CompactionPolicy, kind: DeleteKind, times: Sequence[tuple[int, int]], done: Result
) -> list[File]:
    """Rewrite what is due."""
    scanned = [file.scanned(number, kind) for number, file in enumerate(files)]
    due = due_groups(scanned, TARGET, policy, ages_by(times, times[-1][1]))
    left = dict(enumerate(files))
    for group in due.groups:
        live: Counts = np.sum([left.pop(int(file.path)).live for file in group], axis=0)
        done.rewritten += float(live.sum())
        for file in fresh(live, times[-1][0], due.file_size):
            left[max(left, default=-1) + len(files) + 1] = file
    done.compactions += bool(due.groups)
    return list(left.values())


def policy(share: float, fan: int) -> CompactionPolicy:
    """A policy that does not count reads."""
    return replace(AUTOMATIC, deleted_share=share, fan=fan, reads_per_hour=0)


POLICIES = {
    **{f"share {share}, {fan} files": policy(share, fan) for share, fan in ((0.1, 8), (0.25, 8))},
    **{f"share {share}, {fan} files": policy(share, fan) for share in (0.3, 0.4, 0.5) for fan in (16, 32)},
    "default": AUTOMATIC,
}


def main() -> None:
    """Sweep and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--measure", action="store_true", help="read a real table instead")
    parser.add_argument("--rows", type=int, default=500_000, help="of the table that is measured")
    parser.add_argument("--spark", action="store_true", help="let Spark read it, too")
    parser.add_argument("--batch", type=int, help="changes per batch; 100,000, or a fiftieth of the rows measured")
    parser.add_argument("--seconds", type=float, default=1.0, help="time between two batches")
    parser.add_argument("--batches", type=int, help="200, or 40 if it is measured")
    parser.add_argument("--workloads", nargs="*", default=[one.name for one in WORKLOADS])
    parser.add_argument("--policies", nargs="*", default=list(POLICIES))
    given = parser.parse_args()
    if given.measure:
        from measured_reads import Measured, measure  # noqa: PLC0415 - imports Spark

        batch, batches = given.batch or given.rows // 50, given.batches or 40
        for version in (2, 3):
            what = Measured(given.rows, batch, batches, given.seconds, MEASURE_EVERY, given.spark)
            measure(version, what, LOOK_EVERY, TARGET)
        return
    given.batch, given.batches = given.batch or 100_000, given.batches or 200
    settings: dict[str, Any] = {"batch": given.batch, "seconds": given.seconds, "batches": given.batches}
    print(f"{given.batches} batches of {given.batch:,} changes, one every {given.seconds:g} s, into {ROWS:,} rows")
    for kind in (DeleteKind.POSITION, DeleteKind.VECTOR):
        print(f"\n{kind}: rows rewritten per change x (mean of reads - 1) is {tradeoff(kind):.1f} for uniform updates")
        print(f"{'workload':10} {'policy':24} {'rewritten':>9} {'reads':>6} {'worst':>6} {'rounds':>6}")
        for workload in (one for one in WORKLOADS if one.name in given.workloads):
            for name in given.policies:
                found = simulate(workload, POLICIES[name], kind, **settings)
                mean, worst = float(np.mean(found.ratios)), max(found.ratios)
                rewritten = found.rewritten / found.changed
                print(
                    f"{workload.name:10} {name:24} {rewritten:9.2f} {mean:6.2f} {worst:6.2f} {found.compactions:6}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
