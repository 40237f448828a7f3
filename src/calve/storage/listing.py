"""Lists the files of a folder, on this machine or in any store that pyarrow supports.

A location is a folder with everything below it, a single file, or a pattern: `*` matches any part of a name, `**` any
number of folders. Files are skipped if their names, or those of folders on their path, start with `_` or `.`, or if
their names end like those of copies in progress.

On this machine links are followed, and no file is listed twice: the target of a link is listed under its own name if
it is an input itself, else under the name of the first link to it.

`walk_files` lists the folder of a table instead: every file, as a stream.
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from calve.errors import InvalidInput, TerminalError, TransientError
from calve.model.relation import folder_of
from calve.storage import aws
from calve.storage.filesystems import filesystem_of, properties_for
from calve.suggest import suggestion

_UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".filepart", ".crdownload", "._COPYING_", ".inprogress", "~")
_SPARK_PATTERN = re.compile(r"([\[\]{}*?\\])")
"""Characters that Spark interprets as a pattern. With its option to disable patterns it reads such files twice."""
_SPARK_SCHEMES = {"s3": "s3a"}
_HOSTS = frozenset({"hdfs", "viewfs"})
"""Schemes whose paths in the store start below the authority, a host: `/folder/file`."""
_ACCOUNTS = frozenset({"abfs", "abfss", "wasb", "wasbs"})
"""Schemes whose authority is a container and an account; paths in the store start with the container."""
_HIDDEN = ("_", ".")
_SAME_STORES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasb": "abfs", "wasbs": "abfs"}
_WITHOUT_CHECKSUMS = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


@dataclass(frozen=True, order=True, slots=True)
class KnownFile:
    """A file as it was when it was listed; the order is the order of reading."""

    mtime_ns: int
    path: str
    size: int


def absolute(location: str | Path) -> str:
    """A location that means the same in every process: a URI, or an absolute path."""
    text = str(location)
    return text if urlsplit(text).scheme else os.path.abspath(text)  # noqa: PTH100 - pathlib keeps `..`


def check_there(location: str) -> None:
    """Check that a local folder exists; stores have no folders. Raises TransientError: it may be created later."""
    scheme = urlsplit(location).scheme
    if scheme not in {"", "file"}:
        return
    path = unquote(location.removeprefix("file:").removeprefix("//")) if scheme else location
    top, star, _ = path.partition("*")
    folder = Path(os.path.abspath(top.rstrip("/") or "/"))  # noqa: PTH100 - as in `absolute`
    if star and not top.endswith("/"):
        folder = folder.parent
    if os.path.lexists(folder):
        return
    there = next(parent for parent in folder.parents if parent.exists())
    wanted = folder.relative_to(there).parts
    beside = [entry.name for entry in there.iterdir()] if len(wanted) == 1 and os.access(there, os.R_OK) else []
    raise TransientError(
        f"the folder {folder} did not exist",
        detail=f'{there} does not contain "{wanted[0]}".',
        hint=suggestion(wanted[0], beside) or "Correct the path, or create the folder.",
    )


def require_there(location: str) -> None:
    """Raise InvalidInput if a local folder does not exist: for callers that do not wait for it."""
    try:
        check_there(location)
    except TransientError as error:
        primary = error.primary.replace("did not", "does not")
        raise InvalidInput(primary, detail=error.detail, hint=error.hint) from error


@dataclass(frozen=True)
class FileListing:
    """A location that can be listed."""

    location: str
    store: fs.FileSystem
    base: str
    """The path of the listed folder in the store."""
    pattern: re.Pattern[str] | None
    scheme: str
    authority: str = ""
    """What Spark needs of the location, between the scheme and the path, and paths in the store lack."""

    @classmethod
    def of(cls, location: str) -> "FileListing":
        """Open a location. Raises InvalidInput."""
        top = folder_of(location)
        scheme = urlsplit(location).scheme
        try:
            store, base = fs.FileSystem.from_uri(top) if scheme else (fs.LocalFileSystem(), top)
        except (ValueError, OSError) as error:
            raise InvalidInput(f"the location {location} cannot be opened", detail=str(error)) from error
        rest = location.removeprefix(top).strip("/")
        base = base.rstrip("/") or "/"
        return cls(top, store, base, _pattern(rest) if "*" in location else None, scheme, _authority(location, base))

    def files(self) -> list[KnownFile]:
        """All files that exist now, in no particular order. Raises TransientError."""
        try:
            here = self.store.get_file_info(self.base)
            if here.type == fs.FileType.File:
                return [_readable(_known(here))]
            if isinstance(self.store, fs.LocalFileSystem):
                check_there(self.base)
                return [_readable(file) for file in _local_files(self.base, self._is_input)]
            infos = self.store.get_file_info(fs.FileSelector(self.base, recursive=True, allow_not_found=True))
        except OSError as error:
            raise TransientError(f"could not list {self.location}", detail=str(error)) from error
        return [_readable(_known(info)) for info in infos if info.is_file and self._is_input(info.path)]

    def _is_input(self, path: str) -> bool:
        below = path.removeprefix(self.base).strip("/")
        if any(part.startswith(_HIDDEN) for part in below.split("/")) or below.endswith(_UNFINISHED):
            return False
        return self.pattern is None or self.pattern.fullmatch(below) is not None

    def sizes(self, paths: list[str]) -> list[int | None]:
        """The sizes of files, None for those that no longer exist. Raises TransientError."""
        try:
            infos = self.store.get_file_info(paths)
        except OSError as error:
            raise TransientError(f"could not read the sizes of files in {self.location}", detail=str(error)) from error
        return [i.size if i.is_file else None for i in infos]

    def for_spark(self, path: str) -> str:
        """The path of a file as Spark takes it."""
        scheme = _SPARK_SCHEMES.get(self.scheme, self.scheme or "file")
        below = f"/{path.partition('/')[2]}" if self.authority and self.scheme in _ACCOUNTS else path
        return f"{scheme}://{self.authority}" + _SPARK_PATTERN.sub(r"\\\1", below)

    def named_by_spark(self, spark_path: str) -> tuple[str, ...]:
        """The paths in the store that a path in an error of Spark may stand for: it escapes some and not others."""
        parts = urlsplit(spark_path)
        path = spark_path.partition(":")[2].removeprefix("//") if parts.scheme else spark_path
        if self.authority:
            container = self.base.partition("/")[0] if self.scheme in _ACCOUNTS else ""
            path = container + path.removeprefix(self.authority)
        return path, unquote(path)


def _authority(location: str, base: str) -> str:
    """The authority of a location for Spark, without passwords; empty where paths in the store contain all of it."""
    scheme, netloc = urlsplit(location)[:2]
    if scheme in _HOSTS:
        return netloc
    account = netloc.rpartition("@")[2]
    named = scheme in _ACCOUNTS and ("@" in netloc or "." in account)
    return f"{base.partition('/')[0]}@{account}" if named else ""


def spark_options(names: Iterable[str]) -> dict[str, str]:
    """Options that Spark needs to read files with these names.

    Hadoop looks for a checksum file beside every local file, and fails to name it if the file's own name has a colon.
    """
    return _WITHOUT_CHECKSUMS if any(":" in name.rpartition("/")[2] for name in names) else {}


def _known(info: fs.FileInfo) -> KnownFile:
    return KnownFile(info.mtime_ns or 0, info.path, info.size)


def _readable(file: KnownFile) -> KnownFile:
    """The file, if Spark can find it by its path. Raises TerminalError."""
    if not file.path.isascii() and not _is_text(file.path):
        raise TerminalError(
            "the name of a file is not valid UTF-8",
            detail=f"It is {os.fsencode(file.path)!r}.",
            hint="Rename it, or give it a name that starts with a dot to skip it.",
        )
    if ":" in file.path and _SPARK_PATTERN.search(file.path):
        raise TerminalError(
            "Spark cannot read a file whose path contains a colon and one of the characters [ ] { } * ? \\",
            detail=f"It is {file.path!r}.",
            hint="Rename it or its folder, or give it a name that starts with a dot to skip it.",
        )
    return file


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _local_files(base: str, is_input: Callable[[str], bool]) -> Iterator[KnownFile]:
    """The inputs below a local folder."""
    links: list[tuple[str, str]] = []
    taken: set[str] = set()
    for path, real, entry in _local_entries(base):
        if not is_input(path):
            continue
        if entry.is_symlink():
            links.append((path, real))
        elif real not in taken and (file := _file_at(path)):
            taken.add(real)
            yield file
    for path, real in sorted(links):
        if real not in taken and (file := _file_at(path)):
            taken.add(real)
            yield file


def _local_entries(base: str) -> Iterator[tuple[str, str, os.DirEntry[str]]]:
    """Everything but folders in a folder and below it: path, path without links, and entry.

    Every folder is visited once: first those reached without a link, then the others in the order of their links.
    """
    waiting, links, visited = [(base, os.path.realpath(base))], list[str](), set[str]()
    while waiting or links:
        if not waiting:
            links.sort(reverse=True)
            link = links.pop()
            waiting.append((link, os.path.realpath(link)))
        folder, real = waiting.pop()
        if real in visited:
            continue
        visited.add(real)
        above, real_above = folder.rstrip("/"), real.rstrip("/")
        for entry in _entries(folder):
            path, below = f"{above}/{entry.name}", f"{real_above}/{entry.name}"
            if not entry.is_symlink():
                if not entry.is_dir():
                    yield path, below, entry
                elif not entry.name.startswith(_HIDDEN):
                    waiting.append((path, below))
            elif not os.path.isdir(path):  # noqa: PTH112 - that of pathlib fails for a link to itself
                yield path, os.path.realpath(path), entry
            elif not entry.name.startswith(_HIDDEN):
                links.append(path)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:  # it never existed, or was removed meanwhile
        return []


def _file_at(path: str) -> KnownFile | None:
    """The file at a path; None for one that was removed, and for anything else: a pipe, a dangling link."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a path is text here
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise
    return KnownFile(found.st_mtime_ns, path, found.st_size) if stat.S_ISREG(found.st_mode) else None


