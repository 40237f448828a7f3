"""A disk that loses everything that was not synced: the worst that a power cut can leave behind.

While a `Disk` is installed, every `os.fsync` of the process is recorded below `notes`: the contents of a file by a hard
link, of a folder its names. `cut` builds an image of the tree from these notes alone, `restart` replaces the tree by
it. A file that was never synced is missing, or empty if its name was synced; a name that was removed without a sync
reappears.

SQLite syncs by itself, below Python: its files are left alone. So are those listed in `spared`.
"""

import json
import os
import shutil
import stat
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SQLITE = ("catalog.db", "catalog.db-wal", "catalog.db-shm", "catalog.db.lock")


@dataclass
class Disk:
    """The folder `root`; `notes` is outside it, on the same file system."""

    root: Path
    notes: Path
    spared: Collection[str] = SQLITE
    """Names that are left alone, in every folder."""
    _real: Any = field(default=os.fsync)

    def install(self, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
        """Record the syncs of this process from now on. Existing files count as synced."""
        self.notes.mkdir(parents=True, exist_ok=True)
        for folder, _, files in os.walk(self.root):
            for path in (Path(folder), *(Path(folder) / name for name in files)):
                self._note(path)
        if monkeypatch is not None:
            monkeypatch.setattr(os, "fsync", self.fsync)
        else:
            os.fsync = self.fsync  # type: ignore[assignment]  # nobody here passes an object

    def fsync(self, descriptor: int) -> None:
        self._real(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_relative_to(self.root):
            self._note(path)

    def _note(self, path: Path) -> None:
        found = path.stat()
        note: dict[str, Any] = {"inode": found.st_ino}
        if stat.S_ISDIR(found.st_mode):
            note["names"] = {entry.name: [entry.inode(), entry.is_dir()] for entry in os.scandir(path)}
        else:
            kept = self.notes / str(found.st_ino)
            if not kept.exists():
                os.link(path, kept)
            note["size"] = found.st_size
        with (self.notes / "log").open("a") as log:
            log.write(json.dumps(note) + "\n")

    def cut(self) -> None:
        """Cut the power: nothing that happens later leaves a trace."""
        lines = (self.notes / "log").read_text().splitlines() if (self.notes / "log").exists() else []
        folders: dict[int, dict[str, Any]] = {}
        sizes: dict[int, int] = {}
        for note in map(json.loads, lines):
            if "names" in note:
                folders[note["inode"]] = note["names"]
            else:
                sizes[note["inode"]] = note["size"]
        image = self.notes / "image"
        image.mkdir()
        self._restore(image, self.root.stat().st_ino, folders, sizes)
        self._spare(image)

    def restart(self) -> None:
        """Restore the power: the tree becomes what the cut left of it."""
        shutil.rmtree(self.root)
        (self.notes / "image").rename(self.root)
        shutil.rmtree(self.notes)

    def _restore(self, into: Path, inode: int, folders: dict[int, dict[str, Any]], sizes: dict[int, int]) -> None:
        for name, (child, is_folder) in folders.get(inode, {}).items():
            if name in self.spared:
                continue
            place = into / name
            if is_folder:
                place.mkdir()
                self._restore(place, child, folders, sizes)
            else:
                kept = self.notes / str(child)
                place.write_bytes(kept.read_bytes()[: sizes[child]] if child in sizes else b"")

    def _spare(self, image: Path) -> None:
        for folder, names, files in os.walk(self.root):
            for name in [n for n in (*names, *files) if n in self.spared]:
                source, target = Path(folder) / name, image / Path(folder).relative_to(self.root) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                (shutil.copytree if source.is_dir() else shutil.copy2)(source, target)
