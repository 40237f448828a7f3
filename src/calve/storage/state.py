"""The state location: small durable records, shared by every run of a sink.

A store offers atomic puts, also of names that must be new; names are relative, with `/` between levels. It is never
below a table's location (orphan removal would delete it) and never the only copy of rows that the source no longer has:
records refer to table files, and the table itself holds the progress of the sink.
"""

import errno
import os
import posixpath
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from calve import faults
from calve.errors import InvalidInput, TerminalError, TransientError
from calve.storage import durable
from calve.storage.aws import put_first
from calve.storage.filesystems import filesystem_of, keeps_everything
from calve.storage.hints import hint_for
from calve.storage.part_files import is_part, part_of, remove_abandoned

_S3 = frozenset({"s3", "s3a", "s3n"})
_READS = 16
"""Ranges of a record that are read concurrently."""
JOINED_GAP = 128 << 10
"""Ranges of a remote record that are at most so many bytes apart are one request: a request takes longer than these."""
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Errors of filesystems without hard links."""


class StateStore(Protocol):
    """Atomic puts, reads and listings below one root."""

    def put(self, name: str, data: bytes) -> None:
        """Write the whole record or nothing; durable when it returns. Putting the same bytes again is harmless."""
        ...

    def put_new(self, name: str, data: bytes) -> None:
        """Like `put`, but never overwrites: raises TerminalError when the record exists with other contents."""
        ...

    def read(self, name: str) -> bytes | None:
        """The record, or None if it does not exist."""
        ...

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Ranges of a record by offset and length, cut off at its end; None if it does not exist."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Names of all records below the folder `prefix`, sorted. What killed processes left half written goes."""
        ...

    def delete(self, name: str) -> None:
        """Remove a record if it exists."""
        ...


