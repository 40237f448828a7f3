"""Random streams of several writers: changes applied to the rows at one snapshot give the rows at another."""

import random
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, FloatType, IntegerType, LongType, NestedField, StringType

from calve.clock import RandomIds, SystemClock
from calve.iceberg.planning.compaction_groups import BY_HAND
from calve.maintain.compact import CompactionScope, Compactor
from calve.maintain.convert import ConversionTools
from calve.model.files import WrittenFile
from calve.model.spec import TableName, WriteOptions
from tests.support.change_feed import apply_as_multiset, check_keyed, read_changes, states
from tests.support.combinations import seeds
from tests.support.compaction import rewritten
from tests.support.foreign import NAME, ForeignTable, Row
from tests.support.keyed import KeyedTable, no_session
from tests.support.regions import random_commit, table_of_regions
from tests.unit.keylookup.test_random import CASES, SCHEMA, files_of, random_row

pytestmark = pytest.mark.long


def snapshots(table: Table) -> list[int]:
    """All ids, oldest first."""
    return [snapshot.snapshot_id for snapshot in table.metadata.snapshots]


def pairs(ids: list[int], rng: random.Random, count: int) -> list[tuple[int | None, int | None]]:
    """Random ranges, and the whole one."""
    found: list[tuple[int | None, int | None]] = [(None, None)]
    for _ in range(count):
        first, last = sorted(rng.sample(range(len(ids)), 2))
        found.append((ids[first], ids[last]))
    return found


def compact(table: KeyedTable, rng: random.Random, branch: str = "main") -> bool:
    """Rewrite files, in one file or several; whether there was anything to rewrite."""
    options = WriteOptions(target_file_size=rng.choice([2_000, 1_000_000]))
    scope = CompactionScope(TableName.parse(NAME), branch, options)
    one = Compactor(table.ref.lake.open(), scope, ConversionTools(no_session, SystemClock(), RandomIds()))
    plan = one.plan(BY_HAND)
    return plan is not None and one.commit(rewritten(one, plan)) is not None


