"""Whether a process still exists.

A process number alone does not identify a process: numbers are reused, and mean nothing on another machine or in
another container. `this_process` describes the current one, and `exists` answers for a description where it can.
"""

import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

from calve.model.health import ProcessIdentity


def this_process() -> ProcessIdentity:
    """Describe the current process."""
    pid = os.getpid()
    return ProcessIdentity(socket.gethostname(), _machine(), pid, _started(pid) or "")


def exists(process: ProcessIdentity) -> bool | None:
    """Whether the process exists; None if that cannot be determined here, since it runs on another machine."""
    if (process.host, process.machine) != (socket.gethostname(), _machine()):
        return None
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError, OSError):
        pass  # it exists and belongs to another user, or the number is none: the start time decides
    started = _started(process.pid)
    if started is None:
        return False
    return not (process.started and started) or started == process.started


@cache
def _machine() -> str:
    """Identifies the boot and the namespace in which process numbers are valid."""
    parts = []
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(os.readlink("/proc/self/ns/pid"))  # noqa: PTH115 - a name, not a path
    except (OSError, ValueError):
        parts.append(sys.platform)
    return " ".join(parts)


def _started(pid: int) -> str | None:
    """When a process started, None if it does not exist or is a zombie, empty if the system does not tell."""
    if Path("/proc/self/stat").exists():
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        fields = text[text.rindex(")") + 2 :].split()  # the name before it may contain anything
        return None if fields[0] in {"Z", "X"} else fields[19]
    try:
        shown = subprocess.run(  # noqa: S603 - a fixed command with a number
            ["ps", "-o", "lstart=", "-p", str(pid)],  # noqa: S607 - where it is differs by system
            capture_output=True,
            text=True,
            check=False,
            timeout=5,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return shown.stdout.strip() or None
