"""Compactions: calve's in one part, and a foreign one, which rewrites all rows with a `replace` snapshot."""

from collections.abc import Callable

import pyarrow as pa
from pyiceberg.table.snapshots import Operation

from calve.catalog.outcome import send
from calve.clock import RandomIds, SystemClock
from calve.iceberg.files.manifest_cache import ManifestCache, ManifestLine
from calve.iceberg.files.manifests import manifest_file, write_manifests
from calve.iceberg.sink_table import IcebergTable
from calve.iceberg.snapshot.compaction import CompactionPlan
from calve.iceberg.snapshot.draft import SnapshotContents, new_draft, snapshot_change
from calve.iceberg.snapshot.history import added_counts, new_summary
from calve.iceberg.snapshot.removal import remove_all
from calve.lake import TableRef
from calve.maintain.compact import Compactor, RewrittenFiles
from calve.model.files import FileTotals, WriteResult
from calve.model.spec import WriteOptions
from calve.reader.local import read_here
from calve.write.data_files import FileNames, data_files


def rewritten(compactor: Compactor, plan: CompactionPlan, check: Callable[[], None] = lambda: None) -> RewrittenFiles:
    """Rewrite the files of a plan that is small enough to be one part."""
    (part,) = compactor.rewrite(plan, check)
    return part


def compact(ref: TableRef, key: list[str]) -> None:
    """Rewrite the whole table in its current state."""
    catalog = ref.lake.open()
    table = catalog.load_table(ref.name.identifier)
    found = read_here(ref)
    rows = pa.Table.from_batches(found.rows(), schema=found.schema)
    clock, ids = SystemClock(), RandomIds()
    target = IcebergTable(table, "nobody", key, clock, ids).write_target(WriteOptions())
    with data_files(target, FileNames(target, ids.new_id(), "compaction")) as out:
        out.write(rows.sort_by([(name, "descending") for name in key]))
    draft = new_draft(table, clock, ids)
    manifests = ManifestCache()
    before = manifests.all_lines_of(table.io, draft.parent)
    removal = remove_all(draft, before, manifests)
    added = write_manifests(table, out.files, f"compacted-{ids.new_id()}")
    lines = [ManifestLine(manifest_file(m, draft.snapshot_id, draft.sequence_number)) for m in added]
    counts = added_counts(FileTotals.of(WriteResult(out.files, 0)))
    summary = new_summary(Operation.REPLACE, counts, None, {}, removed=removal.counts)
    contents = SnapshotContents((*lines, *removal.lines), before, summary)
    send(snapshot_change(draft, contents, manifests), "a compaction by hand")
    catalog.close()
