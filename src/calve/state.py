"""The state location: small durable records, shared by every run of a sink.

A store offers atomic puts and nothing else; names are relative, with `/` between levels. It is never under a table's
location (orphan removal would delete it) and never the only copy of rows that the source no longer has: records point
to table files, and the table itself says how far the sink came.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from calve import faults
from calve.errors import TransientError


class StateStore(Protocol):
    """Atomic puts, reads and listings below one root."""

    def put(self, name: str, data: bytes) -> None:
        """Write the whole record or nothing; durable when it returns. Putting the same bytes again is harmless."""
        ...

    def read(self, name: str) -> bytes | None:
        """The record, or None when there is none."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Names of all records below the folder `prefix`, sorted."""
        ...

    def delete(self, name: str) -> None:
        """Remove a record; one that is gone already is fine."""
        ...


def open_state(location: str) -> StateStore:
    """The store behind a folder or a URI that pyarrow knows."""
    parts = urlsplit(location)
    if parts.scheme in {"", "file"}:
        return LocalState(Path(unquote(parts.path) if parts.scheme else location))
    filesystem, root = fs.FileSystem.from_uri(location)
    return RemoteState(filesystem, root)


class LocalState:
    """A folder. A record is written beside its place, synced, and renamed into it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, name: str, data: bytes) -> None:
        faults.reached("state.put")
        path = self._root / name
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            part.replace(path)
        except OSError as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise _cannot("write", str(path), error) from error

    def read(self, name: str) -> bytes | None:
        path = self._root / name
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _cannot("read", str(path), error) from error

    def list(self, prefix: str) -> list[str]:
        found = []
        for folder, _, names in os.walk(self._root / prefix):
            base = Path(folder).relative_to(self._root)
            found += [str(base / name) for name in names if not name.startswith(".")]
        return sorted(found)

    def delete(self, name: str) -> None:
        path = self._root / name
        try:
            path.unlink(missing_ok=True)
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise _cannot("delete", str(path), error) from error


class RemoteState:
    """An object store: a put is one upload, which is atomic there."""

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self._fs = filesystem
        self._root = root.rstrip("/")

    def put(self, name: str, data: bytes) -> None:
        faults.reached("state.put")
        path = f"{self._root}/{name}"
        try:
            with self._fs.open_output_stream(path) as out:
                out.write(data)
        except OSError as error:
            raise _cannot("write", path, error) from error

    def read(self, name: str) -> bytes | None:
        path = f"{self._root}/{name}"
        try:
            with self._fs.open_input_stream(path) as source:
                return bytes(source.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _cannot("read", path, error) from error

    def list(self, prefix: str) -> list[str]:
        selector = fs.FileSelector(f"{self._root}/{prefix}", recursive=True, allow_not_found=True)
        try:
            infos = self._fs.get_file_info(selector)
        except OSError as error:
            raise _cannot("list", f"{self._root}/{prefix}", error) from error
        return sorted(i.path.removeprefix(f"{self._root}/") for i in infos if i.type == fs.FileType.File)

    def delete(self, name: str) -> None:
        try:
            self._fs.delete_file(f"{self._root}/{name}")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _cannot("delete", f"{self._root}/{name}", error) from error


class Folder:
    """A store that is a folder of another one."""

    def __init__(self, store: StateStore, name: str) -> None:
        self._store = store
        self._prefix = f"{name}/"

    def put(self, name: str, data: bytes) -> None:
        self._store.put(self._prefix + name, data)

    def read(self, name: str) -> bytes | None:
        return self._store.read(self._prefix + name)

    def list(self, prefix: str) -> list[str]:
        return [n.removeprefix(self._prefix) for n in self._store.list(self._prefix + prefix)]

    def delete(self, name: str) -> None:
        self._store.delete(self._prefix + name)


def _cannot(verb: str, path: str, error: OSError) -> TransientError:
    hint = "Free some space; the sink goes on by itself." if error.errno == errno.ENOSPC else ""
    return TransientError(f"could not {verb} the state record {path}", detail=str(error), hint=hint)
