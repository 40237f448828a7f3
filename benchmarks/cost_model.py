"""A cost model on paper: fitted to the results of benchmarks, it predicts tables that no benchmark makes.

    python benchmarks/cost_model.py [--results FOLDER]

What is fitted, and to which results:

    seconds of a batch      a + b x changes: `stream.py` (between two commits) and `upserts.py`, tables up to 5M rows
    seconds of the commit   the same for the phases of the thread that commits, which no executor shortens
    bytes of the index      per row of the largest table: `upserts.py`, `growth.py`
    requests and bytes      per commit: `footprint.py`
    CPU seconds             a + b x changes: `stream.py`

What is not fitted is what the code does, with its own numbers: pages and parts of the key index, and the memory that
keeps parts. Everything else is an assumption, and stated as one. `growth.py` measures larger tables: if its results are
there, the prediction is printed beside them. Batches of more keys than the driver looks up itself are the work of
executors: `by_tasks` predicts them.
"""

import argparse
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from harness import RESULTS

from calve.keylookup.index.parts import PAGE, PART_BYTES
from calve.keylookup.indexed import BY_MEASUREMENT
from calve.reader.resources import memory_on
from calve.storage.state import JOINED_GAP

ENTRY_BYTES = 16
"""Of the index, for a key of one integer: a hash and a place."""
WHOLE_SHARE = 1 / 4
"""From this share of its pages on, a part is read as a whole."""
FENCE_BYTES = 16
"""Of every page, in the driver's memory."""
DRIVER_KEYS = BY_MEASUREMENT.keys
"""The most changes of a batch that the driver looks up; executors look up more."""
COMMIT_PHASES = ("load", "check", "plan", "index", "lookup", "commit", "tidy")
SMALL_TABLE = 5_000_000
_RATE = re.compile(r"\d+ x ([\d,]+) changes on ([\d,]+) rows")
_STREAM = re.compile(r"\d+ x ([\d,]+) changes on ([\d,]+) rows, between two commits")
_BATCH = re.compile(r"([\d,]+) changes into ([\d,]+) rows, \d+ batches")
_FOOTPRINT = re.compile(r"(\w+) of a commit, ([\d,]+) changes into ([\d,]+) rows")


@dataclass(frozen=True)
class Assumptions:
    """What nobody measured here."""

    machine_gb: float = 32.0
    """Memory of the driver's machine; `calve.reader.resources` says how much of it keeps parts of the index."""
    row_bytes: float = 100.0
    """Of a row in Parquet."""
    file_mb: float = 128.0
    read_gb_per_second: float = 1.0
    """From the state location, by the driver."""
    request_ms: float = 15.0
    """Of a ranged read of an object."""
    requests_at_once: int = 64
    joined_gap: int = JOINED_GAP
    """Bytes between two ranges of an object up to which they are one read."""
    put_dollars: float = 5.0
    """Per million PUT, POST and LIST requests of an object store."""
    get_dollars: float = 0.4
    storage_dollars: float = 0.023
    """Per GB and month."""
    core_dollars: float = 0.05
    """Per hour of a core."""
    maintenance: float = 2.0
    """CPU of a stream and all of its maintenance, as a ratio to the stream's own."""
    executors: int = 100
    """Of one core each, for batches that they look up."""
    executor_gb_per_second: float = 0.1
    """That each of them reads."""
    task_cpu: float = 4.0
    """CPU of a change in Spark tasks, as a ratio to that in the driver."""
    job_seconds: float = 5.0
    """Of Spark's own work for the jobs of a batch."""
    file_ms: float = 0.1
    """Of the driver, for each data file that a batch deletes rows of."""


PAPER = Assumptions()
LOCAL = replace(
    PAPER,
    read_gb_per_second=2.0,
    request_ms=0.1,
    requests_at_once=4,
    joined_gap=0,
    put_dollars=0.0,
    get_dollars=0.0,
)
"""With the state location on a local disk."""


