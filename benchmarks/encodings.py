"""Which engine reads which encoding of deletes right, and in how many seconds, after many batches without maintenance.

    python benchmarks/encodings.py [--rows 1000000] [--batches 100] [--changes 20000] [--scans 5] [--limit 60]
                                   [--minutes 15] [--engines spark,duckdb,...] [--json FILE]

The same changes go into tables with equality deletes, position deletes (format version 2) and deletion vectors
(version 3), by a sink each; `fresh` has the same rows, written at once. Every engine reads every table in a process of
its own: first all rows, which are compared with the last change of each key, then a count and a sum, timed. An engine
that needs more than `--limit` seconds for an answer is stopped. Its cell says so, as do those of engines that refuse a
table, or return wrong rows. The limit is lower, but at least 20 seconds, where the reads that are left would otherwise
need more than `--minutes`, counted from the start.

The result goes to benchmarks/results/encodings.json, out of which `make docs` makes a section of docs/engines.md.
ClickHouse is installed from PyPI into `.cache/chdb`, or left out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.compute as pc
import pyarrow.parquet as pq
from harness import DATA, JAR, ROOT, package_versions, surroundings
from peer_reader import CHDB, ENGINES
from upserts import Peer
from workload import COLUMNS, Workload, make_workload

RESULT = ROOT / "benchmarks" / "results" / "encodings.json"
ENCODINGS = {"equality": "equality", "positions": "position", "vectors": "vector"}
"""What the sinks are told (`DELETES`)."""
FRESH = "fresh"
LEAST_SECONDS = 20.0
"""What every answer may take."""
START_SECONDS = 120
"""How long an engine may take to start."""


@dataclass(frozen=True)
class Cell:
    """What became of one engine's reads of one table."""

    engine: str
    table: str
    missing: int = 0
    """Rows that were not returned."""
    extra: int = 0
    """Rows with a key that the table should not have, or has already returned."""
    wrong: int = 0
    """Rows with other values than they should have."""
    seconds: float | None = None
    """The median of the scans."""
    scans: int = 0
    over: float | None = None
    """The limit that an answer exceeded."""
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"failed: {self.error}"
        if self.missing or self.extra or self.wrong:
            return f"WRONG: {self.missing:,} rows missing, {self.extra:,} too many, {self.wrong:,} with wrong values"
        return f"over {self.over:.0f} s" if self.seconds is None else f"{self.seconds:.2f} s, median of {self.scans}"


@dataclass(frozen=True)
class Written:
    """A table that is read."""

    name: str
    metadata: str
    lake: Path
    files: int
    deletes: int
    """Rows of its delete files."""


def make_table(name: str, deletes: str, workload: Workload, home: Path) -> Written:
    """Let a sink without maintenance write a table, one commit per batch."""
    peer = Peer.of(("peer_calve.py", deletes, "auto" if deletes != "equality" else "off", "off"), workload, home)
    began = time.perf_counter()
    peer.ask("load")
    for number in range(workload.batches):
        peer.ask(f"batch {number}")
        if number % 20 == 19:
            _say(f"{name}: {number + 1} batches, {time.perf_counter() - began:.0f} s")
    shape = peer.ask("table")
    peer.end()
    _say(f"{name}: {shape['files']} files, {shape['deletes']:,} deletes, made in {time.perf_counter() - began:.0f} s")
    return Written(name, shape["table"], home, shape["files"], shape["deletes"])


def rows_at_once(workload: Workload, expected: Path, folder: Path) -> Workload:
    """The rows that should be there as an initial load without batches."""
    rows = pq.read_metadata(expected).num_rows
    made = Workload(folder / f"{rows}x0x{workload.changes}", rows, 0, workload.changes)
    Path(made.initial).mkdir(parents=True)
    with duckdb.connect(":memory:") as connection:
        connection.execute(
            f"COPY (SELECT *, 'i' AS op, id AS seq FROM '{expected}') TO '{made.initial}/p0.parquet' (FORMAT parquet)"
        )
    return made


class Reading:
    """The reads of one engine, checked and timed; a process that had to be killed is replaced."""

    def __init__(self, engine: str, home: Path) -> None:
        self.engine, self._home = engine, home
        self._peer: Peer | None = None
        self.version = str(self._started().ask("hello", START_SECONDS)["version"])

    def read(self, table: Written, expected: Path, scans: int, limit: float) -> Cell:
        """All rows once, then scans as long as time allows; an answer may take `limit` seconds."""
        try:
            return self._read(table, expected, scans, limit)
        except TimeoutError:
            self._peer = None
            return Cell(self.engine, table.name, over=limit)
        except RuntimeError as error:  # ClickHouse, for one, answers the query after a failed one wrong
            self.end()
            return Cell(self.engine, table.name, error=_first_line(str(error)))

    def _read(self, table: Written, expected: Path, scans: int, limit: float) -> Cell:
        file, where = self._home / "rows.parquet", f"{table.metadata} {table.lake}"
        self._ask(f"rows {where} {file}", limit)
        missing, extra, wrong = differences(file, expected)
        amounts = pq.read_table(expected, columns=["amount"])["amount"]
        totals = len(amounts), round(pc.sum(amounts).as_py(), 2)
        seconds: list[float] = []
        while not seconds or (len(seconds) < scans and sum(seconds) < limit):
            answer = self._ask(f"scan {where}", limit)
            if (answer["rows"], round(answer["sum"], 2)) != totals and not (missing or extra or wrong):
                raise RuntimeError(f"all rows are right, but a scan says {answer['rows']} and {answer['sum']}")
            seconds.append(answer["seconds"])
        return Cell(
            self.engine, table.name, missing, extra, wrong, seconds=statistics.median(seconds), scans=len(seconds)
        )

    def end(self) -> None:
        """End the process."""
        if self._peer is not None:
            self._peer.end()
        self._peer = None

    def _ask(self, request: str, limit: float) -> dict[str, Any]:
        answer = self._started().ask(request, limit)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def _started(self) -> Peer:
        if self._peer is None:
            script = Path(__file__).parent / "peer_reader.py"
            self._peer = Peer([sys.executable, str(script), self.engine, str(self._home), str(JAR)])
            self._peer.ask("hello", START_SECONDS)
        return self._peer


