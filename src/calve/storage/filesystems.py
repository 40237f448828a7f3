"""Filesystems by location: local folders, S3 and everything else that pyarrow supports.

A location is a URI whose path is not percent-encoded: `file:///tmp/a b%20c/x` names the file `x` in the folder
`a b%20c`; a location without a scheme is a local path (`local.py` says when that is used).
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem, S3FileSystem
from pyiceberg.io import InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from calve.errors import InvalidInput
from calve.model.numbers import whole_number
from calve.storage import durable
from calve.storage.aws import assumed
from calve.storage.hints import code_of

APART = "calve.apart"
"""A location whose files need other properties: those whose names start with this and a dot."""
_APART = f"{APART}."
_IO_PREFIXES = ("adls.", _APART, "client.", "gcs.", "hdfs.", "hf.", "oss.", "s3.", "DEFAULT_")
NO_LOCAL_FILES = "calve.no-local-files"
"""Set to refuse locations on this machine: the files belong to a catalog elsewhere."""
_IO_NAMES = frozenset({"buffer-size", APART, NO_LOCAL_FILES})
_LOCAL = frozenset({"", "file"})
_EARLY_MS = 5 * 60 * 1000
_UNTOLD_MS = 10 * 60 * 1000
"""Assumed lifetime of credentials without an expiry time: no store issues them for less than 15 minutes."""
_SCHEMES = frozenset(
    {*_LOCAL, "abfs", "abfss", "gcs", "gs", "hdfs", "oss", "s3", "s3a", "s3n", "viewfs", "wasb", "wasbs"}
)
_TABLE_BUCKET = "--table-s3"
"""Suffix of the names of S3 Tables' buckets."""
_BUCKETS = ("s3://", "s3a://", "s3n://")
_ANY_REGION = "us-east-1"
TIME_OUTS: Mapping[str, str] = {"s3.connect-timeout": "10", "s3.request-timeout": "30"}
"""Seconds until a connection attempt, and a request without a response, count as failed. A request is tried three
times."""


