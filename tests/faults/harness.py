"""Starts sinks that are killed, and checks the table against the reference afterwards."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from calve import faults
from calve.clock import sink_id_of
from calve.iceberg.files.names import is_list
from calve.model.checkpoint import canonical_offsets, offsets_digest
from calve.model.health import Status
from calve.pipeline.query import Query
from calve.source.generator import OrderRow, Orders, expected_changes, expected_orders, offsets_at, orders
from tests.faults.process import GENERATED, SINK, Feed
from tests.faults.where import TABLE, Where, files_of
from tests.support.changes import Death, die, quiet_deaths
from tests.support.jvm import QUICK
from tests.support.warm import WarmProcess

KILLED = -9
WAIT_SECONDS = 400


@dataclass(frozen=True)
class Ended:
    """How a process ended, and the status it printed."""

    code: int
    report: dict[str, Any]
    stderr: str


@dataclass
class Sink:
    """One sink under test, over several processes."""

    home: Path
    feed: str = "orders"
    rows: int = 400
    changes: int = 1600
    per_checkpoint: int = 250
    where: Where = field(default_factory=Where)
    processes: list[WarmProcess] = field(default_factory=list)

    @property
    def definition(self) -> Orders:
        return orders(rows=self.rows, changes=self.changes, per_checkpoint=self.per_checkpoint)

    @property
    def sink_id(self) -> str:
        return sink_id_of(SINK, TABLE)

    def spawn(self, plan: str = "", **environment: str) -> WarmProcess:
        numbers = [str(n) for n in (self.rows, self.changes, self.per_checkpoint)]
        variables = {"CALVE_FAULTS": plan, **self.where.environment, **environment}
        process = WarmProcess("tests.faults.process", [str(self.home), self.feed, *numbers], variables)
        self.processes.append(process)
        return process

    def run(self, plan: str = "", **environment: str) -> Ended:
        return finished(self.spawn(plan, **environment))

    def die(self, step: str, plan: str = "", **options: str) -> bool:
        """Run in this process until a failpoint, where the sink's threads end; False if it is not reached.

        It needs a Spark session in this process. `plan` has more faults, which happen before the death.
        """
        point, _, nth = step.partition(":")
        death = Death(point, int(nth or 1), faults.parse(plan))
        with quiet_deaths():
            die(lambda: self._start_here(options), death, bounded=self.feed in GENERATED)
        faults.install(None)
        return death.happened.is_set()

    def finish(self, plan: str = "", **options: str) -> Status:
        """Run in this process until everything is committed, with the faults of a plan; the last status."""
        timeout = float(options.get("CALVE_TEST_TIMEOUT", WAIT_SECONDS))
        faults.install(faults.parse(plan))
        query = self._start_here(options)
        try:
            query.await_caught_up(timeout)
        finally:
            query.stop()
            faults.install(None)
        return query.status()

    def _start_here(self, options: Mapping[str, str]) -> Query:
        return Feed(self.home, self.feed, self.rows, self.changes, self.per_checkpoint).start(self.where, options)

    def provide_files(self) -> None:
        """Write the generator's changes as Parquet files, one per checkpoint, for the streaming feeds."""
        folder = self.home / "in"
        folder.mkdir(parents=True, exist_ok=True)
        table = changes_table(self.definition)
        for number, first in enumerate(range(0, table.num_rows, self.per_checkpoint)):
            part = folder / f".{number:05d}.part"
            pq.write_table(table.slice(first, self.per_checkpoint), part)
            part.rename(folder / f"{number:05d}.parquet")
            os.utime(folder / f"{number:05d}.parquet", (1_700_000_000 + number, 1_700_000_000 + number))

    # ---- the table

    def table(self) -> Table:
        return self.where.lake(self.home).open().load_table(TABLE)

    def staged(self) -> list[str]:
        """Files that wait for their window."""
        return self.where.lake(self.home).state(self.where.state, self.sink_id).list("stage")

    def positions(self) -> dict[str, int]:
        """Digest of the offsets of every possible checkpoint -> number of changes before it."""
        total = self.rows + self.changes
        steps = [*range(0, total, self.per_checkpoint), total]
        if self.feed in GENERATED:
            known = {offsets_digest(offsets_at(n)): n for n in steps}
        elif self.feed == "stream":
            known = {offsets_digest(canonical_offsets([{"logOffset": i}])): n for i, n in enumerate(steps[1:])}
        else:
            known = {offsets_digest(canonical_offsets([{"orders": {"0": i}}])): n for i, n in enumerate(steps)}
        return {**known, offsets_digest(None): 0}

    def check(self, *, history: bool = True, spark: bool = False) -> None:
        """The table equals the reference; and every own snapshot equals it as of its own progress."""
        table = self.table()
        total = self.rows + self.changes
        expected = cache(lambda position: expected_orders(self.definition, position))
        assert rows_of(self.where.rows(table.metadata_location)) == expected(total)
        if spark:
            assert rows_of(self.where.spark_rows(table.metadata_location)) == expected(total)
        known, seen = self.positions(), []
        for snapshot in table.snapshots():
            summary = snapshot.summary.additional_properties if snapshot.summary else {}
            if "calve.frontier" not in summary:
                continue
            position = known[summary["calve.offsets-digest"]]
            only_seals = summary["calve.frontier"] == "[]" and "added-files-size" not in summary
            seen.append((position, "" if only_seals else summary["calve.commit-id"]))
            if history:
                rows = self.where.rows(table.metadata_location, snapshot.snapshot_id)
                assert rows_of(rows) == expected(position), f"as of snapshot {snapshot.snapshot_id}"
        assert seen == sorted(seen, key=lambda s: s[0]), "progress never goes back"
        commits = [c for c in dict.fromkeys(commit for _, commit in seen) if c]
        assert len({p for p, c in seen if c}) == len(commits), "no batch is committed twice"