def joined_ranges(ranges: Iterable[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Spans that cover ranges by offset and length, ascending; ranges at most `gap` bytes apart share one."""
    spans: list[tuple[int, int]] = []
    for offset, length in sorted(ranges):
        start, size = spans[-1] if spans else (0, 0)
        if spans and offset <= start + size + gap:
            spans[-1] = start, max(size, offset + length - start)
        else:
            spans.append((offset, length))
    return spans


def open_state(location: str, io_properties: Mapping[str, str] | None = None) -> StateStore:
    """Open the store at a local path or a URI that pyarrow supports, with what it needs (endpoint, credentials)."""
    folder = local_folder(location)
    if folder is not None:
        return LocalState(folder)
    return (S3State if urlsplit(location).scheme in _S3 else RemoteState)(location, io_properties or {})


def local_folder(state: str) -> Path | None:
    """The folder of a state location on this machine; None for one elsewhere.

    The path of a `file:` URI is percent-encoded, unlike that of a table's location.
    """
    parts = urlsplit(state)
    if parts.scheme not in {"", "file"}:
        return None
    return Path(unquote(parts.path) if parts.scheme else state)


def check_apart(state: str, table: str) -> None:
    """Check that neither a state location nor a table's location contains the other. Raises InvalidInput.

    Otherwise removing orphan files of the table would remove records, and dropping the sink's records the table.
    """
    if keeps_everything(state):
        raise InvalidInput(
            "the state location cannot be in a bucket of S3 Tables, which holds nothing but tables",
            detail=f"The state location is {state}.",
            hint="Choose a STATE LOCATION in a general purpose bucket.",
        )
    folder = local_folder(state)
    mine = _normalized(state) if folder is None else os.path.realpath(folder)
    theirs = _normalized(table)
    if f"{mine}/".startswith(f"{theirs}/") or f"{theirs}/".startswith(f"{mine}/"):
        raise InvalidInput(
            "the state location and the table's location overlap",
            detail=f"The state location is {state}, the table is at {table}.",
            hint="Choose a STATE LOCATION that is neither inside nor above the table's location.",
        )


def _normalized(location: str) -> str:
    """A location in the only spelling of its place."""
    parts = urlsplit(location)
    if parts.scheme in {"", "file"}:
        return os.path.realpath(location.removeprefix("file:").removeprefix("//") if parts.scheme else location)
    scheme = "s3" if parts.scheme in _S3 else parts.scheme
    return f"{scheme}:/" + posixpath.normpath(f"/{location.partition('://')[2]}")


class LocalState:
    """A folder. A record is written beside its place, synced, and renamed into it; then its name is synced."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, name: str, data: bytes) -> None:
        faults.reached("state.put")
        self._put(name, data, lambda part, path: part.replace(path))

    def put_new(self, name: str, data: bytes) -> None:
        faults.reached("state.put")
        try:
            self._put(name, data, _link)
        except _Taken:
            _check_same(name, self.read(name), data)
            self._sync(name)  # the process that wrote it may have died before

    def _sync(self, name: str) -> None:
        path = self._root / name
        try:
            durable.sync([path])
        except OSError as error:
            raise _cannot("write", str(path), error) from error

    def _put(self, name: str, data: bytes, place: Callable[[Path, Path], object]) -> None:
        path = self._root / name
        part = part_of(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            place(part, path)
            durable.sync_folder(path.parent)
        except FileExistsError as error:
            if path.is_file():
                raise _Taken from error
            raise _cannot("write", str(path), error) from error
        except OSError as error:
            raise _cannot("write", str(path), error) from error
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def read(self, name: str) -> bytes | None:
        path = self._root / name
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _cannot("read", str(path), error) from error

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None:
        path = self._root / name
        try:
            with path.open("rb", buffering=0) as source:
                return [os.pread(source.fileno(), length, offset) for offset, length in ranges]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _cannot("read", str(path), error) from error

    def list(self, prefix: str) -> list[str]:
        found = []
        try:
            for folder, _, names in os.walk(self._root / prefix, onerror=_raise_unless_gone):
                base = Path(folder).relative_to(self._root)
                found += [str(base / name) for name in names if not name.startswith(".")]
                if any(map(is_part, names)):
                    remove_abandoned(Path(folder))
        except OSError as error:
            raise _cannot("list", str(self._root / prefix), error) from error
        return sorted(found)

    def delete(self, name: str) -> None:
        path = self._root / name
        try:
            path.unlink(missing_ok=True)
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
                durable.removed(path.parent)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise _cannot("delete", str(path), error) from error


def _raise_unless_gone(error: OSError) -> None:
    """A folder that cannot be read is not an empty one: whoever lists it would take its records for lost."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


class RemoteState:
    """An object store: a put is one upload, which is atomic. Goes to tasks: it opens its own connections."""

    def __init__(self, location: str, io_properties: Mapping[str, str]) -> None:
        self._location = location.rstrip("/")
        self._io_properties = dict(io_properties)

    def put(self, name: str, data: bytes) -> None:
        faults.reached("state.put")
        store, path = self._place(name)
        try:
            with store.open_output_stream(path, compression=None) as out:
                out.write(data)
        except OSError as error:
            raise _cannot("write", self._named(name), error) from error

    def put_new(self, name: str, data: bytes) -> None:
        """Checks first, and is not atomic: other stores have no conditional writes that pyarrow offers."""
        there = self.read(name)
        if there is None:
            self.put(name, data)
        else:
            _check_same(name, there, data)

    def read(self, name: str) -> bytes | None:
        store, path = self._place(name)
        try:
            with store.open_input_stream(path, compression=None) as source:
                return bytes(source.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _cannot("read", self._named(name), error) from error

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None:
        store, path = self._place(name)
        try:
            with store.open_input_file(path) as source, ThreadPoolExecutor(_READS) as pool:
                size = source.size()
                known = [(min(offset, size), min(length, max(0, size - offset))) for offset, length in ranges]
                spans = joined_ranges(known, JOINED_GAP)
                read = list(pool.map(lambda span: source.read_at(span[1], span[0]), spans))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _cannot("read", self._named(name), error) from error
        starts = [start for start, _ in spans]
        found = []
        for offset, length in known:
            at = bisect_right(starts, offset) - 1
            found.append(read[at][offset - starts[at] : offset - starts[at] + length])
        return found

    def list(self, prefix: str) -> list[str]:
        store, path = self._place(prefix)
        root = path.removesuffix(prefix)
        try:
            infos = store.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
        except OSError as error:
            raise _cannot("list", self._named(prefix), error) from error
        return sorted(i.path.removeprefix(root) for i in infos if i.type == fs.FileType.File)

    def delete(self, name: str) -> None:
        store, path = self._place(name)
        try:
            store.delete_file(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _cannot("delete", self._named(name), error) from error

    def _named(self, name: str) -> str:
        return f"{self._location}/{name}"

    def _place(self, name: str) -> tuple[fs.FileSystem, str]:
        return filesystem_of(self._named(name), self._io_properties)


class S3State(RemoteState):
    """S3, which has conditional writes."""

    def put_new(self, name: str, data: bytes) -> None:
        faults.reached("state.put")
        try:
            first = put_first(self._named(name), data, self._io_properties)
        except OSError as error:
            raise _cannot("write", self._named(name), error) from error
        if not first:
            _check_same(name, self.read(name), data)


class StateFolder:
    """A folder of another store."""

    def __init__(self, store: StateStore, name: str) -> None:
        self._store = store
        self._prefix = f"{name}/"

    def put(self, name: str, data: bytes) -> None:
        self._store.put(self._prefix + name, data)

    def put_new(self, name: str, data: bytes) -> None:
        self._store.put_new(self._prefix + name, data)

    def read(self, name: str) -> bytes | None:
        return self._store.read(self._prefix + name)

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None:
        return self._store.read_ranges(self._prefix + name, ranges)

    def list(self, prefix: str) -> list[str]:
        return [n.removeprefix(self._prefix) for n in self._store.list(self._prefix + prefix)]

    def delete(self, name: str) -> None:
        self._store.delete(self._prefix + name)


class NewRecords(StateFolder):
    """A store whose new records are not referred to yet: they are removed if the work that puts them fails."""

    def __init__(self, store: StateStore) -> None:
        super().__init__(store, "")
        self._prefix = ""
        self._put: list[str] = []

    def put(self, name: str, data: bytes) -> None:
        self._put.append(name)
        super().put(name, data)

    def put_new(self, name: str, data: bytes) -> None:
        self._put.append(name)
        try:
            super().put_new(name, data)
        except TerminalError:  # another process's record
            self._put.remove(name)
            raise

    @contextmanager
    def removed_on_failure(self) -> Iterator[None]:
        """On failure remove what was put, also where the response was lost; what cannot be removed is an orphan."""
        try:
            yield
        except BaseException:
            delete_unreferenced(self, self._put)
            raise


def delete_unreferenced(store: StateStore, names: Iterable[str]) -> None:
    """Remove records that nothing refers to; what cannot be removed is an orphan."""
    for name in names:
        with suppress(TransientError):
            store.delete(name)


def _link(part: Path, path: Path) -> None:
    """Give a file a name that does not exist yet. Raises FileExistsError."""
    try:
        path.hardlink_to(part)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, "taken", str(path)) from error
        part.replace(path)


class _Taken(Exception):
    """A record of that name exists."""


def _check_same(name: str, there: bytes | None, data: bytes) -> None:
    """Check that an existing record is the one to write: a retry after a lost response finds its own. Raises."""
    if there is None:
        raise TransientError(f"the state record {name} was being written or removed by another process")
    if there != data:
        raise TerminalError(
            f"another process wrote the state record {name}",
            detail="Two processes share one identity: a copy of this process or of its machine is running.",
            hint="Stop one of them.",
        )


def _cannot(verb: str, path: str, error: OSError) -> TransientError:
    return TransientError(f"could not {verb} the state record {path}", detail=str(error), hint=hint_for(error))
