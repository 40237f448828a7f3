"""Finding the files of a folder, on this machine or in any store that pyarrow knows.

A location is a folder with everything below it, a single file, or a pattern: `*` stands for any part of a name, `**`
for any number of folders. Names that start with `_` or `.` (of files, or of folders on the way), and endings of
copies under way, are left alone.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pyarrow import fs

from calve.errors import InvalidInput, TransientError

_UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".filepart", ".crdownload", "._COPYING_", ".inprogress", "~")
_SPARK_PATTERN = re.compile(r"([\[\]{}*?\\])")
"""Characters that Spark takes for a pattern. Its switch against patterns reads such files twice."""
_SPARK_SCHEMES = {"s3": "s3a"}


@dataclass(frozen=True, order=True, slots=True)
class KnownFile:
    """A file as it is, or was when it was looked at; the order is the order of reading."""

    mtime_ns: int
    path: str
    size: int


def absolute(location: str | Path) -> str:
    """A location that means the same in every process: a URI, or an absolute path."""
    text = str(location)
    return text if urlsplit(text).scheme else os.path.abspath(text)  # noqa: PTH100 - pathlib keeps `..`


@dataclass(frozen=True)
class Listing:
    """A location that can be listed."""

    location: str
    store: fs.FileSystem
    base: str
    """The folder that is listed, as the store names it."""
    pattern: re.Pattern[str] | None
    scheme: str

    @classmethod
    def of(cls, location: str) -> "Listing":
        """The location, opened."""
        folder, star, _ = location.partition("*")
        top = folder.rpartition("/")[0] if star else location
        scheme = urlsplit(location).scheme
        try:
            store, base = fs.FileSystem.from_uri(top) if scheme else (fs.LocalFileSystem(), top)
        except (ValueError, OSError) as error:
            raise InvalidInput(f"the location {location} cannot be opened", detail=str(error)) from error
        rest = location.removeprefix(top).strip("/")
        return cls(top, store, base.rstrip("/") or "/", _pattern(rest) if star else None, scheme)

    def files(self) -> list[KnownFile]:
        """All files that are there now, in no order."""
        try:
            here = self.store.get_file_info(self.base)
            alone = here.type == fs.FileType.File
            infos = [here] if alone else self.store.get_file_info(self._below())
        except OSError as error:
            raise TransientError(f"could not list {self.location}", detail=str(error)) from error
        files = [i for i in infos if i.is_file and (alone or self._is_input(i.path))]
        return [KnownFile(i.mtime_ns or 0, i.path, i.size) for i in files]

    def _below(self) -> fs.FileSelector:
        return fs.FileSelector(self.base, recursive=True, allow_not_found=True)

    def _is_input(self, path: str) -> bool:
        below = path.removeprefix(self.base).strip("/")
        if any(part.startswith(("_", ".")) for part in below.split("/")) or below.endswith(_UNFINISHED):
            return False
        return self.pattern is None or self.pattern.fullmatch(below) is not None

    def sizes(self, paths: list[str]) -> list[int | None]:
        """The sizes of files, None for those that are gone."""
        try:
            infos = self.store.get_file_info(paths)
        except OSError as error:
            raise TransientError(f"could not look at the files of {self.location}", detail=str(error)) from error
        return [i.size if i.is_file else None for i in infos]

    def for_spark(self, path: str) -> str:
        """The name of a file as Spark takes it."""
        scheme = _SPARK_SCHEMES.get(self.scheme, self.scheme or "file")
        return f"{scheme}://" + _SPARK_PATTERN.sub(r"\\\1", path)


def _pattern(text: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*\*|\*)", text)
    translated = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
    return re.compile("".join(translated.get(part, re.escape(part)) for part in parts))
