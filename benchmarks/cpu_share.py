"""A limit of CPU time for processes, so that a small machine stands for a larger one of slower cores."""

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

_PERIOD = 100_000
"""Microseconds: the kernel's default."""
_END_SECONDS = 30
_FIRST, _SECOND = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
"""Where Linux has its control groups, of version 1 and of version 2."""


def limit(pid: int, group: Path) -> None:
    """Put a process into a group, and with it all that it starts from now on."""
    (group / "cgroup.procs").write_text(str(pid), encoding="ascii")


class CpuShare:
    """A control group whose processes together get a share of one core."""

    def __init__(self, name: str, share: float) -> None:
        """Raises OSError where the user may not make control groups."""
        quota = round(share * _PERIOD)
        first = _FIRST.is_dir()
        self.group = (_FIRST if first else _SECOND) / f"calve-{os.getpid()}-{name}"
        self.group.mkdir()
        if first:
            (self.group / "cpu.cfs_quota_us").write_text(str(quota), encoding="ascii")
        else:
            (self.group / "cpu.max").write_text(f"{quota} {_PERIOD}", encoding="ascii")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Remove the group, once its processes have ended."""
        deadline = time.monotonic() + _END_SECONDS
        while True:
            try:
                self.group.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return
