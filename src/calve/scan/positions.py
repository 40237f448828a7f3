"""Positions of live rows that have one of a set of keys.

Keys are those of the equality deletes of a scan file, whether they are in the table or only about to be. Of each row
group whose statistics the keys may meet, the key columns alone are read; what position deletes and vectors delete
already is left out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from calve.errors import TransientError
from calve.iceberg.position_deletes import Found
from calve.iceberg.readable import ReadTarget
from calve.iceberg.store import open_input
from calve.model.scan import DeleteKind, ScanFile, Split
from calve.scan.deletes import TaskDeletes
from calve.scan.groups import GroupBounds
from calve.scan.keys import KeySet
from calve.scan.projection import Projection
from calve.scan.rows import group_offset
from calve.scan.vectors import NOTHING, Positions

_Keys = tuple[tuple[tuple[int, ...], KeySet], ...]


@dataclass
class _Gone:
    """Deleted rows of one file, by the deletes that were looked at so far."""

    rows: NDArray[np.bool_]
    applied: set[tuple[str, int]] = field(default_factory=set)
    """Path and offset of deletes: files of deletes never change."""


class DeletedRows:
    """Which rows of data files are deleted by position; remembers the last files, for the next look."""

    def __init__(self, most_rows: int = 50_000_000) -> None:
        self._most_rows = most_rows
        self._known: dict[str, _Gone] = {}
        self._rows = 0
        self._lock = Lock()

    def of(self, file: ScanFile, deletes: TaskDeletes) -> NDArray[np.bool_]:
        """One flag for each row of a file. Raises OSError, TerminalError."""
        wanted = {(d.path, d.offset): d for d in file.deletes if d.kind is not DeleteKind.EQUALITY}
        with self._lock:
            gone = self._known.pop(file.path, None)
        if gone is None or not gone.applied <= wanted.keys():
            gone = _Gone(np.zeros(file.rows, bool))
        for name, delete in wanted.items():
            if name not in gone.applied:
                positions = deletes.positions_in(delete, file.path)
                gone.rows[positions[positions < file.rows]] = True
                gone.applied.add(name)
        self._remember(file.path, gone)
        return gone.rows

    def _remember(self, path: str, gone: _Gone) -> None:
        with self._lock:
            self._known[path] = gone
            total = sum(len(known.rows) for known in self._known.values())
            while total > self._most_rows and len(self._known) > 1:
                oldest = next(iter(self._known))
                total -= len(self._known.pop(oldest).rows)


class PositionFinder:
    """Looks into the files of one task. Several threads may ask, once `prepare` was called."""

    def __init__(self, target: ReadTarget, files: Sequence[ScanFile], deleted: DeletedRows) -> None:
        self._target = target
        self._deletes = TaskDeletes(target, files)
        self._deleted = deleted

    def keys_of(self, file: ScanFile) -> _Keys:
        """The keys that are looked for in a file; loaded when first asked for. Raises OSError."""
        return self._deletes.keys_of(file)

    def prepare(self, files: Iterable[ScanFile]) -> None:
        """Load everything that files share. Raises OSError."""
        for file in files:
            self.keys_of(file)

    def find(self, split: Split) -> Found:
        """Live rows with the keys in a split. Raises TransientError, TerminalError."""
        try:
            return Found(split.file, self._positions(split))
        except (OSError, pa.ArrowException) as error:
            raise TransientError(
                "a file of the table could not be searched for keys",
                detail=f'"{split.file.path}" or one of its deletes: {type(error).__name__}: {error}',
            ) from error

    def _positions(self, split: Split) -> Positions:
        keys = self.keys_of(split.file)
        with (
            open_input(split.file.path, self._target.io_properties) as source,
            pq.ParquetFile(source, pre_buffer=True, coerce_int96_timestamp_unit="us") as parquet,
        ):
            groups = _Groups(parquet, self._target, split.file, keys)
            first, found = 0, []
            for group in range(parquet.metadata.num_row_groups):
                rows = parquet.metadata.row_group(group).num_rows
                if split.start <= group_offset(parquet.metadata.row_group(group)) < split.end:
                    found.append(groups.matching(group, rows) + first)
                first += rows
        matching = np.concatenate(found) if found else NOTHING
        if not len(matching):
            return NOTHING
        return matching[~self._deleted.of(split.file, self._deletes)[matching]]


class _Groups:
    """Row groups of one open file against keys."""

    def __init__(self, parquet: pq.ParquetFile, target: ReadTarget, file: ScanFile, keys: _Keys) -> None:
        self._parquet, self._keys, self._file = parquet, keys, file
        self._projection = Projection(parquet.schema_arrow, target, dict(file.constants))
        self._columns = {number: target.keys[number].path[0] for ids, _ in keys for number in ids}
        plain = [number for number, column in self._columns.items() if number == column]
        self._plain = plain
        self._bounds = GroupBounds(parquet, [self._projection.source(number) for number in plain])

    def matching(self, group: int, rows: int) -> Positions:
        """Places in a row group of the rows with a key."""
        bounds = dict(zip(self._plain, self._bounds.of(group), strict=True))
        wanted = [
            (ids, keys)
            for ids, keys in self._keys
            if all(keys.reaches(at, found) for at, n in enumerate(ids) if (found := bounds.get(n)) is not None)
        ]
        if not wanted:
            return NOTHING
        names = self._projection.needed(dict.fromkeys(self._columns[n] for ids, _ in wanted for n in ids))
        table = (
            self._parquet.read_row_group(group, columns=names)
            if names
            else pa.table({"rows": pa.nulls(rows)})  # the file has none of the columns
        )
        columns = {n: self._projection.key(table, n) for ids, _ in wanted for n in ids}
        matching = np.zeros(rows, bool)
        for ids, keys in wanted:
            matching |= keys.deleted([columns[n] for n in ids], self._file.sequence_number)
        return np.flatnonzero(matching)
