"""A folder of files as a source that keeps its own position.

Files are read in the order of (modification time, path). Files that were read are known by path, so a file that appears
late with an old timestamp is not missed, and none is read twice; see `storage.listing` for which files count, and
`ledger` for how they are remembered. A file must be complete and never change: a changed size is an error, a changed
timestamp alone a warning.

JSON lines and CSV rows are read strictly (see `records`). Options about parsing (any for JSON; `mode` and date formats
for CSV) select Spark's own reader instead, in its strictest mode (`FAILFAST`) unless they say otherwise.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from calve.calls import check_mapping, for_users
from calve.clock import Clock
from calve.errors import InvalidInput, SourceLost, TerminalError
from calve.model.change import Origin
from calve.model.checkpoint import Offsets, SizeHint, SizeLimit
from calve.model.health import SourcePart, SourcePosition
from calve.model.spec import Debezium, Envelope, EpochUnit, NoEnvelope, Upsert, check_envelope
from calve.records.columns import declared_schema
from calve.records.frames import SOURCE_PROBLEM, time_zone
from calve.source.files.in_memory import read_json_lines, read_parquet
from calve.source.files.ledger import ChangedSource, Ledger, Place
from calve.source.files.records import (
    LINES,
    check_fields,
    csv_records,
    csv_records_of,
    json_lines,
    json_records,
    line_code,
    read_lines,
    record_schema,
    typed_rows,
    with_origin,
)
from calve.source.port import LEAST_POLL
from calve.spark.failures import told_as
from calve.spark.version import frame_of_rows
from calve.storage.listing import FileListing, KnownFile, absolute, spark_options
from calve.storage.state import StateStore

FORMATS = ("json", "csv", "parquet", "orc", "text")
_NEEDS_SCHEMA = frozenset({"json", "csv"})
_SPARKS_OWN = frozenset({"mode", "dateformat", "timestampformat", "timestampntzformat"})

Needed = Callable[[list[KnownFile]], list[KnownFile]]
"""Selects the files of a checkpoint that have to be read."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Files:
    """Definition of a file source."""

    path: str
    format: str
    schema: str | None
    envelope: Envelope
    max_files: int
    options: Mapping[str, str] = field(default_factory=dict)
    epoch_unit: EpochUnit | None = None

    @property
    def strict(self) -> bool:
        """Whether calve converts the records, and not Spark."""
        if self.format == "csv":
            return not any(name.lower() in _SPARKS_OWN for name in self.options)
        return self.format == "json" and not self.options

    @property
    def typed(self) -> bool:
        """Whether files are typed, so that none of their rows can be bad."""
        return self.format == "parquet"

    @property
    def lines(self) -> bool:
        """Whether the envelope parses the lines of JSON files."""
        return self.format == "json" and self.schema is None

    def open(self, store: StateStore, _clock: Clock) -> "FileSource":
        """Open the source, which keeps its ledger in `store`."""
        return FileSource(self, store)


@for_users
def files(  # noqa: PLR0913 - all but the first are options by name
    path: str | Path,
    *,
    format: str,  # noqa: A002 - Spark's word
    schema: str | None = None,
    envelope: Envelope | None = None,
    max_files_per_checkpoint: int = 1000,
    options: Mapping[str, str] | None = None,
    epoch_unit: str | None = None,
) -> Files:
    """The files below a folder (or of a pattern with `*`; a path or a URI), now and later.

    >>> calve.files("/data/orders", format="json", schema="id BIGINT, status STRING").path
    '/data/orders'
    >>> calve.files("/data/orders", format="jsn")
    Traceback (most recent call last):
    calve.errors.InvalidInput: unknown file format "jsn"

    `schema` is Spark DDL; JSON and CSV need it, except JSON with an envelope that declares the columns: then the
    envelope parses the lines itself, and may name fields that are not columns.

    `options` are those of Spark's reader. `epoch_unit` is the unit of numbers in TIMESTAMP columns of JSON files: ms,
    us or ns; without it they are bad rows.
    """
    if format not in FORMATS:
        raise InvalidInput(f'unknown file format "{format}"', hint=f"Formats are {', '.join(FORMATS)}.")
    declared = schema or (format == "json" and isinstance(envelope, Upsert | Debezium) and envelope.columns)
    if format in _NEEDS_SCHEMA and not declared:
        raise InvalidInput(f"files of format {format} need a schema", hint='Give schema="id BIGINT, ...".')
    most: object = max_files_per_checkpoint
    if not isinstance(most, int) or most < 1:
        raise InvalidInput("max_files_per_checkpoint must be at least 1", detail=f"Got {max_files_per_checkpoint!r}.")
    place: object = path
    if not isinstance(place, str | Path) or not str(place):
        raise InvalidInput("path must be a folder, a pattern or a URI", detail=f"Got {path!r}.")
    if epoch_unit is not None and epoch_unit not in set(EpochUnit):
        raise InvalidInput(f'unknown epoch_unit "{epoch_unit}"', hint=f"Units are {', '.join(EpochUnit)}.")
    check_envelope(envelope)
    check_mapping("options", options)
    unit = None if epoch_unit is None else EpochUnit(epoch_unit)
    chosen = envelope or NoEnvelope()
    return Files(absolute(path), format, schema, chosen, max_files_per_checkpoint, dict(options or {}), unit)


