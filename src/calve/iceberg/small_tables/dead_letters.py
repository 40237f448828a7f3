"""The table of dead letters: records that could not become changes, with where they came from and why.

Letters are identified by their sink, origin and bytes, never by their time. So no letter is added twice when records
are read again: after a crash, with lost records, in other checkpoints, or by a run that was fenced. Every addition and
every removal is one attempt on exactly the table state that was checked. A removal replaces the files that contain the
letters by files without them.

An addition is a small file. Once there are many, the next addition replaces them by one: every addition reads the list
of all files, and every look at the letters opens them.

Of the table's history, the newest snapshots and those of the last hour stay: a source with a bad record in every
checkpoint would otherwise add to its metadata for ever, and every addition writes all of that.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    In,
    LessThanOrEqual,
    Or,
)
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import BinaryType, IntegerType, LongType, NestedField, StringType, TimestamptzType

from calve import faults
from calve.catalog.discard import discard
from calve.catalog.failures import trying
from calve.catalog.guarded import locations_of
from calve.clock import Clock, IdSource
from calve.errors import CommitConflict, CommitUnknown, TransientError
from calve.iceberg.files.manifest_cache import ManifestCache
from calve.iceberg.files.names import own_name, table_mark
from calve.iceberg.loading import load_or_create_table, load_table
from calve.iceberg.small_tables.partition_files import HistoryLimits, TableVersion, commit_all, prepare, write_rows
from calve.iceberg.snapshot.expiry import refusal_of
from calve.iceberg.snapshot.retention import Retention
from calve.model.change import Letter, Origin
from calve.model.files import WrittenFile
from calve.model.numbers import whole_number
from calve.model.spec import LEAST_RETENTION_MS, RetentionOptions, TableName
from calve.retry import retry_on

ATTEMPTS = 20
"""Each failed attempt means that another writer succeeded."""
KEPT = RetentionOptions(max_age_ms=LEAST_RETENTION_MS, min_snapshots=100)
"""Snapshots that stay, unless the table states others; some expire once there are twice as many: that takes a while."""

FILES_MERGED = 64
"""Small files that one addition replaces."""
SMALL_FILE_BYTES = 1 << 20
"""Larger files are not merged. An addition holds the small ones in memory."""

SCHEMA = Schema(
    NestedField(1, "sink", StringType(), required=True),
    NestedField(2, "topic", StringType()),
    NestedField(3, "partition", IntegerType()),
    NestedField(4, "offset", LongType()),
    NestedField(5, "file", StringType()),
    NestedField(6, "key", BinaryType()),
    NestedField(7, "value", BinaryType()),
    NestedField(8, "reason", StringType(), required=True),
    NestedField(9, "detail", StringType()),
    NestedField(10, "hint", StringType()),
    NestedField(11, "checkpoint", StringType()),
    NestedField(12, "met_at", TimestamptzType(), required=True),
)
_Make = Callable[..., BooleanExpression]
_all: _Make = And
_any: _Make = Or
_equal: _Make = EqualTo
_in: _Make = In
_from: _Make = GreaterThanOrEqual
_up_to: _Make = LessThanOrEqual
_ORIGIN = ("topic", "partition", "offset", "file", "key", "value")
_Row = dict[str, Any]


class LetterTable:
    """The dead letters of one sink; the table may hold those of others."""

    def __init__(self, catalog: Catalog, name: TableName, sink: str, clock: Clock, ids: IdSource) -> None:
        self._catalog, self._name, self._sink = catalog, name, sink
        self._clock, self._ids = clock, ids
        self._manifests = ManifestCache()
        load_or_create_table(catalog, name, SCHEMA, ())

    def add(self, letters: Sequence[Letter], checkpoint: str) -> int:
        """Add the letters that the table does not have yet; returns how many were added.

        Raises CommitConflict if other writers won every attempt, TransientError, and InvalidInput if the table was
        dropped.
        """
        # each attempt reads which letters are in the table
        return retry_on((CommitConflict, CommitUnknown), ATTEMPTS, lambda: self._try(letters, checkpoint))

    def _try(self, letters: Sequence[Letter], checkpoint: str) -> int:
        with trying(f'loading table "{self._name}"'):
            table = load_table(self._catalog, self._name)
            fresh = _missing(letters, self._existing(table, letters))
            if not fresh:
                return 0
            merged = _small_files(table)
            rows = [row for task in merged for row in _rows_in(table, task)]
            written = self._write(table, [*rows, *(self._row(letter, checkpoint) for letter in fresh)])
        faults.reached("deadletter.before")
        self._commit(table, [task.file.file_path for task in merged], [written])
        faults.reached("deadletter.after")
        return len(fresh)

    def remove(self, digests: AbstractSet[str], until: datetime) -> int:
        """Remove letters that were added up to `until`, by the digests of their origins; returns how many.

        Raises like `add`.
        """
        condition = _all(_equal("sink", self._sink), _up_to("met_at", until.isoformat()))
        return self._remove(condition, lambda row: row["met_at"] <= until and _origin(row).digest in digests)

    def withdraw(self, checkpoint: str, kept: AbstractSet[str] = frozenset()) -> int:
        """Remove the letters of a checkpoint that was never recorded, except `kept`; returns how many.

        Its records are read again, and may be good by then. Letters for files that could not be read stay, and so do
        rows of views. Raises like `add`.
        """
        condition = _all(_equal("sink", self._sink), _equal("checkpoint", checkpoint))

        def left_behind(row: _Row) -> bool:
            record = _origin(row)
            whole = record.topic is not None or (record.file is not None and record.value is not None)
            return row["checkpoint"] == checkpoint and whole and record.digest not in kept

        return self._remove(condition, left_behind)

    def _remove(self, condition: BooleanExpression, leaves: Callable[[_Row], bool]) -> int:
        # an attempt without a known outcome is repeated: what it removed is no longer found
        return retry_on((CommitConflict, CommitUnknown), ATTEMPTS, lambda: self._try_remove(condition, leaves))

    def _try_remove(self, condition: BooleanExpression, leaves: Callable[[_Row], bool]) -> int:
        removed: list[str] = []
        kept: list[list[_Row]] = []
        count = 0
        with trying(f'loading table "{self._name}"'):
            table = load_table(self._catalog, self._name)
            for task in table.scan(condition).plan_files():
                rows = _rows_in(table, task)
                staying = [row for row in rows if row["sink"] != self._sink or not leaves(row)]
                if len(staying) < len(rows):
                    count += len(rows) - len(staying)
                    removed.append(task.file.file_path)
                    kept.append(staying)
            together = [row for rows in kept for row in rows]
            written = [self._write(table, together)] if together else []
        if removed:
            self._commit(table, removed, written)
        return count

    def _write(self, table: Table, rows: Sequence[_Row]) -> WrittenFile:
        name = own_name(table_mark(table.metadata.table_uuid), f"letters-{self._ids.new_id()}.parquet")
        return write_rows(table, locations_of(table).new_data_location(name), (), rows)

    def _commit(self, table: Table, removed: Sequence[str], added: Sequence[WrittenFile]) -> None:
        files = tuple(file.path for file in added)
        try:
            seen = TableVersion(table, self._manifests)
            limits = _limits(table, self._clock.now_ms())
            prepared = prepare(seen, removed, added, limits, (self._clock, self._ids), files=files)
        except TransientError:
            discard(table.io, files, "the manifest of these dead letters could not be written")
            raise
        commit_all([prepared])

    def _existing(self, table: Table, letters: Sequence[Letter]) -> list[Origin]:
        """Origins of letters in the table that may include some of these."""
        found = table.scan(_near(self._sink, letters), selected_fields=_ORIGIN).to_arrow().to_pylist()
        return [Origin(**row) for row in found]

    def _row(self, letter: Letter, checkpoint: str) -> _Row:
        error = letter.error
        reason = {"reason": error.primary, "detail": error.detail or None, "hint": error.hint or None}
        met = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        return {"sink": self._sink, **vars(letter.origin), **reason, "checkpoint": checkpoint, "met_at": met}


def _small_files(table: Table) -> list[FileScanTask]:
    """The small files that the next addition replaces; none while there are few. The files of all sinks are alike."""
    head = table.current_snapshot()
    summary = head.summary if head else None
    if summary is None or (whole_number(summary.get("total-data-files") or "") or 0) < FILES_MERGED:
        return []
    small = [task for task in table.scan().plan_files() if task.file.file_size_in_bytes < SMALL_FILE_BYTES]
    return small if len(small) >= FILES_MERGED else []


def _rows_in(table: Table, task: FileScanTask) -> list[_Row]:
    """All rows of one file."""
    rows: list[_Row] = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table([task]).to_pylist()
    return rows


def _limits(table: Table, now_ms: int) -> HistoryLimits:
    """The snapshots that stay when one is added."""
    metadata = table.metadata
    found = Retention.of(metadata.properties, None, KEPT)
    young = sum(now_ms - snapshot.timestamp_ms <= found.max_age_ms for snapshot in metadata.snapshots)
    kept = max(found.min_keep, young + 1)
    enough = len(metadata.snapshots) >= 2 * kept and not refusal_of(table)
    return HistoryLimits(snapshots=kept) if enough else HistoryLimits()


def _origin(row: _Row) -> Origin:
    return Origin(**{name: row[name] for name in _ORIGIN})


def _missing(letters: Sequence[Letter], existing: Sequence[Origin]) -> list[Letter]:
    """Letters that do not exist yet. A line that occurs several times in a file is as many letters."""
    known = Counter(existing)
    fresh = []
    for letter in letters:
        if known[letter.origin]:
            known[letter.origin] -= 1
        else:
            fresh.append(letter)
    return fresh


def _near(sink: str, letters: Sequence[Letter]) -> BooleanExpression:
    """A condition that matches existing letters of these origins, and few others."""
    own = _equal("sink", sink)
    offsets: dict[tuple[str, int], list[int]] = {}
    files: set[str] = set()
    for origin in (letter.origin for letter in letters):
        if origin.topic is not None and origin.partition is not None and origin.offset is not None:
            offsets.setdefault((origin.topic, origin.partition), []).append(origin.offset)
        elif origin.file is not None:
            files.add(origin.file)
        else:
            return own
    places: list[BooleanExpression] = [
        _all(
            _equal("topic", topic),
            _equal("partition", partition),
            _from("offset", min(found)),
            _up_to("offset", max(found)),
        )
        for (topic, partition), found in offsets.items()
    ]
    places += [_in("file", files)] if files else []
    return _all(own, places[0] if len(places) == 1 else _any(*places))
