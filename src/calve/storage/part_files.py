"""Files that are written beside their place and then renamed into it, so that readers see a whole file or none.

Several processes and threads may write one file at once, each its own part. A process that is killed leaves its part
behind; `remove_abandoned` finds it by the times of the filesystem alone, so machines that share a folder may have
different clocks. A writer whose part is gone, since it was suspended for that long, fails and tries again.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path

ABANDONED_AFTER_S = 3600
"""A part that is so much older than the last new name in its folder has no writer anymore."""
_END = ".part"


def part_of(file: Path) -> Path:
    """Where this thread writes a file before it takes its place."""
    return file.with_name(f".{file.name}.{os.getpid()}.{threading.get_ident()}{_END}")


def is_part(name: str) -> bool:
    """Whether a file of that name is not in its place yet."""
    return name.startswith(".") and name.endswith(_END)


def remove_abandoned(folder: Path) -> None:
    """Remove parts that killed processes left in a folder; what cannot be removed stays."""
    with suppress(OSError), os.scandir(folder) as entries:
        newest = folder.stat().st_mtime
        for entry in entries:
            if is_part(entry.name):
                _remove_if_older(entry, newest - ABANDONED_AFTER_S)


def _remove_if_older(part: os.DirEntry[str], limit: float) -> None:
    with suppress(OSError):
        if part.stat(follow_symlinks=False).st_mtime < limit:
            Path(part.path).unlink()
