"""Removes files of tables. No other module of calve does.

The process that wrote a file removes it only while nothing can refer to it: before the commit or the record that names
it is sent, or after a commit that was certainly not applied (`outcome.py` decides that). Besides, files are removed
when they expire, when they are orphans, and when they have served their purpose (files of keys). A leftover file does
no harm, a missing one does: failing to remove a file is a warning.
"""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from calve.catalog.guarded import locations_of

_DELETE_OLD_METADATA = "write.metadata.delete-after-commit.enabled"
_PARALLEL = 16
_NAMED = 20
"""Files that a log line lists."""

_log = logging.getLogger(__name__)


def discard(io: FileIO, locations: Iterable[str], why: str) -> None:
    """Remove files and log them with the reason. Missing files are fine; failing to remove one is a warning."""
    removed: list[str] = []
    for location in locations:
        try:
            remove(io, location)
        except OSError as error:
            _log.warning("a file was not removed", extra={"location": location, "why": why, "error": str(error)})
        else:
            removed.append(location)
    if removed:
        fields = {"why": why, "files": len(removed), "among them": removed[:_NAMED]}
        _log.info("removed %d files: %s", len(removed), why, extra=fields)


def discard_expired(io: FileIO, locations: Sequence[str]) -> None:
    """Remove files of expired snapshots, several at a time. Missing files are fine.

    Raises OSError if one cannot be removed: what names it must stay, so that a later attempt finds it.
    """
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for _ in pool.map(lambda location: remove(io, location), locations):
            pass
    if locations:
        fields = {"files": len(locations), "among them": list(locations[:_NAMED])}
        _log.info("removed %d files of expired snapshots", len(locations), extra=fields)


def discard_orphans(io: FileIO, locations: Sequence[str]) -> int:
    """Remove files that nothing refers to, several at a time; returns how many. One that cannot be removed stays."""

    def try_remove(location: str) -> bool:
        try:
            remove(io, location)
        except OSError as error:
            _log.warning("an orphan file was not removed", extra={"location": location, "error": str(error)})
            return False
        return True

    with ThreadPoolExecutor(_PARALLEL) as pool:
        removed = sum(pool.map(try_remove, locations))
    if removed:
        fields = {"files": removed, "among them": list(locations[:_NAMED])}
        _log.info("removed %d orphan files", removed, extra=fields)
    return removed


def remove(io: FileIO, location: str) -> None:
    """Remove a file if it exists. Raises OSError."""
    with suppress(FileNotFoundError):
        io.delete(location)


def discard_old_metadata(table: Table, after: TableMetadata) -> None:
    """Remove metadata files that left the log of `table`, if its properties say so. REST catalogs own theirs.

    Other writers write the log, too: only metadata files of this table are removed, whatever the log says.
    """
    if isinstance(table.catalog, RestCatalog):
        return
    if after.properties.get(_DELETE_OLD_METADATA, "false").lower() != "true":
        return
    kept = {entry.metadata_file for entry in after.metadata_log}
    folder = f"{locations_of(table).metadata_path}/"
    log = (entry.metadata_file for entry in table.metadata.metadata_log)
    gone = [file for file in log if file not in kept and _is_metadata_file(file, folder)]
    discard(table.io, gone, "they left the metadata log of the table")


def _is_metadata_file(location: str, folder: str) -> bool:
    return location.startswith(folder) and ".metadata.json" in location and "/" not in location.removeprefix(folder)
