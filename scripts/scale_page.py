"""Writes docs/scale.md from the cost model (benchmarks/cost_model.py): `python scripts/scale_page.py [--check]`."""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks_page import number, run_words
from pages import finish

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "scale.md"
sys.path.append(str(ROOT / "benchmarks"))

from cost_model import (  # noqa: E402 - a folder of scripts, not a package
    DRIVER_KEYS,
    ENTRY_BYTES,
    LOCAL,
    PAPER,
    Line,
    Measured,
    Prediction,
    by_tasks,
    limits,
    predict,
    read_results,
)
from harness import RESULTS  # noqa: E402 - as above

HEAD = """# Scale, on paper

Nobody measured a table of 10^11 rows here. This page is a cost model and what it predicts. It is fitted to
[benchmarks](benchmarks.md) on two cores and local files (`python benchmarks/cost_model.py`; `make docs` generates the
page), for changes of uniform keys, the worst case of a look-up: changes of recent keys touch few parts of the index.

## What was fitted
"""
INDEX = """
Beyond small tables, a batch also reads what memory does not keep of the key index. The index has a hash and a place for
every row, sorted by hash, in pages of 512 entries and parts of 32 MB. It may keep 1/12 of the machine's memory, 4 GB at
most. Of other parts a batch reads the pages that its keys point to or, if those are a quarter of a part, all of it.
Pages of an object store that are close to each other are one read. So reads grow with the table until its pages are
many times the changes of a batch, and are one page per change from there on.

## Assumptions
"""
MEANINGS = {
    "machine_gb": "memory of the driver's machine, GB",
    "row_bytes": "bytes of a row in Parquet",
    "file_mb": "MB of a data file",
    "read_gb_per_second": "GB per second that the driver reads from the state location",
    "request_ms": "ms of one ranged read of an object",
    "requests_at_once": "reads at the same time",
    "joined_gap": "bytes between two ranges of an object up to which they are one read",
    "put_dollars": "dollars for a million requests that write or list",
    "get_dollars": "dollars for a million requests that read",
    "storage_dollars": "dollars for a GB and month",
    "core_dollars": "dollars for an hour of a core",
    "maintenance": "CPU of a stream with all of its maintenance, to that of the stream alone",
    "executors": "executors of one core each, for batches that the driver does not look up",
    "executor_gb_per_second": "GB per second that each executor reads",
    "task_cpu": "CPU of a change in Spark tasks, to that in the driver",
    "job_seconds": "seconds of Spark's own work for the jobs of such a batch",
    "file_ms": "ms of the driver for each data file that such a batch deletes rows of",
}
EXECUTORS = """
The driver looks up the keys of batches up to {driver_keys}: for them the last column is the same for one executor and
for 100. Executors look up the keys of larger ones: each owns a range of hashes, and reads that range of every part of
the index. A batch then reads the whole index, whatever its size. So with {executors} executors, batches should be as
large as the latency allows.

### {executors} executors
"""
SIZES = (5e6, 1e8, 1e9, 1e10, 1e11)
BATCHES = (1_000, 100_000, 1_000_000)
LARGE_SIZES, LARGE_BATCHES = (1e9, 1e10, 1e11), (10_000_000, 100_000_000)


def page() -> str:
    """The whole page."""
    measured = read_results(RESULTS)
    return "\n".join(
        [
            HEAD,
            *_fitted(measured),
            INDEX,
            *_table(["assumption", ""], ([MEANINGS[name], f"{value:g}"] for name, value in asdict(PAPER).items())),
            "\n## What it predicts\n",
            *(line for changes in BATCHES for line in _predictions(measured, changes)),
            EXECUTORS.format(driver_keys=f"{DRIVER_KEYS:,}", executors=PAPER.executors),
            *_by_tasks(measured),
            "\n## What breaks first\n",
            *_breaks(measured),
            *_grown(measured),
            "\n## Measured in\n",
            *(f"- {run_words(run)}" for run in measured.runs),
            "",
        ]
    )


def _fitted(measured: Measured) -> Iterator[str]:
    yield from _table(
        ["", "value", "fitted to"],
        [
            ["seconds of a batch, small tables", _line(measured.batch), _points(measured.batch)],
            ["of them the committer's thread", *_commit(measured)],
            ["bytes of the key index per row", *_index(measured)],
            ["CPU seconds of a batch", _line(measured.cpu), f"{len(measured.cpu.points)} points of `stream.py`"],
            ["requests of a commit that write, and that read", _requests(measured), "`footprint.py`"],
            ["bytes of metadata per commit", _or_unknown(measured.metadata_bytes), "`footprint.py`"],
        ],
    )


