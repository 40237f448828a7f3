"""Reads a folder of files as rows; with a condition, skips files by the metadata of the metastore.

A failure of the metastore never changes the rows: all files are read then, and the explanation says why.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from calve.analyze.column_types import schema_of
from calve.analyze.file_pruning import ChosenFiles, Knowledge, general_of, known_of
from calve.analyze.folder_subject import FolderFormat, FolderSubject, ending_of
from calve.analyze.unit_rows import kept_in
from calve.definitions.workplace import Workplace
from calve.errors import CalveError
from calve.metastore.component import Component
from calve.metastore.tables import TableUnit, open_tables
from calve.model.scan import EVERYTHING, Condition
from calve.reader.conditions import understand, unread_frame
from calve.reader.read import FrameRead, not_understood
from calve.spark.version import quiet_analysis
from calve.statements.analyze import folder_id
from calve.storage.listing import FileListing, absolute, require_there

_T = TypeVar("_T")

_log = logging.getLogger("calve")


@dataclass(frozen=True)
class FolderRead(FrameRead):
    """Rows of a folder, and the plan to read them."""

    folder: FolderSubject
    chosen: ChosenFiles
    problem: str = ""
    """Why the metastore could not be read."""


def read_folder(place: Workplace, location: str, where: str | None = None) -> FolderRead:
    """Read the records of all files in a folder that match a Spark SQL condition. Raises InvalidInput."""
    require_there(absolute(location))
    lookup = _MetastoreLookup()
    with ExitStack() as stack:
        tables = lookup.attempt(lambda: open_tables(stack.enter_context(place.metastore())))
        reading = lookup.attempt(lambda: _reading(tables, location))
        folder = FolderSubject.of(location, place.spark, reading)
        known = lookup.attempt(lambda: None if tables is None else known_of(tables, folder))
        schema = _schema(folder, known)
        condition = _condition(place.spark(), schema, where)
        chosen = lookup.attempt(lambda: None if known is None else known.choose(condition, schema))
    listed = folder.listing()
    chosen = chosen or ChosenFiles(tuple(listed), len(listed))
    return FolderRead(_filtered(folder.read(chosen.files, schema), where), folder, chosen, lookup.problem)


class _MetastoreLookup:
    """Reads from the metastore. A failure counts as unknown, and the first one is recorded."""

    def __init__(self) -> None:
        self.problem = ""

    def attempt(self, question: Callable[[], _T | None]) -> _T | None:
        try:
            return question()
        except (CalveError, OSError, pa.ArrowException) as error:
            self.problem = self.problem or str(error).splitlines()[0]
            _log.warning("the metastore could not be read: %s", error)
            return None


def _reading(tables: Component[TableUnit] | None, location: str) -> FolderFormat | None:
    """The format of the last analysis, which a source may have set, unless the files have another format now."""
    general = None if tables is None else general_of(tables, folder_id(location))
    reader = kept_in(general).get("reader")
    if reader is None:
        return None
    found = FolderFormat.of_reader(reader)
    now = {ending_of(file) for file in FileListing.of(absolute(location)).files()}
    return found if now <= {None, found.format} else None


def _schema(folder: FolderSubject, known: Knowledge | None) -> str:
    """The columns of the last analysis, merged with those of newer files."""
    if known is None or known.general is None or not known.general.schema:
        return folder.schema(folder.schemas(folder.listing()))
    fresh = [file for file in known.listing if file.name in known.outdated]
    return folder.schema([known.general.schema, *folder.schemas(fresh)])


def _condition(spark: SparkSession, schema: str, where: str | None) -> Condition:
    """The part of a condition that statistics can decide."""
    if where is None:
        return EVERYTHING
    try:
        with quiet_analysis():
            return understand(unread_frame(spark, schema_of(schema)), where).condition
    except PySparkException as error:
        raise not_understood(error) from error


def _filtered(frame: DataFrame, where: str | None) -> DataFrame:
    return frame if where is None else frame.where(where)
