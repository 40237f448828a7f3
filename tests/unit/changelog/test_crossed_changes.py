"""Changes where dimensions meet: row ids, vectors and upgrades, compactions, columns, partitions, branches, consumers.

The table is that of a sink. Its changes lead from any snapshot to any later one, and a source that follows it, with
restarts, has the rows of the table; or it is told that it has lost its place, and starts over.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, FloatType, IntegerType, LongType, NestedField, StringType
from pyspark.sql import SparkSession

import calve
from calve.catalog.outcome import TableChange, send
from calve.catalog.row_lineage import UPGRADE
from calve.clock import RandomIds, SystemClock
from calve.errors import SourceChanged, SourceLost
from calve.iceberg.planning.change_range import walk
from calve.iceberg.schema.evolution import Shape
from calve.iceberg.sink_table import IcebergTable
from calve.iceberg.snapshot.expiry import expire
from calve.iceberg.snapshot.retention import ExpiryPolicy
from calve.model.changelog import CHANGE_COLUMNS, CHANGE_TYPE
from calve.model.checkpoint import Offsets, SizeLimit
from calve.model.files import WrittenFile
from calve.model.spec import RetentionOptions
from calve.source.table import TableSource, with_reader
from calve.storage.state import LocalState
from tests.support.change_feed import check_keyed
from tests.support.combinations import seeds
from tests.support.foreign import SINK
from tests.support.keyed import KeyedTable
from tests.unit.changelog.test_random_changes import compact
from tests.unit.iceberg.sample import SetClock

pytestmark = pytest.mark.long

CROSSED = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "n", IntegerType(), required=False),
    NestedField(4, "x", FloatType(), required=False),
    identifier_field_ids=[1],
)
LIMIT = SizeLimit(10_000, 1 << 24)
DAY_MS = 24 * 3_600_000


class CrossedTable:
    """The table of a sink, to which everything happens."""

    def __init__(self, home: Path, rng: random.Random, branch: str = "main") -> None:
        self.rng, self.branch = rng, branch
        self.keyed = KeyedTable(home, CROSSED, ["id"], branch=branch, version=rng.choice([2, 3]))
        self.added = 0
        self.happened: set[str] = set()

    def batch(self) -> None:
        """Update, insert and delete some keys, by position or by key, in files of any spec."""
        numbers = self.rng.sample(range(40), self.rng.choice([1, 4, 20]))
        gone = [{"id": n} for n in numbers if self.rng.random() < 0.3]
        kept = [self._row(n) for n in numbers if {"id": n} not in gone]
        self.keyed.apply(self._files(kept), kept, gone, equality=self.rng.random() < 0.3)

    def _row(self, number: int) -> dict[str, Any]:
        values = {"id": number, "region": self.rng.choice(["eu", "us", None]), "n": number % 3, "x": None}
        fields = [f.name for f in self.keyed.table.schema().fields]
        return {name: values.get(name, self.rng.choice(["new", None])) for name in fields}

    def _files(self, rows: Sequence[dict[str, Any]]) -> list[WrittenFile]:
        table = self.keyed.table
        spec = self.rng.choice(list(table.specs().values()))
        sources = [(f.transform, table.schema().find_field(f.source_id)) for f in spec.fields]
        placed: dict[tuple[Any, ...], list[Any]] = {}
        for row in rows:
            at = tuple(how.transform(f.field_type)(row[f.name]) for how, f in sources)
            placed.setdefault(at, []).append(row)
        return [self.keyed.data(members, at, spec_id=spec.spec_id, row_group_size=5) for at, members in placed.items()]

    def compact(self) -> None:
        """Rewrite files."""
        if compact(self.keyed, self.rng, self.branch):
            self.happened.add("compacted")

    def evolve(self) -> None:
        """Change columns, partitions or the format."""
        table, names = self.keyed.table, [f.name for f in self.keyed.table.schema().fields]
        choice = self.rng.randrange(6)
        if choice == 0:
            with table.update_schema() as update:
                self.added += 1
                update.add_column(f"added{self.added}", StringType())
        elif choice == 1 and len(names) > len(CROSSED.fields):
            with table.update_schema() as update:
                update.delete_column(names[-1])
        elif choice == 2:
            with table.update_schema() as update:
                update.update_column("x", DoubleType())
                update.update_column("n", LongType())
        elif choice == 3 and len(names) > len(CROSSED.fields):
            with table.update_schema() as update:
                self.added += 1
                update.rename_column(names[-1], f"added{self.added}")
        elif choice == 4:
            with table.update_spec() as spec:
                if table.spec().is_unpartitioned():
                    spec.add_field("region", IdentityTransform(), "by_region")
                    spec.add_field("id", BucketTransform(3), "by_id")
                else:
                    spec.remove_field("by_region")
                    spec.remove_field("by_id")
        elif choice == 5 and table.metadata.format_version == 2:
            send(TableChange(table, (), (UPGRADE,), done=lambda now: now.format_version == 3), "an upgrade")
            self.happened.add("upgraded")
        else:
            return
        self.happened.add(f"evolved {choice}")
        shape = Shape(self.keyed.table.schema(), branch=self.branch)
        self.keyed.iceberg = IcebergTable(
            self.keyed.table, SINK, self.keyed.key, SystemClock(), RandomIds(), shape=shape
        )
        self.keyed.resolver = self.keyed.new_resolver()

    def step(self) -> None:
        self.batch()
        if self.rng.random() < 0.3:
            self.compact()
        if self.rng.random() < 0.5:
            self.evolve()

    def path(self) -> list[Snapshot]:
        """The snapshots of the branch, oldest first."""
        metadata = self.keyed.table.metadata
        head = metadata.snapshot_by_id(metadata.refs[self.branch].snapshot_id)
        assert head is not None
        return list(reversed(walk(metadata, head, None).path))


@pytest.mark.parametrize("branch", ["main", "audit"])
@seeds(12)
def test_changes_lead_from_one_snapshot_of_a_branch_to_another(seed: int, branch: str, tmp_path: Path) -> None:
    rng = random.Random(f"{seed} {branch}")
    made = CrossedTable(tmp_path, rng, branch)
    for _ in range(12):
        made.step()
    assert {"compacted"} <= made.happened
    ids = [snapshot.snapshot_id for snapshot in made.path()]
    ranges = [tuple(sorted(rng.sample(range(len(ids)), 2))) for _ in range(4)]
    assert sum(check_keyed(made.keyed.ref, ids[a], ids[b], ["id"]) for a, b in ranges)
    assert check_keyed(made.keyed.ref, None, ids[-1], ["id"])
    made.keyed.close()


class Follower:
    """A copy of the table, kept by a source; the clock tells how long it has not read."""

    def __init__(self, made: CrossedTable, home: Path, clock: SetClock) -> None:
        self.made, self.home, self.clock = made, home, clock
        self.rows: dict[int, dict[str, Any]] = {}
        self.recorded: Offsets = None
        self.generation = 0
        self.source = self.restarted()

    def restarted(self) -> TableSource:
        definition = calve.table_changes(self.made.keyed.ref, consumer="copy", max_rows_per_checkpoint=20)
        store = LocalState(self.home / f"source{self.generation}")
        return with_reader(definition, SINK).open(store, self.clock)

    def start_over(self) -> None:
        """As a sink does that is filled again."""
        self.generation += 1
        self.rows, self.recorded, self.source = {}, None, self.restarted()

    def catch_up(self, rng: random.Random) -> None:
        """Read all that there is. Raises SourceLost."""
        while True:
            try:
                end = self.source.next_end(self.recorded)
            except SourceChanged:
                self.source = self.restarted()
                continue
            if end is None:
                return
            if rng.random() < 0.2:
                self.source = self.restarted()
                continue
            self.apply(end)
            self.source.committed(end)

    def apply(self, end: Offsets) -> None:
        no_spark = cast("SparkSession", None)
        schema = self.source.schema(no_spark)
        found = self.source.arrow_records(no_spark, self.recorded, end, schema, LIMIT)
        assert found is not None, "few rows need no Spark"
        for change in found.to_pylist():
            row = {name: value for name, value in change.items() if name not in CHANGE_COLUMNS}
            if change[CHANGE_TYPE] in {"delete", "update_preimage"}:
                before = self.rows.pop(row["id"])
                shared = before.keys() & row.keys()  # columns may have been added, dropped and renamed since
                assert {n: before[n] for n in shared} == {n: row[n] for n in shared}
            else:
                assert row["id"] not in self.rows
                self.rows[row["id"]] = row
        self.recorded = end


@seeds(12)
def test_a_source_has_the_rows_of_the_table_or_is_told_that_it_lost_its_place(seed: int, tmp_path: Path) -> None:
    rng, clock = random.Random(seed), SetClock()
    made = CrossedTable(tmp_path / "lake", rng)
    made.batch()
    copy = Follower(made, tmp_path, clock)
    lost = kept = waited = 0
    for number in range(24):
        made.step()
        if rng.random() < 0.5 or number == 23:
            try:
                copy.catch_up(rng)
                kept += 1
            except SourceLost:
                lost += 1
                copy.start_over()
                copy.catch_up(rng)
            expected = {row["id"]: row for row in made.keyed.rows()}
            assert copy.rows.keys() == expected.keys()
            for key, row in copy.rows.items():
                shared = row.keys() & expected[key].keys()
                assert {n: row[n] for n in shared} == {n: expected[key][n] for n in shared}
        if rng.random() < 0.4:
            days = rng.choice([0, 1, 5])
            waited += days
            clock.now += days * DAY_MS
            options = RetentionOptions(max_age_ms=1, min_snapshots=1)
            expire(made.keyed.table, ExpiryPolicy(options, "main", clock.now, batch=1, force=True))
    assert kept
    assert not lost or waited, "a consumer that reads every day loses nothing"
    assert made.happened >= {"compacted"}
    made.keyed.close()
