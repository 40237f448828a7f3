"""Folders of Parquet, CSV or JSON files, and how to read them.

The format follows from the file extensions unless a source declares it. CSV files without a source have a header, and
Spark infers the types of their columns, as for JSON. Folders named `column=value` at all levels are partitions: their
values are columns.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from calve.analyze.column_types import merged_schema, schema_of
from calve.analyze.file_statistics import Footers, look_at_records, read_footers
from calve.analyze.subject import FileLook, ListedFile, WantedFacts
from calve.errors import InvalidInput, TransientError
from calve.metastore.statistics import ColumnStatistics, StatisticsType
from calve.metastore.tables import TableId
from calve.spark.failures import failure_of
from calve.spark.version import quiet_analysis
from calve.sql.statements import MetadataLevel
from calve.storage.listing import FileListing, KnownFile, absolute, spark_options

PLUGIN: Final = "files"
WORKSPACE: Final = "default"

_ENDINGS: Final = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json.gz": "json",
    ".jsonl.gz": "json",
}
_FOUND_OUT: Final[Mapping[str, Mapping[str, str]]] = {
    "csv": {"header": "true", "inferSchema": "true"},
    "json": {},
    "parquet": {},
}
_PARTITION: Final = re.compile(r"([^=]+)=(.*)")
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_WHOLE: Final = re.compile(r"0|-?[1-9]\d{0,17}")


@dataclass(frozen=True)
class FolderFormat:
    """How to read the files of a folder. Without a schema, the files have one or Spark infers it."""

    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str | None = None
    """Spark's, as JSON."""

    @classmethod
    def of_reader(cls, reader: Mapping[str, str]) -> "FolderFormat":
        """The format that a folder was analyzed with; inverse of `FolderSubject.reader`."""
        return cls(reader["format"], json.loads(reader["options"]), reader["schema"] or None)

    def frame(self, spark: SparkSession, paths: list[str], schema: T.StructType | None, base: str | None) -> DataFrame:
        """The records of files; with a base, including columns for the folders below it. Raises Spark's exceptions."""
        reader = spark.read.format(self.format).options(**self.options, **spark_options(paths))
        reader = reader.option("basePath", base) if base else reader.option("recursiveFileLookup", "true")
        reader = reader if self.format == "parquet" else reader.option("mode", "FAILFAST")
        if schema is not None:
            reader = reader.schema(schema)
        return reader.load(paths)