@dataclass
class Command:
    """A home folder, and the processes of `calve run` that were started in it."""

    folder: Path
    where: Where
    processes: list[WarmProcess] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def start(self, *arguments: str, **environment: str) -> WarmProcess:
        conf = [part for key, value in QUICK.items() for part in ("--conf", f"{key}={value}")]
        command = ["run", str(self.folder / "p.sql"), *arguments, "--home", str(self.home), "--master", "local[2]"]
        process = WarmProcess("calve.cli.main", [*command, *conf], {**self.where.environment, **environment})
        self.processes.append(process)
        return process

    def table(self) -> Table:
        return self.where.lake(self.home).open().load_table(TABLE)

    def rows(self) -> list[dict[str, Any]]:
        return self.where.rows(self.table().metadata_location)

    def orders(self) -> dict[int, Any]:
        return rows_of(self.rows())

    def snapshots(self) -> int:
        """How many there are or are about to be: their lists of manifests are written; none before there is a table."""
        try:
            found = files_of(self.table())
        except NoSuchTableError:
            return 0
        return sum(is_list(path.rpartition("/")[2]) for path in found)

    def write(self, *statements: str) -> None:
        """The file that is run."""
        (self.folder / "p.sql").write_text("\n".join(statements))

    def end(self) -> None:
        """Nothing of it runs afterwards."""
        end(self.processes)


def end(processes: Iterable[WarmProcess]) -> None:
    """Kill those that are still there."""
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def finished(process: WarmProcess) -> Ended:
    out, err = process.communicate(timeout=WAIT_SECONDS)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    return Ended(process.returncode, json.loads(lines[-1]) if lines else {}, err)


def rows_of(found: list[dict[str, Any]]) -> dict[int, OrderRow]:
    """Rows by key; a key that is there twice fails."""
    table: dict[int, OrderRow] = {}
    for row in found:
        assert row["id"] not in table, f"key {row['id']} is there twice"
        table[row["id"]] = (row["id"], row["customer"], row["amount"], row["status"], row["updated_at"])
    return table


_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.int32()),
        ("amount", pa.decimal128(12, 2)),
        ("status", pa.string()),
        ("updated_at", pa.timestamp("us", tz="UTC")),
        ("op", pa.string()),
        ("seq", pa.int64()),
    ]
)


def changes_table(definition: Orders) -> pa.Table:
    """The generator's changes as Arrow, from the plain Python side."""
    total = definition.rows + (definition.changes or 0)
    changes = expected_changes(definition, 0, total)
    rows = [(order, *(row[1:] if row else (None,) * 4), op, seq) for seq, (op, order, row) in enumerate(changes)]
    return pa.Table.from_pylist([dict(zip(_SCHEMA.names, row, strict=True)) for row in rows], schema=_SCHEMA)


__all__ = ["KILLED", "SINK", "Command", "Ended", "Sink", "end", "finished"]