@dataclass(frozen=True)
class Line:
    """Seconds by changes: a + b x changes."""

    fixed: float
    per_change: float
    points: tuple[tuple[float, float], ...]

    @classmethod
    def fitted(cls, points: Sequence[tuple[float, float]]) -> "Line":
        """To relative errors, so that small batches count as much as large ones; neither part is negative."""
        if len({changes for changes, _ in points}) < 2:
            changes, seconds = statistics.mean(x for x, _ in points), statistics.mean(y for _, y in points)
            return cls(0.0, seconds / changes, tuple(points))
        x, y = (np.array(values, float) for values in zip(*points, strict=True))
        fixed, slope = np.linalg.lstsq(np.column_stack([1 / y, x / y]), np.ones(len(y)), rcond=None)[0]
        if fixed < 0:
            return cls(0.0, float(np.mean(y / x)), tuple(points))
        return cls(float(fixed), float(max(slope, 0.0)), tuple(points))

    def at(self, changes: float) -> float:
        """Seconds of a batch."""
        return self.fixed + self.per_change * changes

    @property
    def worst_error(self) -> float:
        """The largest relative error at the points."""
        return max(abs(self.at(changes) / seconds - 1) for changes, seconds in self.points)


@dataclass(frozen=True)
class Measured:
    """What the results say."""

    batch: Line
    commit: Line | None
    """The committer's part of it; None if no stream has recorded its phases."""
    index_bytes: float | None
    """Per row; None if nobody measured it."""
    cpu: Line
    """CPU seconds of a batch."""
    writes: float = 0.0
    """Per commit; 0 if `footprint.py` has no results."""
    reads: float = 0.0
    metadata_bytes: float = 0.0
    """Manifests, their list and table metadata, per commit."""
    grown: tuple[tuple[int, int, float], ...] = ()
    """Rows, changes and seconds of batches on larger tables."""
    runs: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """That all of it was measured in."""


@dataclass(frozen=True)
class Prediction:
    """A batch on a table of any size."""

    rows: float
    changes: int
    index_gb: float
    index_read_mb: float
    """Of the index, by a batch: what memory does not keep."""
    index_requests: float
    fences_gb: float
    """In the driver's memory."""
    seconds: float
    driver_seconds: float
    """Of them those of the committer, which more executors do not shorten."""
    data_files: float
    touched_files: float
    """Data files that a batch deletes rows of."""
    dollars_per_million: float
    """For a million changes: requests and cores."""
    storage_dollars: float
    """A month of the table and its index."""

    @property
    def rate(self) -> float:
        """Changes per second with any number of executors."""
        return self.changes / self.driver_seconds


def read_results(folder: Path) -> Measured:
    """All that the model is fitted to. Raises ValueError when too little was measured."""
    files = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
    batch: list[tuple[float, float]] = []
    commit: list[tuple[float, float]] = []
    cpu: list[tuple[float, float]] = []
    index: list[tuple[float, float]] = []
    grown: list[tuple[int, int, float]] = []
    used: dict[int, Mapping[str, Any]] = {}
    for run, one in _results(files, "stream", "upserts"):
        if (stream := _STREAM.fullmatch(one["case"])) and one["system"] == "calve, positions":
            used[id(run)] = run
            changes, phases = _number(stream[1]), one["facts"]
            batch.append((changes, one["median"] / 1000))
            spent = sum(phases.get(f"{name}_ms", 0.0) for name in COMMIT_PHASES) / 1000
            commit += [(changes, spent)] if spent else []
        elif (upserts := _BATCH.fullmatch(one["case"])) and one["system"] == "calve, positions":
            used[id(run)] = run
            changes, rows, facts = _number(upserts[1]), _number(upserts[2]), one["facts"]
            seconds = facts.get("last_half", one["median"])
            if rows > SMALL_TABLE:
                grown.append((int(rows), int(changes), seconds))
            else:
                batch.append((changes, seconds))
            index += [(rows, facts["index_bytes_per_row"])] if "index_bytes_per_row" in facts else []
        rate = _RATE.fullmatch(one["case"])
        if rate and one["system"] == "calve, positions" and "cpu_s_per_million" in one["facts"]:
            changes = _number(rate[1])
            cpu.append((changes, one["facts"]["cpu_s_per_million"] * changes / 1e6))
    for run, one in _results(files, "growth"):  # compared with the model, not fitted
        found = _BATCH.fullmatch(one["case"])
        if found and one["system"] == "calve, positions":
            used[id(run)] = run
            changes, rows, facts = _number(found[1]), _number(found[2]), one["facts"]
            known = facts["index_bytes_per_row"]
            index += [(rows, known)] if known else []  # small tables have none
            grown += [(int(rows), int(changes), facts["last_half"])] if rows > SMALL_TABLE else []
    if not batch or not cpu:
        raise ValueError("the model needs results of stream.py and upserts.py")
    costs = _footprint(files)
    used |= {id(run): run for run, _ in _results(files, "footprint")}
    return Measured(
        Line.fitted(batch),
        Line.fitted(commit) if commit else None,
        max(index)[1] if index else None,
        Line.fitted(cpu),
        grown=tuple(sorted(grown)),
        runs=tuple(used.values()),
        **costs,
    )


