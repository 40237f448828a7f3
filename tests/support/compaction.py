"""A foreign compaction: all rows of a table in new files, by a `replace` snapshot."""

import pyarrow as pa
from pyiceberg.table.snapshots import Operation

from calve.clock import RandomIds, SystemClock
from calve.iceberg.files.manifests import ManifestLine, ManifestLists, manifest_file, write_manifests
from calve.iceberg.sink_table import IcebergTable
from calve.iceberg.snapshot.draft import new_draft, requirements, snapshot_updates
from calve.iceberg.snapshot.history import added_counts, head_of, new_summary
from calve.iceberg.snapshot.removal import remove_all
from calve.lake import TableRef
from calve.model.files import FileTotals, WriteResult
from calve.model.spec import WriteOptions
from calve.reader.read import read_here
from calve.write.data_files import FileNames, data_files


def compact(ref: TableRef, key: list[str]) -> None:
    """Rewrite the whole table as it is now."""
    catalog = ref.lake.open()
    table = catalog.load_table(ref.name.identifier)
    found = read_here(ref)
    rows = pa.Table.from_batches(found.rows(), schema=found.schema)
    clock, ids = SystemClock(), RandomIds()
    target = IcebergTable(table, "nobody", key, clock, ids).write_target(WriteOptions())
    with data_files(target, FileNames(target, ids.new_id(), "compaction")) as out:
        out.write(rows.sort_by([(name, "descending") for name in key]))
    draft = new_draft(table, clock, ids)
    lists, head = ManifestLists(), head_of(table.metadata)
    assert head is not None
    removal = remove_all(draft, lists.read(table.io, head.manifest_list))
    added = write_manifests(table, out.files, f"compacted-{ids.new_id()}")
    lines = [ManifestLine.of(manifest_file(m, draft.snapshot_id, draft.sequence_number)) for m in added]
    lists.write(table.io, draft.list_location, draft.list_header, (*lines, *removal.lines))
    counts = added_counts(FileTotals.of(WriteResult(out.files, 0)))
    summary = new_summary(Operation.REPLACE, counts, None, {}, removed=removal.counts)
    catalog.commit_table(table, requirements(table.metadata), snapshot_updates(draft, summary))
    catalog.close()