def _commit(measured: Measured) -> tuple[str, str]:
    if measured.commit is None:
        return "all of it", "no stream has recorded its phases yet: the worst case"
    return _line(measured.commit), _points(measured.commit)


def _index(measured: Measured) -> tuple[str, str]:
    if measured.index_bytes is None:
        return f"{ENTRY_BYTES}", "not measured: a hash and a place of eight bytes each"
    return f"{measured.index_bytes:.1f}", "the largest table of `upserts.py`, `growth.py`"


def _line(line: Line) -> str:
    return f"{1000 * line.fixed:.0f} ms + {1e6 * line.per_change:.2f} µs per change"


def _points(line: Line) -> str:
    off = f", at most {line.worst_error:.0%} off" if len(line.points) > 2 else ", as many as it takes"
    return f"{len(line.points)} points of `stream.py` and `upserts.py`{off}"


def _requests(measured: Measured) -> str:
    return f"{measured.writes:.0f}, {measured.reads:.0f}" if measured.writes else "not measured"


def _or_unknown(value: float) -> str:
    return f"{value:,.0f}" if value else "not measured"


def _predictions(measured: Measured, changes: int) -> Iterator[str]:
    yield f"Batches of {changes:,} changes:\n"
    head = [
        *(
            "rows",
            "seconds of a batch, state in an object store",
            "state on a local disk",
            "index, GB",
            "read of it by a batch",
            "data files, touched by a batch",
        ),
        *("dollars per million changes", "dollars per month, storage", "changes/s at most, any executors"),
    ]
    both = ((predict(measured, rows, changes), predict(measured, rows, changes, LOCAL)) for rows in SIZES)
    yield from _table(head, (_cells(one, local) for one, local in both))
    yield ""


def _cells(one: Prediction, local: Prediction) -> list[str]:
    mb = one.index_read_mb
    read = f"{number(mb)} MB in {one.index_requests:,.0f} reads" if mb >= 0.01 else "nothing"
    files = f"{one.data_files:,.0f}, {one.touched_files:,.0f}"
    dollars = [f"{one.dollars_per_million:.4f}", number(one.storage_dollars)]
    seconds = [number(one.seconds), number(local.seconds)]
    return [_power(one.rows), *seconds, number(one.index_gb), read, files, *dollars, number(one.rate)]


def _by_tasks(measured: Measured) -> Iterator[str]:
    head = [
        "rows",
        "changes of a batch",
        "seconds of it",
        "computing",
        "reading the index",
        "driver alone",
        "changes/s",
    ]
    found = (by_tasks(measured, rows, changes) for rows in LARGE_SIZES for changes in LARGE_BATCHES)
    parts = ((one, (one.seconds, one.computing, one.reading, one.driver_seconds, one.rate)) for one in found)
    yield from _table(head, ([_power(one.rows), f"{one.changes:,}", *map(number, cells)] for one, cells in parts))


def _power(rows: float) -> str:
    return f"{rows / 1e6:,.0f} million" if rows < 1e9 else f"{rows / 1e9:,.0f} billion"


def _breaks(measured: Measured) -> Iterator[str]:
    for changes in BATCHES:
        first, *others = limits(measured, changes)
        yield f"Batches of {changes:,} changes: **from {_power(first.rows)} rows on, {first.what}.** Then:\n"
        yield from (f"- {_power(limit.rows)} rows: {limit.what}" for limit in others)
        yield ""


def _grown(measured: Measured) -> Iterator[str]:
    if not measured.grown:
        return
    yield "## Checked against larger tables\n"
    rows = [
        [f"{rows:,}", f"{changes:,}", number(seconds), number(predict(measured, rows, changes).seconds)]
        for rows, changes, seconds in measured.grown
    ]
    yield from _table(["rows", "changes", "measured, s", "predicted, s"], rows)


def _table(head: list[str], rows: Iterator[list[str]] | list[list[str]]) -> Iterator[str]:
    yield from (f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])


if __name__ == "__main__":
    sys.exit(finish(PAGE, page()))