def _results(files: Mapping[str, Any], *names: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    found = [run for name in names for run in files.get(name, {}).get("runs", ())]
    return [(run, one) for run in found for one in run["results"] if "values" in one]


def _footprint(files: Mapping[str, Any]) -> dict[str, float]:
    """Medians over all sizes."""
    found: dict[str, list[float]] = {"writes": [], "reads": [], "metadata_bytes": []}
    for _, one in _results(files, "footprint"):
        name = _FOOTPRINT.fullmatch(one["case"])
        if name and name[1] in found:
            found[name[1]].append(one["median"])
        elif name and name[1] == "uploads":
            kinds = ("manifests_bytes", "metadata_bytes")
            found["metadata_bytes"].append(sum(one["facts"].get(kind, 0.0) for kind in kinds))
    return {name: statistics.median(values) for name, values in found.items() if values}


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def predict(measured: Measured, rows: float, changes: int, paper: Assumptions = PAPER) -> Prediction:
    """A batch of changes of uniform keys: the worst case of a look-up."""
    index_bytes = (measured.index_bytes or ENTRY_BYTES) * rows
    kept = min(1.0, memory_on(int(paper.machine_gb * 2**30)) / index_bytes)
    pages = rows / PAGE
    touched = pages * -math.expm1(-changes / pages)
    if touched / pages >= WHOLE_SHARE:
        requests, read = index_bytes / PART_BYTES, index_bytes
    else:
        requests, read = joined_pages(pages, touched, paper.joined_gap)
    requests, read = requests * (1 - kept), read * (1 - kept)
    reading = max(read / (paper.read_gb_per_second * 1e9), requests * paper.request_ms / 1000 / paper.requests_at_once)
    files = max(1.0, rows * paper.row_bytes / (paper.file_mb * 1e6))
    touched_files = files * -math.expm1(-changes / files)
    requests_dollars = (measured.writes * paper.put_dollars + (measured.reads + requests) * paper.get_dollars) / 1e6
    cores = measured.cpu.at(changes) / changes * 1e6 * paper.maintenance * paper.core_dollars / 3600
    size_gb = (rows * paper.row_bytes + index_bytes) / 1e9
    return Prediction(
        rows,
        changes,
        index_gb=index_bytes / 1e9,
        index_read_mb=read / 1e6,
        index_requests=requests,
        fences_gb=pages * FENCE_BYTES / 1e9,
        seconds=measured.batch.at(changes) + reading,
        driver_seconds=(measured.commit or measured.batch).at(changes) + reading,
        data_files=files,
        touched_files=touched_files,
        dollars_per_million=requests_dollars * 1e6 / changes + cores,
        storage_dollars=size_gb * paper.storage_dollars,
    )


def joined_pages(pages: float, touched: float, gap: int) -> tuple[float, float]:
    """Reads, and bytes, of pages that are spread evenly; gaps between neighbours follow an exponential distribution."""
    page = PAGE * ENTRY_BYTES
    mean = (pages / touched - 1) * page
    if not gap or mean <= 0:
        return touched, touched * page
    apart = math.exp(-gap / mean)
    skipped = mean - gap * apart / (1 - apart) if apart < 1 else 0.0  # the mean of gaps that are read
    return touched * apart, touched * (page + (1 - apart) * skipped)


@dataclass(frozen=True)
class TaskPrediction:
    """A batch whose keys executors look up, each in its range of hashes."""

    rows: float
    changes: int
    computing: float
    """Seconds in which they read, convert, shuffle and write."""
    reading: float
    """Seconds in which they read the whole index, each its range of every part."""
    driver_seconds: float
    """In which only the driver works: Spark's own part, and manifests of the deletes."""

    @property
    def seconds(self) -> float:
        """From its first record to the commit; nothing overlaps."""
        return self.computing + self.reading + self.driver_seconds

    @property
    def rate(self) -> float:
        """Changes per second, one batch after the other."""
        return self.changes / self.seconds


def by_tasks(measured: Measured, rows: float, changes: int, paper: Assumptions = PAPER) -> TaskPrediction:
    """A batch that is too large for the driver."""
    alone = predict(measured, rows, changes, paper)
    return TaskPrediction(
        rows,
        changes,
        computing=measured.cpu.at(changes) * paper.task_cpu / paper.executors,
        reading=alone.index_gb / (paper.executor_gb_per_second * paper.executors),
        driver_seconds=measured.batch.fixed + paper.job_seconds + alone.touched_files * paper.file_ms / 1000,
    )


def rows_until(measured: Measured, changes: int, factor: float, paper: Assumptions = PAPER) -> float:
    """From how many rows on a batch takes so many times as long as on a small table."""
    small = predict(measured, SMALL_TABLE, changes, paper).seconds
    low, high = float(SMALL_TABLE), 1e13
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        if predict(measured, middle, changes, paper).seconds > factor * small:
            high = middle
        else:
            low = middle
    return high


@dataclass(frozen=True)
class Limit:
    """Something that ends at a size of the table."""

    rows: float
    what: str


def limits(measured: Measured, changes: int, paper: Assumptions = PAPER) -> list[Limit]:
    """What breaks for batches of so many uniform changes, the first one first."""
    kept = memory_on(int(paper.machine_gb * 2**30)) / (measured.index_bytes or ENTRY_BYTES)
    many = 10_000 * paper.file_mb * 1e6 / paper.row_bytes
    found = [
        Limit(kept, "the key index no longer fits the memory that keeps it: every batch reads parts of it again"),
        Limit(rows_until(measured, changes, 2.0, paper), "a batch takes twice as long as on a small table"),
        Limit(4e9 / FENCE_BYTES * PAGE, "the first hashes of all pages of the index take 4 GB of the driver's memory"),
        Limit(many, "a batch deletes rows of 10,000 data files (with deletion vectors: as many new vectors)"),
    ]
    if changes < 10_000:
        found.pop()
    return sorted(found, key=lambda limit: limit.rows)


def main() -> None:
    """Print what was fitted and what follows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    measured = read_results(parser.parse_args().results)
    for name, line in (("batch", measured.batch), ("commit", measured.commit or measured.batch)):
        each = 1e6 * line.per_change
        print(f"{name}: {1000 * line.fixed:.0f} ms + {each:.2f} us per change, at most {line.worst_error:.0%} off")
    for changes in (100_000, 1_000_000):
        for rows in (5e6, 1e8, 1e9, 1e10, 1e11):
            one = predict(measured, rows, changes)
            print(
                f"{rows:.0e} rows, {changes:,} changes: {one.seconds:.2f} s; index {one.index_gb:.1f} GB, "
                f"{one.index_read_mb:,.0f} MB in {one.index_requests:,.0f} reads a batch; {one.rate:,.0f} changes/s "
                f"with any executors; ${one.dollars_per_million:.4f} per million changes"
            )
        print(f"twice as slow from {rows_until(measured, changes, 2.0):.2e} rows on")
    for rows in (1e9, 1e10, 1e11):
        large = by_tasks(measured, rows, 2 * DRIVER_KEYS)
        print(
            f"{rows:.0e} rows, {large.changes:,} changes, {PAPER.executors} executors: {large.seconds:.1f} s, "
            f"{large.reading:.1f} s of them reading the index; {large.rate:,.0f} changes/s"
        )
    for rows, changes, seconds in measured.grown:
        print(f"measured on {rows:,} rows: {seconds:.2f} s, predicted {predict(measured, rows, changes).seconds:.2f} s")


if __name__ == "__main__":
    main()
