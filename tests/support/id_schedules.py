"""Random schedules of what may happen to the rows of a sink's table, each checked by the ids that the rows have."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table

import calve
from calve import faults
from calve.catalog.row_lineage import next_row_id
from calve.errors import TransientError
from calve.iceberg.files.content import content_id
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.schema.arrow import arrow_schema
from calve.iceberg.schema.readable import LAST_UPDATED, ROW_ID, schema_with
from calve.model.files import ColumnMetrics, Content, WrittenFile
from calve.model.spec import KeyIndexUse, OnForeignCommit
from tests.support.foreign import exchange_files
from tests.support.lineage import Lineage, check_batch, lineage_of
from tests.support.runs import NAME, Run, spec_of

KEYS = range(8)


def change_keys(table: Table, keys: Mapping[int, int]) -> None:
    """What another engine does: write all rows again, some with other keys, and keep their ids."""
    rows = lineage_of(table)
    schema = schema_with(table.schema(), ROW_ID, LAST_UPDATED)
    written = [
        {
            "id": keys.get(key, key),
            "v": one.values["v"],
            "_row_id": one.row_id,
            "_last_updated_sequence_number": None if key in keys else one.updated,
        }
        for key, one in rows.items()
    ]
    cache = ManifestCache()
    lines = cache.lines_of(table.io, table.current_snapshot())
    gone = [content_id(e.data_file) for e in cache.entries_of(table.io, *(line.manifest for line in lines))]
    if not written:
        return
    path = f"{table.location()}/data/other-{random.getrandbits(64)}.parquet"
    local = Path(path.removeprefix("file://"))
    pq.write_table(pa.Table.from_pylist(written, schema=arrow_schema(schema)), local)
    file = WrittenFile(Content.DATA, path, len(written), local.stat().st_size, 0, (), ColumnMetrics(), ())
    exchange_files(table, gone, [file])


class Crash(BaseException):
    """The process ends here."""


class Schedule:
    """Batches, crashes, other writers and compactions in a random order, and what the table has to contain."""

    POINTS = (
        "resolve.before",
        "resolve.after",
        "manifest-list.after",
        "commit.before",
        "commit.after",
        "receipt.before",
    )

    def __init__(self, home: Path, seed: int) -> None:
        self.rng, self.home = random.Random(seed), home
        use = self.rng.choice([KeyIndexUse.ON, KeyIndexUse.OFF])
        self.spec = spec_of("s", format_version=3, on_foreign_commit=OnForeignCommit.ACCEPT, key_index=use)
        self.run = Run(home, self.spec)
        self.pending: list[tuple[dict[int, str], list[int]]] = []
        self.kept = self.number = 0

    def lineage(self) -> Lineage:
        """The rows of the table and their ids."""
        return lineage_of(self.run.now)

    def step(self) -> None:
        """Do something."""
        actions: list[Callable[[], None]] = [self.record, self.record, self.commit, self.commit, self.crash]
        self.rng.choice([*actions, self.flaky, self.other_writer, self.compact, self.restart])()

    def record(self) -> None:
        keys = self.rng.sample(KEYS, self.rng.randint(2, 6))
        self.number += 1
        cut = len(keys) - self.rng.randint(0, 2)
        rows = dict.fromkeys(keys[:cut], f"v{self.number}")
        self.run.record(rows, keys[cut:])
        self.pending.append((rows, keys[cut:]))

    def commit(self) -> None:
        self.settle(self.run.run.commits.commit_next)

    def crash(self) -> None:
        point = self.rng.choice(self.POINTS)

        def die(reached: str) -> None:
            if reached == point:
                raise Crash

        def dying() -> None:
            faults.install(die)
            try:
                self.run.run.commits.commit_next()
            except Crash:
                pass
            finally:
                faults.install(None)
            self.restart()

        self.settle(dying)

    def flaky(self) -> None:
        """Commit, and let one step fail that may succeed when it is repeated."""
        points = [self.rng.choice(self.POINTS[:-1])]  # nothing is repeated after a receipt

        def fail(reached: str) -> None:
            if reached in points:
                points.remove(reached)
                raise TransientError(f"injected failure at {reached}")

        def failing() -> None:
            faults.install(fail)
            try:
                while self.run.run.commits.commit_next() is None and self.pending:
                    continue
            finally:
                faults.install(None)

        self.settle(failing)

    def settle(self, act: Callable[[], object]) -> None:
        """Let at most one batch be committed, and check what became of the rows."""
        if not self.pending:
            self.record()
        before, new_from = self.lineage(), next_row_id(self.run.now.metadata) or 0
        act()
        after = self.lineage()
        if self.run.run.state.ready == len(self.pending):
            assert after == before
            return
        rows, deletes = self.pending.pop(0)
        check_batch(before, after, {key: {"id": key, "v": v} for key, v in rows.items()}, deletes, new_from)
        self.kept += len(rows.keys() & before.keys())
        assert self.run.run.state.ready == len(self.pending)

    def restart(self) -> None:
        self.run = Run(self.home, self.spec)
        self.run.run.claims.claim()

    def other_writer(self) -> None:
        """Let another writer change some keys."""
        keys = list(self.lineage())
        self.rng.shuffle(keys)
        moved = dict(zip(keys[:2], [n for n in KEYS if n not in keys] + [100, 101], strict=False))
        if moved:
            change_keys(self.run.now, moved)

    def compact(self) -> None:
        before = self.lineage()
        calve.compact(calve.connect(home=self.home).table(str(NAME)))
        assert self.lineage() == before

    def check(self, steps: int) -> int:
        """Do this many things, then commit everything; returns how many ids were kept."""
        for _ in range(steps):
            self.step()
        while self.pending:
            self.commit()
        return self.kept