def _pattern(text: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*\*|\*)", text)
    translated = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
    return re.compile("".join(translated.get(part, re.escape(part)) for part in parts))


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a table's folder, as a listing shows it."""

    below: bytes
    """Its path below the listed folder; bytes, because local names may be no text."""
    size: int
    mtime_ms: int


def walk_files(location: str, io_properties: Mapping[str, str]) -> Iterator[StoredFile]:
    """All files below a folder of a table, hidden ones included, as a stream. Links to folders are not followed.

    `location` is a table location, whose path is not percent-encoded. Memory: on this machine a folder's names that
    are not listed yet, in S3 a page, in other stores the files of one folder. Raises TransientError.
    """
    folder = location.rstrip("/")
    try:
        store, path = filesystem_of(folder, io_properties)
        if isinstance(store, fs.LocalFileSystem):
            yield from _walk_local(path)
        elif isinstance(store, fs.S3FileSystem) and aws.is_available():
            bucket, _, prefix = path.partition("/")
            settings = aws.assumed(properties_for(folder, io_properties))
            base = f"{prefix.rstrip('/')}/" if prefix else ""
            for key, size, mtime_ms in aws.list_objects(bucket, base, settings):
                yield StoredFile(key.removeprefix(base).encode(), size, mtime_ms)
        else:
            yield from _walk_store(store, path)
    except OSError as error:
        raise TransientError(f"could not list {location}", detail=str(error)) from error


