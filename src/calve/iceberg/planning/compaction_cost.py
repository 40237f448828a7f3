"""What reads lose to small files and deletes, and what rewriting them costs, in seconds of one core (pure).

    a read        opens files, scans their rows, live or dead, and applies their deletes
    a fresh table has only live rows, in files of the desired size: what a read costs beyond that is its loss
    a rewrite     reads the rows, sorts and writes the live ones

A rewrite pays from the moment on at which reads have lost as much to the files as rewriting them costs. Deletes arrive
steadily, so the loss per read grows with time, and that moment is the cheapest one: with a loss of e per read and
second, r reads per second and a rewrite that costs w, a cycle of t seconds costs w/t + r*e*t/2 per second, which is
least where r*e*t*t/2 = w. Files that were touched by a burst after a long rest are rewritten somewhat early.

If all rows are equally likely to change, no choice of the moment makes both small: the rows rewritten per change, times
the share by which reads are slower on average, is `tradeoff`, whatever the moment.

The constants were measured on local files, on two cores, with DuckDB and Spark. Their ratios decide, not their sizes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from calve.model.scan import ContentId, DeleteFile, DeleteKind, ScanFile

OPEN_FILE = 2e-3
"""To open a data file or a file of deletes, read its footer and start on it."""
SCAN_ROW = 7e-8
"""To scan a row of a few columns: 5 million take 0.26 s in DuckDB and 0.39 s in Spark."""
APPLY_POSITION = 8e-7
"""To read a deleted position from a Parquet file and skip its row: a million more take DuckDB 0.8 s."""
APPLY_VECTOR_POSITION = 3e-8
"""The same from a deletion vector: a bit of a bitmap, which costs less than the row itself."""
COMPARE_ROW = 2.5e-7
"""To compare a row with the keys of one equality delete file: 5 million rows and ten files take Spark 13 s."""
REWRITE_ROW = 7e-7
"""To read, sort and write a row: `calve maintain` rewrites 5 million in 3.7 s."""

_HOUR = 3600.0


@dataclass(frozen=True)
class FileCost:
    """Seconds that one data file costs."""

    scan: float
    """A read of its live rows, without opening it."""
    deletes: float
    """What a read loses to its deletes: dead rows are scanned, delete files opened and applied."""
    rewrite: float

    @property
    def read(self) -> float:
        """A read of the file with its deletes."""
        return OPEN_FILE + self.scan + self.deletes

    def lost(self, reads_per_hour: float, age_seconds: float, *, small: bool) -> float:
        """What reads have lost to the file since it was written; a small file need not have been opened."""
        reads = reads_per_hour * age_seconds / _HOUR
        return reads * (self.deletes / 2 + (OPEN_FILE if small else 0.0))


class FileCosts:
    """The costs of the files of a snapshot, whose deletes may apply to several of them.

    Rows that deletes hit are counted in proportion to the rows of the files that they apply to.
    """

    def __init__(self, files: Iterable[ScanFile]) -> None:
        self._reached: dict[ContentId, int] = {}
        for file in files:
            for delete in file.deletes:
                self._reached[delete.id] = self._reached.get(delete.id, 0) + file.rows

    def dead_rows(self, file: ScanFile) -> float:
        """The estimated number of deleted rows of a file."""
        return min(float(file.rows), sum(delete.rows * self._share(file, delete) for delete in file.deletes))

    def of(self, file: ScanFile) -> FileCost:
        """The costs of one file."""
        dead = self.dead_rows(file)
        applied = sum(self._applying(file, delete) for delete in file.deletes)
        return FileCost(
            scan=SCAN_ROW * (file.rows - dead),
            deletes=SCAN_ROW * dead + applied,
            rewrite=SCAN_ROW * file.rows + applied + REWRITE_ROW * (file.rows - dead),
        )

    def _share(self, file: ScanFile, delete: DeleteFile) -> float:
        return file.rows / max(1, self._reached[delete.id])

    def _applying(self, file: ScanFile, delete: DeleteFile) -> float:
        opened = OPEN_FILE * self._share(file, delete)
        if delete.kind is DeleteKind.EQUALITY:
            return opened + COMPARE_ROW * file.rows
        each = APPLY_VECTOR_POSITION if delete.kind is DeleteKind.VECTOR else APPLY_POSITION
        return opened + each * delete.rows * self._share(file, delete)


def read_ratio(files: Iterable[ScanFile], file_size: int) -> float:
    """How much more a full read of these files costs than one of a fresh table with the same rows; 1 for no rows."""
    listed = list(files)
    costs = FileCosts(listed)
    found = [costs.of(file) for file in listed]
    live_bytes = sum(f.size * (1 - costs.dead_rows(f) / max(1, f.rows)) for f in listed)
    fresh = OPEN_FILE * max(1.0, live_bytes / file_size) + sum(cost.scan for cost in found)
    return sum(cost.read for cost in found) / fresh if listed else 1.0


def tradeoff(kind: DeleteKind) -> float:
    """Rows rewritten per changed row, times the share by which reads are slower on average, for uniform changes.

    Rewriting all N rows after every X changes is N/X rows per change, and a read meets X/2 deleted rows on average.
    """
    each = {DeleteKind.POSITION: APPLY_POSITION, DeleteKind.VECTOR: APPLY_VECTOR_POSITION}[kind]
    return (each + SCAN_ROW) / (2 * SCAN_ROW)


def dead_rows(files: Iterable[ScanFile]) -> Mapping[str, float]:
    """The estimated number of deleted rows by file path; files without deletes are omitted."""
    listed = [file for file in files if file.deletes]
    costs = FileCosts(listed)
    return {file.path: costs.dead_rows(file) for file in listed}
