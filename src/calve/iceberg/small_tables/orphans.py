"""Removes orphans: files below a table's location that nothing refers to, left behind by processes that died.

Only files that look like a table's files and are old enough are removed: younger ones may belong to a commit in
progress.
"""

from datetime import UTC, datetime

from pyarrow.fs import FileSelector, FileType

from calve.catalog.discard import discard
from calve.iceberg.files.manifest_cache import references
from calve.iceberg.files.store import filesystem_of, io_properties_of
from calve.iceberg.small_tables.partition_files import TableVersion

_ENDINGS = (".parquet", ".avro", ".metadata.json")


def remove_orphans(seen: TableVersion, now_ms: int, min_age_ms: int) -> list[str]:
    """Remove unreferenced files older than `min_age_ms`; returns their paths. Raises OSError.

    `seen` must have been loaded less than `min_age_ms` ago.
    """
    table, metadata = seen.table, seen.table.metadata
    wanted = references(table.io, seen.manifests, metadata.snapshots)
    wanted |= {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    wanted |= {file.statistics_path for file in (*metadata.statistics, *metadata.partition_statistics)}
    properties = io_properties_of(table.io.properties)
    kept = {filesystem_of(location, properties)[1] for location in wanted}
    filesystem, root = filesystem_of(table.location(), properties)
    before = datetime.fromtimestamp((now_ms - min_age_ms) / 1000, tz=UTC)
    gone = [
        info.path
        for info in filesystem.get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
        if info.type is FileType.File and info.path.endswith(_ENDINGS) and info.path not in kept and info.mtime < before
    ]
    # Locations and paths differ in how they begin: `file:///a` and `/a`, `s3://bucket/a` and `bucket/a`.
    prefix = table.location().rstrip("/").removesuffix(root.rstrip("/"))
    discard(table.io, [prefix + path for path in gone], "they are orphans: nothing refers to them")
    return sorted(gone)
