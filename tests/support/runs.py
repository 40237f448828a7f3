"""Real runs of sinks without Spark: the test writes files of a few rows, everything after that is real."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from calve.catalog.connect import connect_embedded
from calve.clock import Clock, RandomIds, SystemClock
from calve.commit.checkpoints import CheckpointFiles
from calve.commit.committer import Signals
from calve.commit.journal import Journal
from calve.commit.run import SinkRun
from calve.commit.run_state import RunPorts
from calve.iceberg.loading import load_or_create_table
from calve.iceberg.planning.compaction_groups import AUTOMATIC
from calve.iceberg.schema.arrow import arrow_schema, parse_schema
from calve.iceberg.schema.creation import iceberg_schema
from calve.iceberg.schema.evolution import Shape
from calve.iceberg.sink_table import IcebergTable
from calve.iceberg.snapshot.compaction import CompactionOwner
from calve.iceberg.snapshot.removal_journal import RemovalJournal
from calve.keylookup.index.key_index import KeyIndex
from calve.keylookup.indexed import IndexedSearch
from calve.keylookup.resolver import PositionResolver
from calve.keylookup.search import SparkJobs
from calve.maintain.compact import CompactionScope, Compactor
from calve.maintain.convert import ConversionTools
from calve.model.checkpoint import CheckpointIdentity
from calve.model.files import Content, FileTotals, KeyPlace, WriteResult, WrittenFile
from calve.model.progress import Receipt
from calve.model.spec import DayHours, NoEnvelope, SinkSpec, TableName, WriteOptions
from calve.pipeline.monitor import RunMonitor
from calve.pipeline.upkeep import Upkeep, UpkeepPace
from calve.storage.state import LocalState
from calve.write.data_files import FileNames, data_files, key_files
from calve.write.row_ids import RowIdWriter
from tests.support.keyed import no_session

NAME = TableName.parse("shop.orders")
EIGHT_FILES = replace(AUTOMATIC, fan=8)
"""Small files are merged as soon as there are eight."""
COLUMNS = """{"type": "struct", "fields": [
  {"name": "id", "type": "long", "nullable": true, "metadata": {}},
  {"name": "v", "type": "string", "nullable": true, "metadata": {}}]}"""


def spec_of(sink: str, **settings: object) -> SinkSpec:
    """Build the spec of a sink whose name is its id."""
    return replace(SinkSpec(sink, sink, NAME, ("id",), NoEnvelope()), **settings)  # type: ignore[arg-type]


class Run:
    """One run of a sink into an embedded catalog: a new one for the same `home` and spec is its successor."""

    def __init__(
        self,
        home: Path,
        spec: SinkSpec,
        catalog: Catalog | None = None,
        clock: Clock | None = None,
        keys_at: KeyPlace | None = None,
    ) -> None:
        clock, self.ids, self.signals = clock or SystemClock(), RandomIds(), Signals()
        self.home, self.clock, self.spec = home, clock, spec
        self.catalog = catalog or connect_embedded(home)
        schema = iceberg_schema(COLUMNS, ["id"])
        made = load_or_create_table(
            self.catalog,
            NAME,
            schema,
            ["id"],
            known_to=spec.sink_id,
            format_version=spec.table_format,
            upgrades=spec.format_version is not None,
        )
        shape = Shape(made.schema(), branch=spec.branch, format_version=spec.format_version)
        self.removals = RemovalJournal(LocalState(home / "state"))
        self.table = IcebergTable(
            made,
            spec.sink_id,
            spec.key,
            clock,
            self.ids,
            shape=shape,
            keys_at=keys_at,
            retention=spec.retention,
            removals=self.removals,
            state_location=str(home / "state"),
        )
        self.monitor = RunMonitor(spec, clock, home / f"status-{spec.name}.json", self.signals.wake)
        state = LocalState(home / "state" / spec.sink_id)
        index = IndexedSearch(KeyIndex(state, self.ids, inline=True), spec.key_index)
        jobs = SparkJobs(no_session, spec.sink_id)
        rows = RowIdWriter(self.table, spec.write, jobs)
        self.resolver = PositionResolver(self.table, jobs, self.ids, index, rows)
        ports = RunPorts(clock, self.ids, self.monitor, self.signals, self.resolver)
        self.run = SinkRun(spec, self.table, Journal(state), ports, lambda _: True)
        self.run.claims.boot()
        self.checkpoint = self.run.state.next_checkpoint

    @property
    def now(self) -> Table:
        """Load the table from the catalog."""
        return self.catalog.load_table(NAME.identifier)

    def commit(self, rows: Mapping[int, str], deletes: Sequence[int] = ()) -> Receipt | None:
        """Commit one batch that inserts or replaces these rows, and deletes others."""
        self.record(rows, deletes)
        return self.run.commits.commit_next()

    def record(self, rows: Mapping[int, str], deletes: Sequence[int] = ()) -> None:
        """Make one checkpoint durable; its offsets count checkpoints."""
        self.run.claims.claim()
        while self.table.behind:
            self.run.claims.between_batches(self.table.evolve)
        number = self.checkpoint
        self.checkpoint += 1
        files = self._files(rows, deletes)
        data = [file for file in files if file.content is Content.DATA]
        keys = [file for file in files if file.content is not Content.DATA]
        commit_id = self.ids.new_id()
        written = CheckpointFiles(
            commit_id,
            self.table.write_manifests(data, commit_id) if data else (),
            FileTotals.of(WriteResult(tuple(data), len(rows))),
            self.table.write_manifests(keys, f"{commit_id}-keys"),
        )
        identity = CheckpointIdentity("q", number, self.run.state.end, str(number))
        assert self.run.checkpoints.record(identity, written, self.run.state.next_time(self.clock.now_ms()))

    def upkeep(self, hours: DayHours | None = None, pace: UpkeepPace | None = None) -> Upkeep:
        """Create the maintenance of this run, with its own catalog client."""
        scope = CompactionScope(NAME, self.spec.branch, self.spec.write)
        owner = CompactionOwner(self.spec.sink_id, lambda: self.run.state.fence)
        tools = ConversionTools(no_session, self.clock, self.ids)
        return Upkeep(
            lambda: Compactor(connect_embedded(self.home), scope, tools, owner=owner),
            self.resolver,
            self.monitor,
            self.clock,
            self.signals.wake,
            policy=EIGHT_FILES,
            hours=hours,
            pace=pace,
        )

    def _files(self, rows: Mapping[int, str], deletes: Sequence[int] = ()) -> list[WrittenFile]:
        target = self.table.write_target(WriteOptions())
        columns = arrow_schema(parse_schema(target.schema_json))
        upserts = [{"id": key, "v": value} for key, value in rows.items()]
        keys = [*upserts, *({"id": key, "v": ""} for key in deletes)]
        names = FileNames(target, self.ids.new_id(), "run")
        files: list[WrittenFile] = []
        for out, written in ((data_files(target, names), upserts), (key_files(target, names), keys)):
            with out:
                out.write(pa.Table.from_pylist(written, schema=columns))
            files += out.files
        return files
