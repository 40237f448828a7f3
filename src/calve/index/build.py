"""Data files -> entries -> runs in the store: their key columns alone are read, each file by itself."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from calve.iceberg.readable import ReadTarget
from calve.index.manifest import IndexedFile, Run
from calve.index.parts import Entries, Part, rows_per_part
from calve.index.words import Keys, NotIndexable, Words, is_short, widened, widest
from calve.model.scan import ScanFile
from calve.scan.positions import Remembered, key_columns
from calve.spark.failures import own_file_failure

MOST_FILE_ROWS = 20_000_000
"""The keys of one file are sorted in memory."""
_PARTS_PER_RUN = 4
"""Of short keys: few runs need no merge, and that many entries are sorted in some hundred megabytes."""
_NONE: Words = np.empty(0, np.uint64)


def indexed(file: ScanFile) -> IndexedFile:
    """A data file as the index knows it."""
    return IndexedFile(file.path, file.size, file.rows)


@dataclass(frozen=True)
class Built:
    """Entries of some data files, whose numbers are their places in `files`."""

    files: tuple[ScanFile, ...]
    entries: Entries
    widths: tuple[int, ...]
    exact: bool


@dataclass(frozen=True)
class KeyReader:
    """How key columns are read."""

    target: ReadTarget
    key_ids: tuple[int, ...]
    remembered: Remembered
    threads: int


@dataclass(frozen=True)
class _Read:
    """Keys of one file, and their positions; None where they are not for an index."""

    file: ScanFile
    keys: tuple[tuple[Keys, int], ...] | None


def build(reader: KeyReader, files: Sequence[ScanFile]) -> Iterator[Built]:
    """Entries of files, a part at a time; files whose keys cannot be indexed are in none of them.

    Raises TransientError.
    """
    with ThreadPoolExecutor(reader.threads) as pool:
        for group in file_groups(files, reader.target, reader.key_ids):
            read = [one for one in pool.map(lambda file: _read(reader, file), group) if one.keys is not None]
            if read:
                yield _built(read)


def run_of(built: Built, put: Callable[[Entries], Part]) -> Run:
    """Entries as a run of parts, each of which `put` writes."""
    step = rows_per_part(built.entries.words.shape[1])
    cuts = range(0, len(built.entries), step)
    parts = tuple(put(built.entries.taken(slice(at, at + step))) for at in cuts)
    return Run(tuple(map(indexed, built.files)), built.widths, built.exact, parts)


def file_groups(files: Sequence[ScanFile], target: ReadTarget, key_ids: Sequence[int]) -> Iterator[list[ScanFile]]:
    """Files whose entries make a run; where keys may be long, no more than a part."""
    group: list[ScanFile] = []
    short = all(is_short(target.keys[number].kind) for number in key_ids)
    most = rows_per_part(0) * (_PARTS_PER_RUN if short else 1)
    for file in files:
        if group and sum(f.rows for f in group) + file.rows > most:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def _read(reader: KeyReader, file: ScanFile) -> _Read:
    if file.rows > MOST_FILE_ROWS:
        return _Read(file, None)
    try:
        found = [
            (Keys.of([columns[number] for number in reader.key_ids]), first)
            for first, columns in key_columns(reader.target, file, reader.key_ids, reader.remembered)
        ]
    except NotIndexable:
        return _Read(file, None)
    except (OSError, pa.ArrowException) as error:
        raise own_file_failure(error, "the keys of a file of the table could not be read", file.path) from error
    return _Read(file, tuple(found))


def _built(read: Sequence[_Read]) -> Built:
    files = tuple(r.file for r in read)
    keys = [(number, one, first) for number, r in enumerate(read) for one, first in r.keys or ()]
    if not keys:
        return Built(files, Entries(_NONE, _NONE, _NONE.reshape(0, 0)), (), exact=True)
    widths = widest(one.widths for _, one, _ in keys)
    exact = all(one.exact for _, one, _ in keys)
    hashes = np.concatenate([one.hashes for _, one, _ in keys])
    order = np.argsort(hashes)
    places = np.concatenate([_places(number, one, first) for number, one, first in keys])[order]
    words = np.empty((len(order), 0), np.uint64)
    if not exact:
        words = np.concatenate([widened(one.words, one.widths, widths) for _, one, _ in keys])[order]
    return Built(files, Entries(hashes[order], places, words), widths, exact)


def _places(number: int, keys: Keys, first: int) -> Words:
    return (keys.rows + first).astype(np.uint64) | np.uint64(number << 32)
