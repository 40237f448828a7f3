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


class CpuShare:
    """A control group whose processes together get a share of one core. Children are in it as well."""

    def __init__(self, name: str, share: float) -> None:
        """Raises OSError where the user may not make control groups."""
        quota = round(share * _PERIOD)
        first = _FIRST.is_dir()
        self._folder = (_FIRST if first else _SECOND) / f"calve-{os.getpid()}-{name}"
        self._folder.mkdir()
        if first:
            (self._folder / "cpu.cfs_quota_us").write_text(str(quota), encoding="ascii")
        else:
            (self._folder / "cpu.max").write_text(f"{quota} {_PERIOD}", encoding="ascii")

    def add(self, pid: int) -> None:
        """Limit a process, and all that it starts from now on."""
        (self._folder / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Remove the group, once its processes have ended."""
        deadline = time.monotonic() + _END_SECONDS
        while True:
            try:
                self._folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return
