"""Samples of folders: lines of JSON files, rows of CSV files, schemas of Parquet and ORC files."""

import codecs
import csv
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import types as T  # noqa: N812

from calve.analyze.column_types import common_type, spark_type
from calve.errors import InvalidInput, TransientError
from calve.infer.sample import MOST_FILES, MOST_RECORDS, Sample, Sampled, counted, sampled
from calve.infer.value_types import InferenceNotes, declared
from calve.records.documents import Malformed
from calve.storage.listing import FileListing, KnownFile

_PIECE = 1 << 20
_MOST_OF_A_FILE = 16 * _PIECE
"""Bytes of a file that are read for a sample."""
_ROWS = 2000
_THREADS = 8
_ENDINGS = {
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "csv": "csv",
    "tsv": "csv",
    "parquet": "parquet",
    "orc": "orc",
}
_COMPRESSED = frozenset({"gz", "bz2", "zst", "zstd", "lz4", "snappy"})
_NAMES = {"csv": "CSV", "parquet": "Parquet", "orc": "ORC"}
_DELIMITERS = ",;\t|"


@dataclass(frozen=True)
class FolderReader:
    """How the files of a folder are read: the options of `FROM FILES`."""

    path: str
    format: str
    options: Mapping[str, str]
    """Spark's names: header, sep, nullValue."""

    def sample(self, notes: InferenceNotes) -> Sample:
        """Read a sample. Raises InvalidInput if there is nothing to infer from, and TransientError."""
        listing = FileListing.of(self.path)
        files = sorted(file for file in listing.files() if file.size)
        if not files:
            raise InvalidInput(
                "there are no records to infer columns from",
                detail=f"{self.path} contains no files, or only empty ones.",
                hint="Declare the columns, or wait until there are files.",
            )
        try:
            match self.format:
                case "json":
                    return _json_sample(listing, files)
                case "csv":
                    return _csv_sample(listing, files, self.options)
                case _:
                    return _typed_sample(listing, files, self.format, notes)
        except (OSError, pa.ArrowException) as error:
            raise TransientError(
                f"reading a sample of {self.path} failed",
                detail=f"{str(error).rstrip('.')}.",
                hint=f"Check that the files have the format {self.format}.",
            ) from error


def detect_format(path: str) -> tuple[str, dict[str, str]]:
    """The format of the files in a folder by their names, and for CSV its options. Raises InvalidInput."""
    listing = FileListing.of(path)
    files = sorted(file for file in listing.files() if file.size)
    found = Counter(_format_of(file.path) for file in files)
    known = [form for form in found if form is not None]
    if len(found) != 1 or not known:
        seen = ", ".join(
            f"{counted(count, 'file')} {f'of format {form}' if form else 'of an unknown format'}"
            for form, count in found.most_common()
        )
        raise InvalidInput(
            f"the format of the files in {path} is not clear",
            detail=f"There are {seen}." if files else "There are no files, or only empty ones.",
            hint="Names end in .json, .jsonl, .ndjson, .csv, .tsv, .parquet or .orc. A pattern selects files: "
            f"'{path.rstrip('/')}/*.json'.",
        )
    return known[0], _csv_options(listing, files[0]) if known[0] == "csv" else {}


def _format_of(path: str) -> str | None:
    parts = path.rpartition("/")[2].lower().split(".")[1:]
    while parts and parts[-1] in _COMPRESSED:
        parts.pop()
    return _ENDINGS.get(parts[-1]) if parts else None


def _spread(files: Sequence[KnownFile]) -> list[KnownFile]:
    """At most `MOST_FILES`, evenly spread, with the oldest and the newest."""
    if len(files) <= MOST_FILES:
        return list(files)
    step = (len(files) - 1) / (MOST_FILES - 1)
    return [files[round(step * number)] for number in range(MOST_FILES)]


def _looked(files: Sequence[KnownFile], chosen: Sequence[KnownFile], records: int) -> str:
    of_all = f" of {len(files):,}" if len(chosen) < len(files) else ""
    return f"{counted(len(chosen), 'file')}{of_all}, {counted(records, 'record')}"


