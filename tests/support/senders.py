"""All kinds of committers: each prepares a table and then makes one change, with which a test may interfere."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, StringType

from calve.catalog.row_lineage import next_row_id
from calve.clock import RandomIds, SystemClock
from calve.errors import BadRow
from calve.iceberg.files.manifest_cache import ManifestCache, references
from calve.iceberg.loading import load_or_create_table
from calve.iceberg.schema.creation import iceberg_schema
from calve.iceberg.schema.evolution import Shape
from calve.iceberg.sink_table import IcebergTable
from calve.iceberg.small_tables.dead_letters import LetterTable
from calve.iceberg.small_tables.declared import Declaration, DeclaredColumn, Plain, open_declared
from calve.iceberg.snapshot.expiry import expire
from calve.iceberg.snapshot.holds import Hold, HoldPlace
from calve.iceberg.snapshot.retention import BATCH, ExpiryPolicy
from calve.maintain.compact import CompactionScope, compact
from calve.maintain.convert import ConversionTools, convert_deletes
from calve.model.change import Letter, Origin
from calve.model.spec import RetentionOptions, TableName
from calve.model.table import Proposal
from tests.faults.where import files_of
from tests.support.keyed import no_session
from tests.support.readers import duckdb_rows
from tests.unit.iceberg.sample import COLUMNS, NAME, SINK, Sample

MANIFESTS = 8
"""That are merged: tests set the number that is needed to this."""
TOOLS = ConversionTools(no_session, SystemClock(), RandomIds())
LETTERS = TableName(("shop",), "letters")
DECLARED = ("shop", "declared")
PARTITIONED = TableName(("shop",), "partitioned")


@dataclass(frozen=True)
class Act:
    """A prepared change of a table, and the expected result."""

    make: Callable[[], object]
    rows: int
    snapshots: int = 1
    """Number of snapshots that it adds."""
    commits: int = 1
    """Number of commits that it sends; a test interferes with the last one."""
    table: tuple[str, ...] = NAME.identifier


def batch(sample: Sample, _: Catalog) -> Act:
    sample.commit({1: "a"})
    return Act(lambda: sample.commit({1: "A", 2: "b"}, deletes=[1]), rows=2)


def claim(sample: Sample, _: Catalog) -> Act:
    sample.commit({1: "a"})
    fenced = Proposal(sample.progress(commit_id="claim", epoch=2))
    return Act(lambda: sample.iceberg.commit(sample.iceberg.load(), fenced), rows=1)


def schema_change(sample: Sample, _: Catalog) -> Act:
    sample.commit({1: "a"})
    table = sample.table
    fields = (*table.schema().fields, NestedField(9, "more", StringType(), required=False))
    shape = Shape(Schema(*fields, identifier_field_ids=table.schema().identifier_field_ids))
    iceberg = IcebergTable(table, SINK, ["id"], sample.clock, sample.ids, shape=shape)

    def make() -> None:
        iceberg.evolve(iceberg.load())
        assert not iceberg.behind

    return Act(make, rows=1, snapshots=0)


def upgrade(sample: Sample, _: Catalog) -> Act:
    sample.commit({1: "a"})
    sample.commit({1: "A", 2: "b"}, deletes=[1])
    table = sample.table
    shape = Shape(table.schema(), format_version=3)
    iceberg = IcebergTable(table, SINK, ["id"], sample.clock, sample.ids, shape=shape)

    def make() -> None:
        iceberg.evolve(iceberg.load())
        assert not iceberg.behind
        now = sample.table.metadata
        assert (now.format_version, next_row_id(now)) == (3, 3)

    return Act(make, rows=2)


def manifest_merge(sample: Sample, _: Catalog) -> Act:
    for number in range(MANIFESTS):
        sample.commit({number: "x"})
    return Act(lambda: sample.iceberg.merge_manifests(sample.iceberg.load()), rows=MANIFESTS)


def compaction(sample: Sample, _: Catalog) -> Act:
    sample.commit({1: "a"})
    sample.commit({2: "b"})

    def make() -> None:
        done = compact(sample.catalog, CompactionScope(NAME), TOOLS)
        assert done is None or (done.files_before, done.files_after) == (2, 1)

    return Act(make, rows=2, commits=2)  # the first one takes a hold


def hold(sample: Sample, _: Catalog) -> Act:
    held = sample.commit({1: "a"}).snapshot_id
    place = HoldPlace(sample.catalog, NAME, sample.clock)

    def make() -> None:
        taken = Hold(place, "x", sample.table, held)
        assert sample.table.refs()[taken.tag].snapshot_id == held

    return Act(make, rows=1, snapshots=0)


def expiry(sample: Sample, _: Catalog) -> Act:
    for number in range(1 + BATCH):
        sample.commit({number: "x"})
    sample.clock.now += 30 * 24 * 3_600_000

    def make() -> None:
        expire(sample.table, ExpiryPolicy(RetentionOptions(), "main", sample.clock.now))
        assert len(sample.table.metadata.snapshots) == 1

    return Act(make, rows=1 + BATCH, snapshots=-BATCH)


def conversion(sample: Sample, _: Catalog) -> Act:
    sample.commit({1: "a", 2: "b", 3: "c"})
    sample.commit({1: "A"}, deletes=[1, 2])

    def make() -> None:
        done = convert_deletes(sample.catalog, NAME, TOOLS)
        assert done is None or (done.equality_delete_files, done.position_deletes) == (1, 2)

    return Act(make, rows=2)


def dead_letters(sample: Sample, maker: Catalog) -> Act:
    LetterTable(maker, LETTERS, "s", SystemClock(), RandomIds())
    table = LetterTable(sample.catalog, LETTERS, "s", SystemClock(), RandomIds())
    letters = [Letter(Origin("t", 0, offset, value=b"?"), BadRow("no")) for offset in range(3)]
    return Act(lambda: table.add(letters, "q/0"), rows=3, table=LETTERS.identifier)


def declared_table(sample: Sample, maker: Catalog) -> Act:
    columns = (DeclaredColumn("a", Plain.TEXT, partition_key=True), DeclaredColumn("b", Plain.TEXT))
    place = f"{sample.table.location()}-declared"
    first = Declaration(DECLARED, place, columns[:1], {"p": "1", "write.metadata.delete-after-commit.enabled": "true"})
    open_declared(maker, first)
    grown = replace(first, columns=columns, properties={**first.properties, "p": "2"})

    def make() -> None:
        table = open_declared(sample.catalog, grown)
        assert table.properties["p"] == "2"
        assert table.schema().column_names == ["a", "b"]

    return Act(make, rows=0, snapshots=0, table=DECLARED)


def spec_for_deletes(sample: Sample, maker: Catalog) -> Act:
    schema = iceberg_schema(COLUMNS, ["id"])
    spec = PartitionSpec(PartitionField(schema.find_field("id").field_id, 1000, IdentityTransform(), "id"))
    maker.create_table(PARTITIONED.identifier, schema, partition_spec=spec, properties={"format-version": "2"})

    def make() -> None:
        table = load_or_create_table(sample.catalog, PARTITIONED, schema, ["id"])
        assert len(table.specs()) == 2

    return Act(make, rows=0, snapshots=0, table=PARTITIONED.identifier)


SENDERS: dict[str, Callable[[Sample, Catalog], Act]] = {
    one.__name__: one
    for one in (
        *(batch, claim, schema_change, upgrade, manifest_merge, compaction, conversion, hold, expiry),
        *(dead_letters, declared_table, spec_for_deletes),
    )
}


def check(catalog: Catalog, act: Act, snapshots_before: int, s3: Mapping[str, str] | None = None) -> None:
    """Check that the change was made once, that DuckDB can read the table, and that there are no other files."""
    table = catalog.load_table(act.table)
    assert len(table.metadata.snapshots) == snapshots_before + act.snapshots
    check_rows(catalog, act, s3)
    if act.snapshots >= 0:  # files of snapshots that expired stay
        assert _in_place(table) == _named(table)


def check_rows(catalog: Catalog, act: Act, s3: Mapping[str, str] | None = None) -> None:
    """Check that DuckDB can read the table, with these secret options, and that all files of snapshots exist."""
    table = catalog.load_table(act.table)
    assert _named(table) - _in_place(table) == set()
    found = duckdb_rows(table.metadata_location, s3=s3) if table.metadata.snapshots else []
    assert len(found) == act.rows


def _named(table: Table) -> set[str]:
    return {_path(location) for location in references(table.io, ManifestCache(), table.metadata.snapshots)}


def _in_place(table: Table) -> set[str]:
    return {path for path in files_of(table) if path.endswith((".parquet", ".avro"))}


def _path(location: str) -> str:
    """Convert a location to pyarrow's form; some catalogs write local locations with one slash."""
    return urlsplit(location).path if location.startswith("file:") else location.partition("://")[2]