def _all_of_them(files: list[KnownFile]) -> list[KnownFile]:
    return files


class FileSource:
    """An open file source."""

    counts = "files"
    least_poll = LEAST_POLL

    def __init__(self, definition: Files, store: StateStore) -> None:
        self._definition = definition
        self._listing = FileListing.of(definition.path)
        self._ledger = Ledger(store, self._listing.location)
        self._schema: T.StructType | None = None
        self._touched: set[KnownFile] = set()
        self._unread = 0
        self._end: int | None = None
        self._files_at: dict[Place, int] = {}
        """Number of files up to the last places."""
        self._needed: Needed = _all_of_them
        self._left_out: set[str] = set()
        self._most_bytes: Callable[[], int] | None = None

    def narrow(self, needed: Needed) -> None:
        """Read only the files of a checkpoint that `needed` selects: no row of the others would become a change."""
        self._needed = needed

    def limit(self, most_bytes: Callable[[], int]) -> None:
        """Let a checkpoint have at most about so many bytes in memory, if there is more to read: asked for each one."""
        self._most_bytes = most_bytes

    @property
    def typed(self) -> bool:
        """Whether its files are typed, so that the driver may read large ones."""
        return self._definition.typed

    @property
    def name(self) -> str:
        return f"files {self._definition.path}"

    def schema(self, spark: SparkSession) -> T.StructType:
        definition = self._definition
        if definition.lines:
            return LINES
        if not definition.strict or definition.schema is None:
            return with_origin(self._spark_schema(spark).fields)
        declared = declared_schema(definition.schema)
        check_fields(declared.fields, nested=definition.format == "json")
        return record_schema(declared.fields)

    def _spark_schema(self, spark: SparkSession) -> T.StructType:
        """The columns that Spark's reader reads. It ignores NOT NULL."""
        if self._definition.schema is None:
            return self._found_schema(spark)
        if self._schema is None:
            declared = declared_schema(self._definition.schema).fields
            self._schema = T.StructType([T.StructField(f.name, f.dataType, metadata=f.metadata) for f in declared])
        return self._schema

    def _found_schema(self, spark: SparkSession) -> T.StructType:
        """The schema of the first file; used for all files of this run."""
        if self._schema is None:
            first = min(self._listing.files(), default=None)
            if first is None:
                raise InvalidInput(
                    "there is no file to infer a schema from", detail=self._definition.path, hint="Give a schema."
                )
            path = self._listing.for_spark(first.path)
            options = {**self._definition.options, **spark_options([path])}
            reader = spark.read.format(self._definition.format).options(**options)
            with told_as("the columns of the files could not be read"):
                self._schema = reader.load(path).schema
        return self._schema

    def next_end(self, start: Offsets, *, whole: bool = False) -> Offsets:
        place = Place.of(start)
        seen = self._ledger.seen(place)
        fresh, changed = seen.compare(self._listing.files())
        for change in changed:
            self._report(change)
        taken = sorted(fresh) if whole else self._within_limits(sorted(fresh))
        self._unread = len(fresh) - len(taken)
        self._end = len(seen) + len(fresh)
        self._files_at = {place: len(seen)}
        if not taken:
            return None
        following = self._ledger.add(place, taken)
        self._files_at[following] = len(seen) + len(taken)
        return following.to_offsets()

    def _within_limits(self, files: list[KnownFile]) -> list[KnownFile]:
        """The first files of a checkpoint; at least one."""
        files = files[: self._definition.max_files]
        if self._most_bytes is None or len(files) < 2:
            return files
        most, sizes = self._most_bytes(), accumulate(self._in_memory(file.size) for file in files)
        return files[: max(1, sum(size <= most for size in sizes))]

    def begin(self) -> Offsets:
        return None

    @property
    def took_all(self) -> bool:
        return not self._unread

    @property
    def unread(self) -> int:
        return self._unread

    def position(self, at: Offsets) -> SourcePosition:
        """Counts files: those that were read, and all. None of them expires."""
        return SourcePosition((SourcePart("files", self._files_at.get(Place.of(at)), self._end),))

    def frame(self, spark: SparkSession, start: Offsets, end: Offsets) -> DataFrame:
        return self.frame_without(spark, start, end, ())

    def frame_without(self, spark: SparkSession, start: Offsets, end: Offsets, left_out: Collection[str]) -> DataFrame:
        """The same records without those of some files, given by path."""
        listed = self._ledger.files(Place.of(start), Place.of(end))
        self._check_still_there(listed)
        needed = [file for file in self._needed(listed) if file.path not in left_out]
        if not needed:
            return spark.createDataFrame([], self.schema(spark))
        with told_as("the files could not be read"):
            return self._read(spark, [self._listing.for_spark(f.path) for f in needed])

    def arrow_records(
        self, spark: SparkSession, start: Offsets, end: Offsets, columns: T.StructType, limit: SizeLimit
    ) -> pa.Table | None:
        definition, store = self._definition, self._listing.store
        needed = self._needed(self._ledger.files(Place.of(start), Place.of(end)))
        if not needed:
            return None
        if definition.format == "parquet" and not definition.options:
            return read_parquet(store, needed, columns, limit)
        if not (definition.lines or (definition.strict and definition.format == "json")):
            return None
        lines = read_json_lines(store, needed, limit)
        if lines is None:
            return None
        if definition.schema is None:
            return lines.select(columns.names)
        code = line_code(declared_schema(definition.schema).fields, definition.epoch_unit, time_zone(spark))
        records = code.in_memory(lines)
        return records.select(columns.names) if records[SOURCE_PROBLEM].null_count == records.num_rows else None

    def path_of(self, start: Offsets, end: Offsets, spark_path: str) -> str | None:
        """The file between these offsets that Spark reports under this path; None if that is not certain."""
        names = self._listing.named_by_spark(spark_path)
        found = [f.path for f in self._ledger.files(Place.of(start), Place.of(end)) if f.path in names]
        return found[0] if len(found) == 1 else None

    def check_unchanged(self, start: Offsets, end: Offsets) -> None:
        """Raise SourceLost for a file whose size changed since it was listed.

        Spark reads a file up to the size that it had when the frame was made: of a file that grew it silently reads a
        part, or nothing. So sizes are checked again after files were read, and before that is recorded. A file that was
        removed by then was read as it was.
        """
        listed = self._ledger.files(Place.of(start), Place.of(end))
        _check_sizes(listed, self._listing.sizes([f.path for f in listed]))

    def contents(self, spark: SparkSession, end: Offsets) -> DataFrame:
        seen = self._ledger.seen(Place.of(end))
        listed = self._listing.files()
        fresh = {file.path for file in seen.compare(listed)[0]}
        known = sorted(file for file in listed if file.path not in fresh)
        if len(known) < len(seen):
            raise SourceLost(
                "files that were read no longer exist",
                detail=f"{len(seen)} were read, {len(known)} are left in {self._definition.path}.",
                hint="Without them the table cannot be compared with its source.",
            )
        read = [file for file in known if file.path not in self._left_out]
        if not read:
            return spark.createDataFrame([], self.schema(spark))
        with told_as("the files could not be read"):
            return self._read(spark, [self._listing.for_spark(file.path) for file in read])

    def leave_out(self, spark_path: str) -> bool:
        """Exclude a file, by Spark's path, from `contents`; False if it is unknown or already excluded."""
        names = self._listing.named_by_spark(spark_path)
        found = {file.path for file in self._listing.files() if file.path in names} - self._left_out
        self._left_out |= found
        return bool(found)

    def _check_still_there(self, listed: list[KnownFile]) -> None:
        sizes = self._listing.sizes([f.path for f in listed])
        gone = [f.path for f, size in zip(listed, sizes, strict=True) if size is None]
        if gone:
            raise SourceLost(
                "files were removed before they were read",
                detail=f"{len(gone)} of {len(listed)} are gone, among them {gone[0]}.",
                hint="Restore them, or start the sink again to continue with the files that are left. "
                "Files may be removed once they are committed.",
            )
        _check_sizes(listed, sizes)

    def _read(self, spark: SparkSession, paths: list[str]) -> DataFrame:
        definition = self._definition
        if definition.lines:
            return json_lines(spark, paths)
        if definition.strict and definition.schema is not None:
            fields = declared_schema(definition.schema).fields
            if definition.format == "csv":
                return csv_records(spark, paths, fields, definition.options)
            return json_records(spark, paths, fields, definition.epoch_unit)
        strictest = {"mode": "FAILFAST"} if definition.format in _NEEDS_SCHEMA else {}
        options = strictest | dict(definition.options) | spark_options(paths)
        reader = spark.read.format(definition.format).options(**options).schema(self._spark_schema(spark))
        return typed_rows(reader.load(paths))

    def check_letters(self) -> None:
        definition = self._definition
        if not (definition.lines or definition.strict):
            raise InvalidInput(
                "dead letters of this source do not contain the records as they were read",
                detail=f"They contain rows as JSON, which loses some values. Its format is {definition.format}"
                f"{', with options of its reader' if definition.format in _NEEDS_SCHEMA else ''}.",
                hint="Write the corrected rows to a new file.",
            )

    def why_not(self, origin: Origin) -> str:
        if origin.topic is not None:
            return "it is a record of a topic, and the source reads files"
        if origin.file is None:
            return "it is a row of a view, not a record"
        return "it is a file that could not be read, without its records" if origin.value is None else ""

    def records_of(self, spark: SparkSession, origins: Sequence[Origin]) -> DataFrame:
        definition = self._definition
        lines = frame_of_rows(spark, [(origin.value, origin.file) for origin in origins], LINES)
        if definition.lines or definition.schema is None:
            return lines
        fields = declared_schema(definition.schema).fields
        if definition.format == "csv":
            return csv_records_of(lines, fields, definition.options)
        return read_lines(lines, fields, definition.epoch_unit)

    def size(self, start: Offsets, end: Offsets) -> SizeHint:
        return SizeHint(bytes=self._in_memory(sum(f.size for f in self._ledger.files(Place.of(start), Place.of(end)))))

    def _in_memory(self, size: int) -> int:
        """An estimate for so many bytes of files."""
        return 4 * size if self._definition.format in {"parquet", "orc"} else size

    def ended(self, _end: Offsets) -> bool:
        return False

    def committed(self, offsets: Offsets) -> None:
        self._ledger.fold(Place.of(offsets))

    def _report(self, change: ChangedSource) -> None:
        """Raise for a changed size, which means changed contents; warn, once, of a changed timestamp alone."""
        now = change.now
        if change.size != now.size:
            raise TerminalError(
                "a file changed after it was read",
                detail=f"{now.path} had {change.size} bytes and now has {now.size}.",
                hint="Write changes to new files. Restore the old contents to continue.",
            )
        if now not in self._touched:
            self._touched.add(now)
            _log.warning("the timestamp of %s changed after it was read; it is not read again", now.path)


def _check_sizes(listed: list[KnownFile], sizes: list[int | None]) -> None:
    for file, size in zip(listed, sizes, strict=True):
        if size is not None and size != file.size:
            raise SourceLost(
                "a file changed while it was read",
                detail=f"{file.path} had {file.size} bytes when it was listed and now has {size}.",
                hint="Write files under a name that starts with a dot, and rename them when they are complete. "
                "Start the sink again to read it as it is now.",
            )