def differences(found: Path, expected: Path) -> tuple[int, int, int]:
    """How many rows are missing, too many, and wrong."""
    others = [column for column in COLUMNS if column != "id"]
    same = " AND ".join(f"f.{column} IS NOT DISTINCT FROM e.{column}" for column in others)
    query = f"""
    WITH f AS (SELECT *, row_number() OVER (PARTITION BY id) AS nth FROM '{found}')
    SELECT count(*) FILTER (f.id IS NULL), count(*) FILTER (e.id IS NULL OR f.nth > 1),
      count(*) FILTER (f.nth = 1 AND e.id IS NOT NULL AND NOT ({same}))
    FROM f FULL JOIN '{expected}' e ON f.id = e.id
    """
    with duckdb.connect(":memory:") as connection:
        counts = connection.execute(f"SET TimeZone = 'UTC'; {query}").fetchone()
    assert counts is not None
    return int(counts[0]), int(counts[1]), int(counts[2])


def install_clickhouse() -> bool:
    """Whether ClickHouse can be used."""
    return (
        subprocess.run([sys.executable, str(ROOT / "scripts" / "fetch_chdb.py"), str(CHDB)], check=False).returncode
        == 0
    )


def _first_line(text: str) -> str:
    line = text.strip().splitlines()[0]
    return line if len(line) <= 300 else f"{line[:300]}..."


def _ratio(seconds: float | None, fresh: float | None) -> str:
    return f", {seconds / fresh:.2f}x of fresh" if seconds and fresh else ""


def _say(text: str) -> None:
    print(text, flush=True)


def _engines(text: str) -> list[str]:
    found = text.split(",")
    for name in found:
        if name not in ENGINES:
            raise argparse.ArgumentTypeError(f"invalid engine {name!r}; expected some of {', '.join(ENGINES)}")
    return found


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make the tables, read them, and return what the page is made of."""
    began = time.perf_counter()
    workload = make_workload(DATA, options.rows, options.batches, options.changes)
    expected = folder / "expected.parquet"
    with duckdb.connect(":memory:") as connection:
        live = f"SELECT * EXCLUDE (op) FROM {workload.last_changes()} WHERE op <> 'd' ORDER BY id"
        connection.execute(f"COPY ({live}) TO '{expected}' (FORMAT parquet)")
    _say(f"{pq.read_metadata(expected).num_rows:,} rows are expected after {options.batches} batches")
    tables = [make_table(name, deletes, workload, folder / name) for name, deletes in ENCODINGS.items()]
    tables.append(make_table(FRESH, "position", rows_at_once(workload, expected, folder / "load"), folder / FRESH))
    cells: list[Cell] = []
    versions: dict[str, str] = {}
    for number, engine in enumerate(options.engines):
        (home := folder / "engines" / engine).mkdir(parents=True)
        try:
            reading = Reading(engine, home)
        except (RuntimeError, TimeoutError) as error:
            _say(f"{engine} is left out: {error}")
            continue
        versions[engine] = reading.version
        fresh: float | None = None
        for done, table in enumerate(reversed(tables)):  # the slow ones last
            left = len(tables) * (len(options.engines) - number) - done
            share = (60 * options.minutes - (time.perf_counter() - began)) / left
            limit = min(options.limit, max(LEAST_SECONDS, share))
            cells.append(reading.read(table, expected, options.scans, limit))
            fresh = cells[-1].seconds if table.name == FRESH else fresh
            _say(f"{engine:10} {table.name:9} {cells[-1]}{_ratio(cells[-1].seconds, fresh)}")
        reading.end()
    _say(f"done in {time.perf_counter() - began:.0f} s")
    return {
        "workload": {name: getattr(options, name) for name in ("rows", "batches", "changes", "scans", "limit")},
        **(surroundings() | {"load": round(os.getloadavg()[2], 1), "versions": {**package_versions(()), **versions}}),
        "tables": [{"name": one.name, "files": one.files, "deletes": one.deletes} for one in tables],
        "cells": [asdict(cell) for cell in cells],
    }


def main() -> None:
    """Measure, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--changes", type=int, default=20_000)
    parser.add_argument("--scans", type=int, default=5)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--engines", type=_engines, default=list(ENGINES))
    parser.add_argument("--json", type=Path, default=RESULT)
    options = parser.parse_args()
    if "clickhouse" in options.engines and not install_clickhouse():
        _say("clickhouse is left out: it could not be installed")
        options.engines.remove("clickhouse")
    with tempfile.TemporaryDirectory(prefix="calve-encodings-") as folder:
        result = measure(options, Path(folder))
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    _say(f"written to {options.json}")


if __name__ == "__main__":
    main()