def io_properties_of(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that a store needs: endpoints and credentials for files, never the catalog's own."""
    return {k: v for k, v in properties.items() if k.startswith(_IO_PREFIXES) or k in _IO_NAMES}


def task_properties_of(properties: Mapping[str, str]) -> dict[str, str]:
    """The same for tasks, which get temporary credentials of a role and not those that assume it. Raises OSError."""
    given = io_properties_of(properties)
    found = dict(assumed(properties_for("", given)))
    if APART not in given:
        return found
    return with_place_apart(found, given[APART], assumed(properties_for(f"{given[APART]}/", given)))


def with_place_apart(properties: Mapping[str, str], location: str, others: Mapping[str, str]) -> dict[str, str]:
    """The same properties, with others for everything below a location."""
    return {**properties, APART: location, **{_APART + name: value for name, value in others.items()}}


def properties_for(location: str, properties: Mapping[str, str]) -> Mapping[str, str]:
    """The properties that a store needs for one file."""
    apart = properties.get(APART)
    if apart is None:
        return properties
    if location.startswith(f"{apart}/"):
        return {name.removeprefix(_APART): value for name, value in properties.items() if name.startswith(_APART)}
    return {name: value for name, value in properties.items() if name != APART and not name.startswith(_APART)}


def keeps_everything(location: str) -> bool:
    """Whether clients may not delete files there: S3 Tables does that itself, once no table refers to them."""
    return location.startswith(_BUCKETS) and urlsplit(location).netloc.endswith(_TABLE_BUCKET)


def expires_soon(properties: Mapping[str, str], since_ms: int, now_ms: int) -> bool:
    """Whether credentials that a catalog issued at `since_ms` are about to expire, or may be if it gave no expiry."""
    end = whole_number(properties.get("s3.session-token-expires-at-ms", ""))
    if end is None:
        return bool(properties.get("s3.session-token")) and now_ms - since_ms > _UNTOLD_MS
    return end - now_ms < _EARLY_MS


def filesystem_of(location: str, io_properties: Mapping[str, str]) -> tuple[FileSystem, str]:
    """The filesystem of a location, and its path there. Filesystems are reused within a process."""
    settings = properties_for(location, io_properties)
    scheme, host, path = PyArrowFileIO.parse_location(location, dict(settings))
    return _filesystem_with(scheme, host, settings), path


def is_local_location(location: str) -> bool:
    """Whether a location is on this machine."""
    return urlsplit(location).scheme.lower() in _LOCAL


def _filesystem_with(scheme: str, host: str, io_properties: Mapping[str, str]) -> FileSystem:
    """A filesystem with the current credentials of a role: another one once they are renewed. Raises InvalidInput."""
    if scheme in _LOCAL and io_properties.get(NO_LOCAL_FILES) == "true":
        raise InvalidInput(
            "a table refers to a file on this machine",
            detail="Its catalog is on another machine: calve neither reads nor writes local files for such a table.",
            hint="If the files are on a disk that all machines share, connect with a local WAREHOUSE.",
        )
    if scheme not in _SCHEMES:
        raise InvalidInput(f'locations that start with "{scheme}:" are not supported')
    return _filesystem(scheme, host, tuple(sorted(assumed(io_properties).items())))


@lru_cache(maxsize=64)
def _filesystem(scheme: str, host: str, io_properties: tuple[tuple[str, str], ...]) -> FileSystem:
    found = PyArrowFileIO({**TIME_OUTS, **dict(io_properties)}).fs_by_scheme(scheme, host)
    if not isinstance(found, S3FileSystem):
        return found
    rebuild, (settings,) = found.__reduce__()
    return rebuild({**settings, "allow_delayed_open": True})  # a small file is one request, not three


def sync_files(locations: Iterable[str], io_properties: Mapping[str, str]) -> None:
    """Sync local files to disk, whichever process wrote them; object stores need no sync. Raises OSError."""
    parsed = [PyArrowFileIO.parse_location(location, dict(io_properties)) for location in locations]
    durable.sync([Path(path) for scheme, _, path in parsed if scheme == "file"])


class _LocalFile(PyArrowFile):
    """A local file that is on disk once it is written."""

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: FBT001, FBT002 - pyiceberg's signature
        """Open the file for writing."""
        path = Path(self._path)
        if not overwrite and path.exists():
            raise FileExistsError(f"Cannot create file, already exists: {self.location}")
        path.parent.mkdir(parents=True, exist_ok=True)
        return durable.DurableFile(path)


class StoreIO(PyArrowFileIO):
    """A FileIO for pyiceberg, whose own makes new filesystems, with new connections, whenever it loads a table.

    What it writes to a local disk (metadata, manifests, lists) is synced before a catalog or a record can refer to it.
    """

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self.fs_by_scheme = self._initialize_fs  # not cached: credentials of a role change

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.fs_by_scheme = self._initialize_fs

    def new_input(self, location: str) -> PyArrowFile:
        """Open a file for reading."""
        return super().new_input(location) if self._reaches(location) else self._other(location).new_input(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Remove a file."""
        name = location if isinstance(location, str) else location.location
        if self._reaches(name):
            super().delete(location)
        else:
            self._other(name).delete(location)

    def _reaches(self, location: str) -> bool:
        return APART not in self.properties or not location.startswith(f"{self.properties[APART]}/")

    def _other(self, location: str) -> "StoreIO":
        return StoreIO(dict(properties_for(location, self.properties)))

    def new_output(self, location: str) -> PyArrowFile:
        """Open a file for writing."""
        if not self._reaches(location):
            return self._other(location).new_output(location)
        made = super().new_output(location)
        if not isinstance(made._filesystem, LocalFileSystem):  # noqa: SLF001 - pyiceberg has no other way to ask
            return made
        return _LocalFile(location, made._path, made._filesystem, made._buffer_size)  # noqa: SLF001 - the same

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        return _filesystem_with(scheme, netloc or "", properties_for("", io_properties_of(self.properties)))


def try_bucket(location: str, io_properties: Mapping[str, str]) -> None:
    """List the bucket of a location, if it is in a bucket. Raises OSError."""
    if location.startswith(_BUCKETS):
        filesystem, path = filesystem_of(location, io_properties)
        filesystem.get_file_info(FileSelector(path.partition("/")[0]))


def try_keys(io_properties: Mapping[str, str]) -> None:
    """List all buckets, to check keys; valid keys without the right to do so are fine. Raises OSError."""
    settings = assumed({"client.region": _ANY_REGION, **io_properties})
    try:
        _filesystem_with("s3", "", settings).get_file_info(FileSelector(""))
    except OSError as error:
        if code_of(error) != "ACCESSDENIED":
            raise
