"""Local files that survive a power failure: contents and names are on disk before anything durable refers to them.

A filesystem writes back when it likes. After a power failure a complete file may be truncated or empty, and a visible
name may be gone, unless the file and every folder on its path were synced. Code that durably records the name of a file
calls `sync` on that file first. Any process may have written it: syncing flushes the page cache of the machine, not
buffers of a process.
"""

import errno
import io
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_NOT_FOR_FOLDERS = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.EACCES, errno.EPERM})
"""Errors of filesystems that persist names by themselves, and of folders that this process may not sync."""
_AT_ONCE = 8
"""Files that are synced concurrently: a filesystem merges concurrent syncs."""


class _KnownFolders:
    """Folders whose own names are on disk, by path and inode: a folder that was recreated is another one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inodes: dict[Path, tuple[int, int]] = {}

    def knows(self, folder: Path) -> bool:
        with self._lock:
            return self._inodes.get(folder) == _inode(folder)

    def add(self, folder: Path) -> None:
        with self._lock:
            self._inodes[folder] = _inode(folder)

    def forget(self, folder: Path) -> None:
        with self._lock:
            self._inodes.pop(folder, None)


_known = _KnownFolders()


class DurableFile(io.BufferedWriter):
    """A new file that is on disk, with its name, once it is closed. Closing raises OSError when it is not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(io.FileIO(path, "wb"))

    def close(self) -> None:
        """Complete the file."""
        if self.closed:
            return
        try:
            self.flush()
            os.fsync(self.fileno())
        finally:
            super().close()
        sync_folder(self._path.parent)


def sync(files: Sequence[Path]) -> None:
    """Sync files, some at a time, then their names, to disk. Raises OSError when that is not certain."""
    if len(files) > 1:
        with ThreadPoolExecutor(min(_AT_ONCE, len(files))) as pool:
            list(pool.map(_sync, files))
    else:
        for file in files:
            _sync(file)
    for folder in dict.fromkeys(file.parent.absolute() for file in files):
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder, and the name of the folder itself, to disk. Raises OSError."""
    folder = folder.absolute()
    _sync_names(folder)
    while folder != folder.parent and not _known.knows(folder):
        _sync_names(folder.parent)
        _known.add(folder)
        folder = folder.parent


def removed(folder: Path) -> None:
    """Note that a folder was removed: if it is recreated, its name has to be synced again."""
    _known.forget(folder.absolute())


def _sync_names(folder: Path) -> None:
    try:
        _sync(folder)
    except OSError as error:
        if error.errno not in _NOT_FOR_FOLDERS:
            raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _inode(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino
