"""A folder in memory for the files of tests, where the machine has room for them.

Every commit syncs half a dozen files. On a disk that is most of what a small pipeline waits for, and no test needs its
files after the machine went down: what would be left then, `powercut.py` knows from the calls of `fsync`, on any file
system.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path

SHARED = Path("/dev/shm")  # noqa: S108 - others cannot list what is made there
ROOM = 8 << 30
"""A whole run leaves less than half of this behind."""
_PREFIX = "calve-tests-"


def keep_files_in_memory() -> None:
    """Make this process and those that it starts put temporary files there. A `TMPDIR` that is set stays."""
    if "TMPDIR" in os.environ or not has_room(SHARED):
        return
    for left in SHARED.glob(f"{_PREFIX}*"):
        if not Path(f"/proc/{left.name.removeprefix(_PREFIX)}").exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = SHARED / f"{_PREFIX}{os.getpid()}"
    folder.mkdir()
    folder.chmod(0o711)  # servers of tests run as other users; whoever makes a folder there says who may read it
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def remove_at_exit() -> None:
    """Give the memory back, last of all; without this call, the next run does."""
    folder = SHARED / f"{_PREFIX}{os.getpid()}"
    if folder.is_dir():
        Finalize(None, shutil.rmtree, [folder], {"ignore_errors": True}, exitpriority=-1000)


def has_room(folder: Path) -> bool:
    """Whether the files of a run fit there, programs among them, and into the memory of this machine."""
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK) or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    return min(shutil.disk_usage(folder).free, available_memory()) >= ROOM


def available_memory() -> int:
    """Bytes that programs can have without swapping; zero where the system is not Linux."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0
