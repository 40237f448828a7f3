"""The log of the JVM and the Python workers, `<home>/logs/spark.log`: bounded, also while Spark runs.

The JVM keeps the file open for appending, so a large log is copied to `spark.log.1` and truncated in place. Lines that
are written between the two are lost.
"""

import logging
import shutil
import threading
from pathlib import Path

from calve.errors import InvalidInput
from calve.storage.local_folders import make_private

LOG_BYTES = 8 << 20
"""Size from which the log is rotated."""
LOOK_SECONDS = 5.0

_log = logging.getLogger(__name__)
_watched: dict[Path, threading.Thread] = {}


def log_file(home: Path) -> Path:
    """The path of the log of a home."""
    return home / "logs" / "spark.log"


def open_log(home: Path) -> Path:
    """Create the log if it is missing, and rotate a large one; returns its path. Raises InvalidInput."""
    log = log_file(home)
    try:
        make_private(log.parent)
        log.touch()
    except OSError as error:
        raise InvalidInput(
            f'cannot write to "{home}"', detail=f"{error}.", hint="Choose another folder with CALVE_HOME or --home."
        ) from error
    rotate_log(home)
    return log


def rotate_log(home: Path, at_least: int = LOG_BYTES) -> bool:
    """Rotate the log if it has at least this many bytes; returns whether it had."""
    log = log_file(home)
    try:
        if log.stat().st_size < at_least:
            return False
        shutil.copyfile(log, log.with_suffix(".log.1"))
        with log.open("r+b") as file:
            file.truncate()
    except FileNotFoundError:  # Spark was not started by this home
        return False
    except OSError as error:
        _log.warning("the log %s could not be rotated: %s", log, error)
        return False
    return True


def watch_log(home: Path) -> None:
    """Rotate the log of a home by size from now on, as long as this process lives."""
    thread = _watched.get(home)
    if thread is None or not thread.is_alive():
        thread = threading.Thread(target=_watch, args=(home,), name="calve-spark-log", daemon=True)
        _watched[home] = thread
        thread.start()


def _watch(home: Path) -> None:
    never = threading.Event()
    while not never.wait(LOOK_SECONDS):
        rotate_log(home)