@pytest.mark.parametrize("ranges", [1, pytest.param(20, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("key", "spec"), CASES, ids=lambda case: "-".join(case) if isinstance(case, list) else "")
def test_changes_of_a_sink_lead_from_any_snapshot_to_any_later_one(
    key: list[str], spec: PartitionSpec, ranges: int, tmp_path: Path
) -> None:
    rng = random.Random(f"{key} {ranges}")
    keyed = Schema(*SCHEMA.fields, identifier_field_ids=[SCHEMA.find_field(name).field_id for name in key])
    table = KeyedTable(tmp_path, keyed, key, spec)
    compacted = 0
    for number in range(10):
        changes = {table.key_of(row): row for row in (random_row(rng) for _ in range(rng.choice([1, 5, 40])))}
        gone = [row for row in changes.values() if rng.random() < 0.3]
        kept: list[Row] = [row for row in changes.values() if row not in gone]
        table.apply(files_of(table, kept, rng), kept, gone, equality=rng.random() < 0.5)
        compacted += number % 4 == 2 and compact(table, rng)
    assert compacted
    assert sum(check_keyed(table.ref, *pair, key) for pair in pairs(snapshots(table.table), rng, ranges))
    table.close()


@pytest.mark.parametrize(("seed", "ranges"), [(0, 2), (1, 2), pytest.param(2, 20, marks=pytest.mark.soak)])
def test_changes_of_a_table_without_a_key_are_a_difference_of_multisets(seed: int, ranges: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    table = table_of_regions(tmp_path)
    for _ in range(6):
        random_commit(table, rng)
    for since, until in pairs(snapshots(table.table), rng, ranges):
        first, last = states(table.ref, since, until)
        for how in ({"net": True}, {"net": False}, {"net": True, "key": ["id"], "before": True}):
            found = read_changes(table.ref, since=since, until=until, **how)
            assert found
            assert sorted(map(repr, apply_as_multiset(first, found))) == sorted(map(repr, last)), how
            if "key" not in how:
                assert {change["_change_type"] for change in found} <= {"insert", "delete"}
    table.close()


EVOLVING = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "n", IntegerType(), required=False),
    NestedField(4, "x", FloatType(), required=False),
    identifier_field_ids=[1],
)


class EvolvingTable:
    """A table of another writer: columns and partitions change, deletes are of both kinds, files are rewritten."""

    def __init__(self, home: Path, rng: random.Random) -> None:
        self.table, self.rng = ForeignTable(home, EVOLVING), rng
        self.files: dict[str, WrittenFile] = {}
        self.places: dict[int, tuple[WrittenFile, int]] = {}
        self.added = 0

    def row(self, number: int) -> dict[str, Any]:
        """A row with every column that the table has now."""
        values: dict[str, Any] = {"id": number, "region": self.rng.choice(["eu", "us", None]), "n": number % 7}
        for field in self.table.table.schema().fields:
            if field.name not in values:
                values[field.name] = self.rng.choice([None, 0.5, -0.0, float("inf")]) if field.name == "x" else "new"
        return {name: values[name] for name in (f.name for f in self.table.table.schema().fields)}

    def data(self, numbers: list[int]) -> list[WrittenFile]:
        """Data files of the current spec."""
        rows = [self.row(number) for number in numbers]
        spec = self.table.table.spec()
        groups: dict[tuple[Any, ...], list[Any]] = {}
        for row in rows:
            kinds = [(f.transform, self.table.table.schema().find_field(f.source_id)) for f in spec.fields]
            at = tuple(how.transform(f.field_type)(row[f.name]) for how, f in kinds)
            groups.setdefault(at, []).append(row)
        found = []
        for partition, members in groups.items():
            file = self.table.data(members, partition, spec_id=spec.spec_id, row_group_size=5)
            self.files[file.path] = file
            self.places |= {row["id"]: (file, at) for at, row in enumerate(members)}
            found.append(file)
        return found

    def batch(self) -> None:
        """Update, insert and delete some keys."""
        numbers = self.rng.sample(range(40), self.rng.choice([1, 4, 15]))
        gone = [n for n in numbers if self.rng.random() < 0.3]
        old = {n: self.places.pop(n) for n in numbers if n in self.places}
        files: list[WrittenFile] = []
        if self.rng.random() < 0.5:
            unpartitioned = next(i for i, s in self.table.table.specs().items() if s.is_unpartitioned())
            files.append(self.table.equality(["id"], [{"id": n} for n in numbers], spec_id=unpartitioned))
        else:
            by_file: dict[str, list[tuple[WrittenFile, int]]] = {}
            for file, at in old.values():
                by_file.setdefault(file.path, []).append((file, at))
            for places in by_file.values():
                file = places[0][0]
                files.append(self.table.positions(places, file.partition, spec_id=file.spec_id))
        self.table.commit(*files, *self.data([n for n in numbers if n not in gone]))

    def rewrite(self) -> None:
        """Copy-on-write: one file leaves, its live rows come back in another, one of them changed."""
        if not self.files:
            return
        file = self.rng.choice(list(self.files.values()))
        live = sorted(n for n, (where, _) in self.places.items() if where.path == file.path)
        rows = {row["id"]: row for row in self.table.rows() if row["id"] in live}
        if not rows:
            return
        if self.rng.random() < 0.5:
            rows[live[0]] = self.row(live[0])
        spec_id = next(i for i, s in self.table.table.specs().items() if s.is_unpartitioned())
        new = self.table.data([rows[n] for n in live], spec_id=spec_id)
        self.places |= {n: (new, at) for at, n in enumerate(live)}
        self.files.pop(file.path)
        self.files[new.path] = new
        self.table.exchange([file], new)

    def evolve(self) -> None:
        """Change a column or the partitions."""
        table, choice = self.table.table, self.rng.randrange(5)
        names = [f.name for f in table.schema().fields]
        if choice == 0:
            with table.update_schema() as update:
                self.added += 1
                update.add_column(f"added{self.added}", StringType())
        elif choice == 1 and any(name.startswith("added") for name in names):
            with table.update_schema() as update:
                update.delete_column(next(name for name in names if name.startswith("added")))
        elif choice == 2:
            with table.update_schema() as update:
                update.update_column("x", DoubleType())
                update.update_column("n", LongType())
        elif choice == 3 and table.spec().is_unpartitioned():
            with table.update_spec() as spec:
                spec.add_field("region", IdentityTransform(), "by_region")
                spec.add_field("id", BucketTransform(3), "by_id")
        elif not table.spec().is_unpartitioned():
            with table.update_spec() as spec:
                spec.remove_field("by_region")
                spec.remove_field("by_id")


@seeds(3)
def test_changes_lead_from_one_snapshot_to_another_while_columns_and_partitions_change(
    seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    made = EvolvingTable(tmp_path, rng)
    for _ in range(12):
        made.batch()
        if rng.random() < 0.4:
            made.rewrite()
        if rng.random() < 0.5:
            made.evolve()
    ids = snapshots(made.table.table)
    assert sum(check_keyed(made.table.ref, *pair, ["id"]) for pair in pairs(ids, rng, 4))
    made.table.close()