@dataclass(frozen=True)
class FolderSubject:
    """An existing folder with its current files."""

    location: str
    reading: FolderFormat
    opened: FileListing
    files: tuple[KnownFile, ...]
    spark: Callable[[], SparkSession]

    @classmethod
    def of(
        cls, location: str, spark: Callable[[], SparkSession], reading: FolderFormat | None = None
    ) -> "FolderSubject":
        """List a folder. Raises InvalidInput if it has no files, or files of different formats."""
        if urlsplit(location).password:
            raise InvalidInput(
                "a location with a password cannot be stored",
                hint="Pass the credentials of the store in the environment.",
            )
        opened = FileListing.of(absolute(location))
        files = tuple(sorted(opened.files(), key=lambda file: file.path))
        if reading is None:
            found = _format_of(location, files)
            reading = FolderFormat(found, _FOUND_OUT[found])
        if reading.format not in _FOUND_OUT:
            raise InvalidInput(f"files of format {reading.format} cannot be analyzed", detail=location)
        return cls(absolute(location), reading, opened, files, spark)

    @property
    def table(self) -> TableId:
        return TableId(PLUGIN, WORKSPACE, self.location)

    @property
    def kind(self) -> str:
        return self.reading.format.upper()

    @property
    def reader(self) -> Mapping[str, str]:
        return {
            "format": self.reading.format,
            "options": json.dumps(dict(sorted(self.reading.options.items()))),
            "schema": self.reading.schema or "",
            "partitions": json.dumps(self.partition_columns),
        }

    @property
    def deepest(self) -> MetadataLevel:
        return MetadataLevel.ROW_GROUP if self.reading.format == "parquet" else MetadataLevel.FILE

    @cached_property
    def partition_columns(self) -> tuple[str, ...]:
        """The partition columns, if they are the same in every path."""
        found = {
            tuple(match[1] if match else "" for match in map(_PARTITION.fullmatch, self._folders(file)))
            for file in self.files
        }
        names = next(iter(found), ())
        return tuple(map(unquote, names)) if len(found) == 1 and all(names) and len(set(names)) == len(names) else ()

    def listing(self) -> list[ListedFile]:
        return [
            ListedFile(self._name(file), file.path, self._folders(file), file.size, file.mtime_ns)
            for file in self.files
        ]

    def look(self, files: Sequence[ListedFile], wanted: WantedFacts) -> list[FileLook]:
        if not files:
            return []
        if self.reading.format == "parquet":
            looks = read_footers(self.spark, Footers(partial(_opened, self.opened), wanted), files)
        else:
            paths = [self.opened.for_spark(file.path) for file in files]
            looks = look_at_records(self._typed(paths), files, wanted)
        return [self._with_constants(look, file, wanted) for file, look in zip(files, looks, strict=True)]

    def schemas(self, files: Sequence[ListedFile]) -> list[str]:
        """Only the schemas of these files. Raises InvalidInput, TransientError."""
        if not files:
            return []
        if self.reading.format == "parquet":
            wanted = WantedFacts((), row_groups=False)
            looks = read_footers(self.spark, Footers(partial(_opened, self.opened), wanted), files)
        else:
            frame = self._typed([self.opened.for_spark(file.path) for file in files])
            looks = [FileLook(str(frame.schema.json()), 0, {}) for _ in files]
        found = [self._with_constants(look, file, WantedFacts(())) for file, look in zip(files, looks, strict=True)]
        return [look.schema for look in found]

    def schema(self, schemas: Iterable[str]) -> str:
        return merged_schema(schemas, text_fits_all=self.reading.format != "parquet")

    def read(self, files: Sequence[ListedFile], schema: str) -> DataFrame:
        """The records of some of the files. Raises InvalidInput."""
        if not files:
            return self.spark().createDataFrame([], schema_of(schema))
        base = self.opened.for_spark(self.opened.base) if self.partition_columns else None
        return self._frame([self.opened.for_spark(file.path) for file in files], schema_of(schema), base)

    def _typed(self, paths: list[str]) -> DataFrame:
        """The records with the declared columns, or with inferred ones."""
        return self._frame(paths, None if self.reading.schema is None else schema_of(self.reading.schema), None)

    def _frame(self, paths: list[str], schema: T.StructType | None, base: str | None) -> DataFrame:
        try:
            with quiet_analysis():
                return self.reading.frame(self.spark(), paths, schema, base)
        except (PySparkException, Py4JError) as error:
            found = failure_of(error, f"{self.location} could not be read")
            if isinstance(found, TransientError):
                raise found from error
            raise InvalidInput(
                f"{self.location} cannot be read",
                detail=found.detail or found.primary,
                hint="Read the files through a source with declared columns: calve init proposes one.",
            ) from error

    def _name(self, file: KnownFile) -> str:
        below = file.path.removeprefix(self.opened.base).strip("/")
        return below or PurePosixPath(file.path).name  # the location is a file

    def _folders(self, file: KnownFile) -> tuple[str, ...]:
        return tuple(self._name(file).split("/")[:-1])

    def _with_constants(self, look: FileLook, file: ListedFile, wanted: WantedFacts) -> FileLook:
        """Add the values of a file's partition folders, which are columns of every record."""
        if not self.partition_columns:
            return look
        schema = schema_of(look.schema)
        values = [unquote(folder.partition("=")[2]) for folder in file.folders]
        columns: dict[str, Any] = {}
        for name, value in zip(self.partition_columns, values, strict=True):
            whole = _WHOLE.fullmatch(value) is not None
            schema = T.StructType([f for f in schema.fields if f.name != name])
            schema = schema.add(name, T.LongType() if whole else T.StringType())
            if wanted.has(name):
                columns[name] = (None if value == _NO_VALUE else int(value) if whole else value), whole
        groups = tuple(replace(group, columns=_plus(group.columns, columns, group.rows)) for group in look.groups)
        return replace(look, schema=str(schema.json()), columns=_plus(look.columns, columns, look.rows), groups=groups)


def _plus(columns: Mapping[str, ColumnStatistics], constants: Mapping[str, Any], rows: int) -> Any:
    found = dict(columns)
    for name, (value, whole) in constants.items():
        kind = StatisticsType.WHOLE if whole else StatisticsType.TEXT
        nulls = rows if value is None else 0
        found[name] = ColumnStatistics(kind, nulls, rows - nulls, *((value, value) if rows else (None, None)))
    return found


def _opened(listing: FileListing, path: str) -> Any:
    return listing.store.open_input_file(path)


def ending_of(file: KnownFile) -> str | None:
    """The format of a file by its extension; None if the extension is unknown."""
    name = PurePosixPath(file.path).name.lower()
    return next((form for ending, form in _ENDINGS.items() if name.endswith(ending)), None)


def _format_of(location: str, files: Sequence[KnownFile]) -> str:
    """The format by the extensions of all files."""
    found: dict[str, str] = {}
    for file in files:
        form = ending_of(file)
        if form is None:
            raise InvalidInput(
                "a file has an unknown extension",
                detail=f"The file is {file.path}.",
                hint=f"Known extensions are {', '.join(_ENDINGS)}. Or declare a source, and analyze it.",
            )
        found.setdefault(form, file.path)
    if not found:
        raise InvalidInput(f'there are no files in "{location}"')
    if len(found) > 1:
        one, other = list(found.values())[:2]
        raise InvalidInput("a folder holds files of different formats", detail=f"{one} and {other}.")
    return next(iter(found))
