"""A folder of files as a source that keeps its own position.

Files are taken in the order of (modification time, path). What was taken is known by path, so a file that shows up late
with an old time stamp is not missed, and none is read twice. Names that start with `_` or `.`, or end like a copy under
way, are left alone. A file is expected to be complete and never to change: one whose size changed after it was read is
an error. JSON and CSV are read strictly (`FAILFAST`) unless the options say otherwise.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from calve.clock import Clock
from calve.errors import InvalidInput, SourceLost, TerminalError, TransientError
from calve.model.checkpoint import Offsets
from calve.model.size import SizeHint
from calve.model.spec import Envelope, NoEnvelope
from calve.source.ledger import Ledger, Place
from calve.source.seen import Change, KnownFile
from calve.state import StateStore

FORMATS = ("json", "csv", "parquet", "orc", "text")
_NEEDS_SCHEMA = frozenset({"json", "csv"})
_UNFINISHED = (".tmp", ".part", ".partial", ".crdownload", "._COPYING_", ".inprogress")

_GLOB = re.compile(r"([\[\]{}*?\\])")
"""Characters that Spark takes for a pattern. Its switch against patterns reads such files twice."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Files:
    """Definition of a file source."""

    path: str
    format: str
    schema: str | None
    options: Mapping[str, str]
    max_files: int
    envelope: Envelope

    def open(self, store: StateStore, _clock: Clock) -> "FileSource":
        """Ready to read; the ledger is kept in `store`."""
        return FileSource(self, store)


def files(
    path: str | Path,
    *,
    format: str,  # noqa: A002 - Spark's word
    schema: str | None = None,
    envelope: Envelope | None = None,
    max_files_per_checkpoint: int = 1000,
    options: Mapping[str, str] | None = None,
) -> Files:
    """The files below a folder (a path or a URI), now and later. `schema` is Spark DDL; JSON and CSV need it."""
    if format not in FORMATS:
        raise InvalidInput(f'unknown file format "{format}"', hint=f"Formats are {', '.join(FORMATS)}.")
    if format in _NEEDS_SCHEMA and not schema:
        raise InvalidInput(f"files of format {format} need a schema", hint='Give schema="id BIGINT, ...".')
    if max_files_per_checkpoint < 1:
        raise InvalidInput("max_files_per_checkpoint must be at least 1", detail=f"Got {max_files_per_checkpoint}.")
    strict = {"mode": "FAILFAST"} if format in _NEEDS_SCHEMA else {}
    location = str(path) if urlsplit(str(path)).scheme else str(Path(path).absolute())
    return Files(
        location, format, schema, {**strict, **(options or {})}, max_files_per_checkpoint, envelope or NoEnvelope()
    )


class FileSource:
    """An open file source."""

    def __init__(self, definition: Files, store: StateStore) -> None:
        self._definition = definition
        self._store, self._root = _filesystem(definition.path)
        self._ledger = Ledger(store, definition.path)
        self._scheme = urlsplit(definition.path).scheme
        self._touched: set[KnownFile] = set()

    @property
    def name(self) -> str:
        return f"files {self._definition.path}"

    def schema(self, spark: SparkSession) -> StructType:
        if self._definition.schema:
            return cast("StructType", StructType.fromDDL(self._definition.schema))
        first = next(iter(sorted(self._listed())), None)
        if first is None:
            raise InvalidInput(
                "there is no file to take a schema from", detail=self._definition.path, hint="Give a schema."
            )
        return self._read(spark, [first.path]).schema

    def next_end(self, start: Offsets) -> Offsets:
        place = Place.of(start)
        fresh, changed = self._ledger.seen(place).compare(self._listed())
        for change in changed:
            self._report(change)
        if not fresh:
            return None
        return self._ledger.add(place, sorted(fresh)[: self._definition.max_files]).to_offsets()

    def frame(self, spark: SparkSession, start: Offsets, end: Offsets) -> DataFrame:
        listed = self._ledger.files(Place.of(start), Place.of(end))
        self._check_still_there(listed)
        return self._read(spark, [f.path for f in listed])

    def _check_still_there(self, listed: list[KnownFile]) -> None:
        try:
            infos = self._store.get_file_info([f.path for f in listed])
        except OSError as error:
            raise TransientError(
                f"could not look at the files of {self._definition.path}", detail=str(error)
            ) from error
        gone = [i.path for i in infos if i.type == fs.FileType.NotFound]
        if gone:
            raise SourceLost(
                "files were removed before they were read",
                detail=f"{len(gone)} of {len(listed)} are gone, among them {gone[0]}.",
                hint="Put them back; files may be removed once they are committed.",
            )
        for info, file in zip(infos, listed, strict=True):
            if info.size != file.size:
                raise SourceLost(
                    "a file changed before it was read",
                    detail=f"{file.path} had {file.size} bytes when it was found and has {info.size} now.",
                    hint="Write files under a name that starts with a dot, and rename them when they are complete.",
                )

    def size(self, start: Offsets, end: Offsets) -> SizeHint:
        total = sum(f.size for f in self._ledger.files(Place.of(start), Place.of(end)))
        compressed = self._definition.format in {"parquet", "orc"}
        return SizeHint(bytes=total * 4 if compressed else total)

    def ended(self, _end: Offsets) -> bool:
        return False

    def committed(self, offsets: Offsets) -> None:
        self._ledger.fold(Place.of(offsets))

    def _read(self, spark: SparkSession, paths: list[str]) -> DataFrame:
        reader = spark.read.format(self._definition.format).options(**self._definition.options)
        if self._definition.schema:
            reader = reader.schema(self._definition.schema)
        prefix = f"{self._scheme}://" if self._scheme else "file://"
        return reader.load([prefix + _GLOB.sub(r"\\\1", path) for path in paths])

    def _listed(self) -> list[KnownFile]:
        selector = fs.FileSelector(self._root, recursive=True, allow_not_found=True)
        try:
            infos = self._store.get_file_info(selector)
        except OSError as error:
            raise TransientError(f"could not list {self._definition.path}", detail=str(error)) from error
        return [KnownFile(i.mtime_ns or 0, i.path, i.size) for i in infos if i.is_file and self._is_input(i.path)]

    def _is_input(self, path: str) -> bool:
        below = path.removeprefix(self._root).strip("/").split("/")
        return not any(part.startswith(("_", ".")) for part in below) and not path.endswith(_UNFINISHED)

    def _report(self, change: Change) -> None:
        """Another size is another content: an error. Another time stamp alone is a copy or a touch: a warning, once."""
        now = change.now
        if change.size != now.size:
            raise TerminalError(
                "a file changed after it was read",
                detail=f"{now.path} had {change.size} bytes and has {now.size} now.",
                hint="Write changes into new files. Put the old contents back to go on.",
            )
        if now not in self._touched:
            self._touched.add(now)
            _log.warning("the time stamp of %s changed after it was read; it is not read again", now.path)


def _filesystem(location: str) -> tuple[fs.FileSystem, str]:
    if not urlsplit(location).scheme:
        return fs.LocalFileSystem(), location
    filesystem, path = fs.FileSystem.from_uri(location)
    return filesystem, path
