"""How large the state of a sink and the folders of a home are, for `calve status`.

Everything here is bounded by its owner: records and stages are removed once they are committed, parts of the key index
are merged and those that nothing refers to removed, entries of the removal journal end after their grace, Spark keeps
the last hundred entries of its logs, and the log of the JVM is rotated.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyarrow import fs

from calve.errors import TransientError
from calve.storage.filesystems import filesystem_of
from calve.storage.hints import hint_for
from calve.storage.state import local_folder

_KINDS = {
    "rec": "records",
    "runs": "records",
    "table.json": "records",
    "stage": "stages",
    "index": "key index",
    "keys": "key files",
    "view": "totals of views",
    "letters": "replays of dead letters",
}
_SOURCE = "source"
_OF_HOME = {
    "spark": "Spark checkpoints",
    "logs": "logs",
    "status": "status",
    "metastore": "metastore",
    "orphans": "notes on orphan files",
    "java": "Java",
    "secrets": "secrets",
    "spark-warehouse": "Spark's warehouse",
}
"""The folders of a home, but for tables and state, which may be anywhere and are measured where they are."""


def state_sizes(location: str, sink_id: str, io_properties: Mapping[str, str] | None = None) -> dict[str, int]:
    """The bytes in a state location that belong to one sink, by kind; the removal journal is that of all sinks.

    Kinds without files are left out. Raises TransientError.
    """
    sizes: Counter[str] = Counter()
    for name, size in _files(f"{location.rstrip('/')}/{sink_id}", io_properties or {}):
        first = name.split("/", 1)[0]
        sizes[_KINDS.get(first, "read positions" if first.startswith(_SOURCE) else "others")] += size
    for _, size in _files(f"{location.rstrip('/')}/removal", io_properties or {}):
        sizes["removal journal"] += size
    return dict(sizes)


def home_sizes(home: Path) -> dict[str, int]:
    """The bytes in a home besides tables and state, by kind; kinds without files are left out.

    Folders of the user's own, which may be large, are not looked at.
    """
    sizes = {kind: sum(size for _, size in _local_files(home / folder)) for folder, kind in _OF_HOME.items()}
    files = (size for name, size in _local_files(home, deep=False) if not name.startswith("."))
    return {kind: size for kind, size in {**sizes, "other files": sum(files)}.items() if size}


def _files(location: str, io_properties: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Names, relative to the location, and sizes of all files below it."""
    folder = local_folder(location)
    if folder is not None:
        yield from _local_files(folder)
        return
    store, path = filesystem_of(location, io_properties)
    try:
        infos = store.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    except OSError as error:
        raise TransientError(f"could not list {location}", detail=str(error), hint=hint_for(error)) from error
    for info in infos:
        if info.type == fs.FileType.File:
            yield info.path.removeprefix(f"{path}/"), int(info.size)


def _local_files(folder: Path, *, deep: bool = True) -> Iterator[tuple[str, int]]:
    """Files below a folder, or only those in it."""
    for base, folders, names in os.walk(folder):
        if not deep:
            folders.clear()
        for name in names:
            file = Path(base) / name
            try:
                yield str(file.relative_to(folder)), file.stat().st_size
            except FileNotFoundError:  # removed meanwhile
                continue
