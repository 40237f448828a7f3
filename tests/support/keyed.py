"""A table whose batches delete by position: keys are resolved against its current state, then committed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyspark.sql import SparkSession

from calve.clock import RandomIds, SystemClock
from calve.iceberg.loading import unpartitioned_spec_id
from calve.iceberg.schema.evolution import Shape
from calve.iceberg.sink_table import IcebergTable
from calve.keylookup.index.key_index import Apart, KeyIndex
from calve.keylookup.indexed import BY_MEASUREMENT as WORTHWHILE
from calve.keylookup.indexed import IndexedSearch, IndexLimits
from calve.keylookup.resolver import BY_MEASUREMENT, DriverLimits, PositionResolver
from calve.keylookup.search import SparkJobs
from calve.model.checkpoint import offsets_digest
from calve.model.files import FileTotals, Manifest, ResolvedDeletes, WriteResult, WrittenFile
from calve.model.frontier import Frontier
from calve.model.progress import Fence, Progress
from calve.model.spec import KeyIndexUse, WriteOptions
from calve.model.table import Proposal
from calve.reader.resources import UNBOUNDED, MemoryBudget
from calve.storage.state import LocalState
from calve.write.row_ids import RowIdWriter
from tests.support.foreign import SINK, ForeignTable, Row

Key = tuple[Any, ...]


def no_session() -> SparkSession:
    raise AssertionError("this is small enough for the driver")


class KeyedTable(ForeignTable):
    """A table with a key; `contents` are the expected rows."""

    def __init__(
        self,
        home: Path,
        schema: Schema,
        key: Sequence[str],
        spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        *,
        session: Callable[[], SparkSession] = no_session,
        limits: DriverLimits = BY_MEASUREMENT,
        branch: str = "main",
        index: KeyIndexUse = KeyIndexUse.OFF,
        version: int = 2,
    ) -> None:
        super().__init__(home, schema, spec, {"format-version": str(version)})
        self.key = list(key)
        self.contents: dict[Key, Row] = {}
        if unpartitioned_spec_id(self.table) is None:
            with self.table.update_spec() as update:
                for field in spec.fields:
                    update.remove_field(field.name)
        shape = Shape(self.table.schema(), branch=branch)
        self.iceberg = IcebergTable(self.table, SINK, key, SystemClock(), self._ids, shape=shape)
        self.state = LocalState(home / "state")
        self._jobs, self._limits, self._use = SparkJobs(session, "pool"), limits, index
        self.resolver = self.new_resolver()
        self.totals = FileTotals()
        self.has_equality_deletes = False

    def new_resolver(
        self,
        use: KeyIndexUse | None = None,
        index_limits: IndexLimits = WORTHWHILE,
        apart: Apart | None = None,
        memory: MemoryBudget = UNBOUNDED,
    ) -> PositionResolver:
        """Create the resolver of a new process, without the memory of the last one. Merges run at once."""
        runs = KeyIndex(self.state, RandomIds(), memory=memory, inline=True, apart=apart)
        index = IndexedSearch(runs, use or self._use, index_limits)
        rows = RowIdWriter(self.iceberg, WriteOptions(), self._jobs)
        return PositionResolver(self.iceberg, self._jobs, RandomIds(), index, rows, self._limits, memory=memory)

    def key_of(self, row: Row) -> Key:
        return tuple(row[name] for name in self.key)

    def keys(self, rows: Sequence[Row]) -> tuple[Manifest, ...]:
        """Write key files of some rows, as in a committable."""
        everywhere = unpartitioned_spec_id(self.table)
        keys = [{name: row[name] for name in self.key} for row in rows]
        step = -(-len(keys) // 3)
        parts = [keys[start : start + step] for start in range(0, len(keys), step)]
        files = [self.equality(self.key, part, spec_id=everywhere) for part in parts]
        return self.iceberg.write_manifests(files, self._ids.new_id())

    def resolved(self, rows: Sequence[Row], added: Sequence[Manifest] = ()) -> ResolvedDeletes:
        return self.resolver.resolve(self.iceberg.load(), self.keys(rows), self._ids.new_id(), added)

    def apply(
        self,
        files: Sequence[WrittenFile],
        upserts: Sequence[Row],
        deletes: Sequence[Row] = (),
        *,
        equality: bool = False,
    ) -> None:
        """Commit one batch: `files` contain the rows of `upserts`. Keys are resolved, or committed as they are."""
        number = self._commits
        commit_id = f"commit-{number}"
        manifests = self.iceberg.write_manifests(files, commit_id) if files else ()
        found = ResolvedDeletes()
        if equality:
            found = ResolvedDeletes(self.keys([*upserts, *deletes]))
            self.has_equality_deletes = True
        elif upserts or deletes:
            found = self.resolved([*upserts, *deletes], manifests)
        self._commits += 1
        lower, upper = Frontier(10 * number), Frontier(10 * number + 10)
        progress = Progress(
            SINK, Fence(1, 1, "run"), upper, lower, commit_id, "query", number, None, offsets_digest(None)
        )
        progress = replace(progress, key_index=found.key_index or self.key_index)
        manifests = found.rows.manifests if found.rows else manifests
        totals = FileTotals.of(WriteResult(tuple(files), len(upserts))).plus(found.totals).plus(found.merged)
        proposal = Proposal(progress, manifests + found.manifests, totals, replaced_deletes=found.replaced)
        self.iceberg.commit(self.iceberg.load(), proposal)
        self.totals = self.totals.plus(totals)
        for row in deletes:
            self.contents.pop(self.key_of(row), None)
        for row in upserts:
            self.contents[self.key_of(row)] = row

    @property
    def key_index(self) -> str:
        """The index manifest that the sink's newest snapshot refers to."""
        return next((s.own.key_index for s in self.iceberg.load().ancestors if s.own), "")

    @property
    def summary(self) -> Mapping[str, str]:
        """The summary of the newest snapshot."""
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        return {"operation": snapshot.summary.operation.value, **snapshot.summary.additional_properties}
