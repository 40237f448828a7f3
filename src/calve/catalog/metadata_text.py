"""Table metadata as JSON, made quickly: of a commit's metadata all but one snapshot was written before.

The lists that grow with the history (snapshots and the two logs) are put together from texts that are mostly
known already; everything else is pyiceberg's.
"""

from pyiceberg.table.metadata import TableMetadata

_GROWING = {"snapshots", "snapshot_log", "metadata_log"}


class MetadataTexts:
    """Writes the metadata of one table, again and again."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int | None], str] = {}
        self._log: dict[str, str] = {}

    def text(self, metadata: TableMetadata) -> str:
        """The content of a metadata file."""
        base = metadata.model_dump_json(exclude_none=True, exclude=set(_GROWING))
        snapshots: dict[tuple[int, int | None], str] = {}
        for snapshot in metadata.snapshots:
            # A snapshot never changes, but for its parent id, which an expiry clears.
            key = (snapshot.snapshot_id, snapshot.parent_snapshot_id)
            snapshots[key] = self._known.get(key) or snapshot.model_dump_json(exclude_none=True)
        self._known = snapshots
        log = {
            entry.metadata_file: self._log.get(entry.metadata_file) or entry.model_dump_json()
            for entry in metadata.metadata_log
        }
        self._log = log
        lists = {
            "snapshots": snapshots.values(),
            "snapshot-log": (
                f'{{"snapshot-id":{entry.snapshot_id},"timestamp-ms":{entry.timestamp_ms}}}'
                for entry in metadata.snapshot_log
            ),
            "metadata-log": log.values(),
        }
        return base[:-1] + "".join(f',"{name}":[{",".join(texts)}]' for name, texts in lists.items()) + "}"