def _lines(listing: FileListing, file: KnownFile) -> Iterator[bytes]:
    """The first lines of a file; a line that is not complete at the end of what is read is left out."""
    rest, taken = b"", 0
    with listing.store.open_input_stream(file.path, compression="detect") as stream:
        while taken < _MOST_OF_A_FILE:
            piece = stream.read(_PIECE)
            if not piece:
                yield from rest.splitlines()
                return
            text = piece if taken else piece.removeprefix(codecs.BOM_UTF8)
            taken += len(piece)
            *lines, rest = (rest + text).split(b"\n")
            yield from (line.removesuffix(b"\r") for line in lines)


@contextmanager
def _valid(file: KnownFile, form: str) -> Iterator[None]:
    """Raises InvalidInput if a file does not have its format."""
    try:
        yield
    except (csv.Error, pa.ArrowInvalid) as error:
        raise InvalidInput(
            f"a file is not a valid {_NAMES[form]} file",
            detail=f"{file.path}: {str(error).rstrip('.')}.",
            hint="Files of format csv are text in UTF-8, with lines that end in \\n or \\r\\n."
            if form == "csv"
            else "Remove it, or select other files with a pattern.",
        ) from error


# ---- JSON


def _json_sample(listing: FileListing, files: Sequence[KnownFile]) -> Sample:
    chosen = _spread(files)
    records: list[Sampled] = []
    problems: list[str] = []
    for file in chosen:
        lines = (line for line in _lines(listing, file) if line.strip())
        for line in itertools.islice(lines, max(1, MOST_RECORDS // len(chosen))):
            try:
                records.append(sampled(line))
            except Malformed as error:
                problems.append(f"{file.path}: {error.text}")
    if not records:
        raise InvalidInput(
            "there are no records to infer columns from",
            detail=problems[0] if problems else f"{listing.location} has no lines.",
            hint="Files of format json have one JSON object per line.",
        )
    return Sample(_looked(files, chosen, len(records) + len(problems)), tuple(records), problems=tuple(problems))


# ---- CSV


def _csv_sample(listing: FileListing, files: Sequence[KnownFile], options: Mapping[str, str]) -> Sample:
    chosen = _spread(files)
    names: list[str] = []
    first = ""
    columns: list[list[str | None]] = []
    problems: list[str] = []
    count = 0
    for file in chosen:
        rows = _csv_rows(listing, file, options)
        if options.get("header") == "true":
            header = [cell or "" for cell in next(rows, [])]
            if names and header != names:
                raise InvalidInput(
                    "the files have different headers",
                    detail=f"{first} has {', '.join(names)}; {file.path} has {', '.join(header)}.",
                    hint="Select files of one kind with a pattern, or declare the columns.",
                )
            names, first = header, first or file.path
        for row in itertools.islice(rows, max(1, MOST_RECORDS // len(chosen))):
            names = names or [f"c{number}" for number in range(1, len(row) + 1)]
            columns = columns or [[] for _ in names]
            count += 1
            if len(row) != len(names):
                problems.append(f"{file.path}: a row has {counted(len(row), 'value')} for {len(names)} columns")
                continue
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    if not names or len(set(names)) < len(names) or "" in names:
        raise InvalidInput(
            "the names of the columns are missing or not unique",
            detail=f"The first line is {', '.join(names)}." if names else "There are no lines.",
            hint="Declare the columns.",
        )
    texts = dict(zip(names, columns or [[] for _ in names], strict=True))
    return Sample(_looked(files, chosen, count), texts=texts, problems=tuple(problems))


def _csv_rows(listing: FileListing, file: KnownFile, options: Mapping[str, str]) -> Iterator[list[str | None]]:
    null = options.get("nullValue", "")
    for line in _lines(listing, file):
        text = line.decode("utf-8", "replace")
        if not text.strip():
            continue
        # An empty string in quotes is not null. The parser cannot tell them apart, so both count as strings then.
        kept = '""' in text
        with _valid(file, "csv"):
            rows = list(csv.reader([text], delimiter=options.get("sep", ","), escapechar="\\"))
        for row in rows:
            yield [None if cell == null or (not cell and not kept) else cell for cell in row]


def _csv_options(listing: FileListing, file: KnownFile) -> dict[str, str]:
    """Guess the delimiter, and whether the first line has names."""
    first = next((line.decode("utf-8", "replace") for line in _lines(listing, file) if line.strip()), "")
    delimiter = max(_DELIMITERS, key=first.count)
    with _valid(file, "csv"):
        cells = next(iter(csv.reader([first], delimiter=delimiter)), [])
    header = bool(cells) and len(set(cells)) == len(cells) and all(_is_name(cell) for cell in cells)
    return {"header": str(header).lower()} | ({} if delimiter == "," else {"sep": delimiter})


def _is_name(cell: str) -> bool:
    return bool(cell.strip()) and not cell.strip()[0].isdigit() and cell.strip()[0] not in "+-."


# ---- files with types


def _typed_sample(listing: FileListing, files: Sequence[KnownFile], form: str, notes: InferenceNotes) -> Sample:
    read = _parquet_columns if form == "parquet" else _orc_columns

    def columns_of(file: KnownFile) -> TypedColumns:
        with _valid(file, form):
            return read(listing, file)

    with ThreadPoolExecutor(_THREADS) as pool:
        schemas = list(pool.map(columns_of, files))
    columns: dict[str, tuple[T.DataType, str]] = {}
    for file, schema in zip(files, schemas, strict=True):
        for name, (kind, found) in schema.items():
            if kind is None:
                notes.add(name, f"left out: Spark does not read {found}")
                continue
            known, first = columns.get(name, (kind, file.path))
            common = common_type(known, kind)
            if common is None:
                raise InvalidInput(
                    f'column "{name}" has different types in different files',
                    detail=f"{declared(known)} in {first}, {declared(kind)} in {file.path}.",
                    hint="Select files of one kind with a pattern, or move the others away.",
                )
            columns[name] = (common, first)
    rows = _typed_rows(listing, files[-1], form, list(columns)) if columns else []
    looked = f"the schemas of {counted(len(files), 'file')}, {counted(len(rows), 'row')}"
    return Sample(looked, typed={name: kind for name, (kind, _) in columns.items()}, rows=tuple(rows))


TypedColumns = dict[str, tuple[T.DataType | None, str]]


def _parquet_columns(listing: FileListing, file: KnownFile) -> TypedColumns:
    with listing.store.open_input_file(file.path) as opened:
        found = pq.ParquetFile(opened)
        old_times = {
            column.path
            for column in map(found.schema.column, range(len(found.schema)))
            if column.physical_type == "INT96"
        }
        return {field.name: (_parquet_type(field, old_times), str(field.type)) for field in found.schema_arrow}


def _parquet_type(field: pa.Field, old_times: set[str]) -> T.DataType | None:
    if field.name in old_times:
        return T.TimestampType()  # the type before there were others: always a moment
    if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
        return None
    found = spark_type(field.type)
    return T.StringType() if isinstance(found, T.NullType) else found


def _orc_columns(listing: FileListing, file: KnownFile) -> TypedColumns:
    from pyarrow import orc  # noqa: PLC0415 - rarely used, and not in every build of pyarrow

    with listing.store.open_input_file(file.path) as opened:
        return {field.name: (_orc_type(field.type), str(field.type)) for field in orc.ORCFile(opened).schema}


def _orc_type(kind: pa.DataType) -> T.DataType | None:
    return T.TimestampType() if pa.types.is_timestamp(kind) else spark_type(kind)


def _typed_rows(listing: FileListing, file: KnownFile, form: str, names: list[str]) -> list[dict[str, Any]]:
    """Some rows of the newest file."""
    with listing.store.open_input_file(file.path) as opened:
        if form == "parquet":
            there = [name for name in names if name in set(pq.ParquetFile(opened).schema_arrow.names)]
            batches = pq.ParquetFile(opened).iter_batches(batch_size=_ROWS, columns=there)
            return list(next(batches, pa.RecordBatch.from_pylist([])).to_pylist())
        from pyarrow import orc  # noqa: PLC0415 - as above

        found = orc.ORCFile(opened)
        there = [name for name in names if name in set(found.schema.names)]
        return list(found.read_stripe(0, columns=there).slice(0, _ROWS).to_pylist()) if found.nstripes else []