def stored_time_ms(location: str, io_properties: Mapping[str, str]) -> int | None:
    """The time of a file's last change by the clock of its store; None if the store does not say. Raises OSError."""
    store, path = filesystem_of(location, io_properties)
    mtime = store.get_file_info(path).mtime_ns
    return None if mtime is None else mtime // 1_000_000


def _walk_local(base: str) -> Iterator[StoredFile]:
    root = os.fsencode(base.rstrip("/")) + b"/"
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            entries = os.scandir(folder)
        except FileNotFoundError:  # it never existed, or was removed meanwhile
            continue
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path + b"/")
                    continue
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield StoredFile(entry.path.removeprefix(root), found.st_size, found.st_mtime_ns // 1_000_000)


def _walk_store(store: fs.FileSystem, base: str) -> Iterator[StoredFile]:
    root, waiting = f"{base.rstrip('/')}/", [base.rstrip("/")]
    while waiting:
        for info in store.get_file_info(fs.FileSelector(waiting.pop(), allow_not_found=True)):
            if info.type == fs.FileType.Directory:
                waiting.append(info.path)
            elif info.is_file:
                yield StoredFile(info.path.removeprefix(root).encode(), info.size, (info.mtime_ns or 0) // 1_000_000)


def store_and_path(location: str) -> tuple[str, str]:
    """The store of a location, in one spelling for all schemes of it, and the path there."""
    scheme, colon, rest = location.partition("://")
    if not colon:
        return "file", location.removeprefix("file:")
    scheme = _SAME_STORES.get(scheme.lower(), scheme.lower())
    authority, slash, path = rest.partition("/")
    return ("file" if scheme == "file" else f"{scheme}://{authority}"), f"{slash}{path}"
