"""The status folder of a home: one small JSON file per sink, and a log of its commits beside it.

    status/<sink>.json      the newest `Status`, replaced atomically
    status/<sink>.commits   one `CommitReport` per line, oldest first; shortened now and then

Any process may read them at any time. A file may be damaged, or written by another version: unknown fields are
ignored, missing ones get their defaults, and what cannot be used is reported as the status `unknown`. `read_statuses`
and `read_status` tell the truth about processes that died: a status that needs a living process and has none is `gone`.
"""

import json
import logging
import threading
import time
import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from functools import cache, lru_cache
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from calve.model.health import COMMITS_KEPT, CommitReport, Health, Status
from calve.model.names import name_of_segment, path_segment
from calve.storage.local_folders import make_private
from calve.storage.part_files import part_of, remove_abandoned
from calve.watch import process

_log = logging.getLogger("calve")

MISSED_HEARTBEATS = 4
"""Heartbeats that may be missing before a process of another machine counts as gone."""
_WITHOUT_HEARTBEAT_MS = 60_000
"""The same for statuses of versions that wrote no heartbeats."""

_COMMIT_BYTES = 1024
"""A line of a log of commits is shorter, unless its times have many digits."""

_HEALTHS = frozenset(health.value for health in Health)

T = TypeVar("T")


def status_folder(home: Path) -> Path:
    """The folder with the statuses of a home's sinks."""
    return home / "status"


def status_file(home: Path, sink: str) -> Path:
    """The path of a sink's status file."""
    return status_folder(home) / f"{path_segment(sink)}.json"


def commits_file(home: Path, sink: str) -> Path:
    """The path of the log of a sink's commits."""
    return status_folder(home) / f"{path_segment(sink)}.commits"


# ---- reading


def read_statuses(home: Path, now_ms: int | None = None, running: Mapping[str, Status] | None = None) -> list[Status]:
    """Return the current status of every sink of a home that ever reported one, by name.

    Those that this process runs are given by name: what their files say is only older.
    """
    known = running or {}
    files = sorted(status_folder(home).glob("*.json"))
    found = [known.get(_sink_of(file)) or read_status(file, now_ms) for file in files]
    return [status for status in found if status is not None]


def read_status(file: Path, now_ms: int | None = None) -> Status | None:
    """Return the current status of a sink, None without one; see `judged`."""
    stored = stored_status(file)
    return None if stored is None else judged(stored, time.time_ns() // 1_000_000 if now_ms is None else now_ms)


def stored_status(file: Path) -> Status | None:
    """Return a status as it was written last, None without one. For an unreadable file its cause says so."""
    try:
        return _stored(file, _mark_of(file))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        cause = f"its status in {file} cannot be read: {type(error).__name__}: {error}"
        return replace(Status.unknown(_sink_of(file), 0), health=Health.UNKNOWN, cause=cause)


_Mark = tuple[int, int, int]
"""Inode, size and time of a file: another one after every change."""


def _mark_of(file: Path) -> _Mark:
    """Raises OSError."""
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=256)
def _stored(file: Path, _mark: _Mark) -> Status:
    """Decode a file. A page and its metrics read all of them every second, and most are as they were."""
    body = json.loads(file.read_text(encoding="utf-8"))
    stored = _decode(Status, {**asdict(Status.unknown(_sink_of(file), 0)), **body})
    if stored.health is Health.UNKNOWN and body.get("health") != Health.UNKNOWN:
        return replace(stored, cause=f'its state "{body.get("health")}" was reported by a newer version of calve')
    return stored


def _sink_of(file: Path) -> str:
    return name_of_segment(file.stem).encode("utf-8", "replace").decode()  # a name may be any bytes


def judged(status: Status, now_ms: int) -> Status:
    """A stored status, with the state that holds now: `gone` if it needs a living process and that has died.

    On the machine of the run its process is looked up, so this is known at once; elsewhere it follows from missed
    heartbeats. A process that exists and writes no heartbeats is stalled: it is stopped, or cannot write its status.
    """
    if not status.health.active:
        return status
    there = None if status.process is None else process.exists(status.process)
    beat = status.heartbeat_ms or status.updated_ms
    silent_ms = now_ms - beat
    silent = silent_ms > (MISSED_HEARTBEATS * status.heartbeat_every_ms or _WITHOUT_HEARTBEAT_MS)
    was = f'the sink was "{status.health}"' + (f" ({status.cause})" if status.cause else "")
    if there is False:
        cause = f"its process {_name(status)} no longer exists; {was}"
        return status.entered(Health.GONE, beat, cause, "See the log of that process, and start it again.")
    if not silent:
        return status
    silence = f"no heartbeat for {silent_ms // 1000} s"
    if there is None:
        cause = f"{silence}; {was}" if status.process is None else f"{silence} of process {_name(status)}; {was}"
        return status.entered(Health.GONE, beat, cause, "See the log of that process, and start it again.")
    cause = f"{silence}, although process {_name(status)} exists: it is suspended or cannot write its status; {was}"
    return status.entered(Health.STALLED, beat, cause, "Check the log of that process and the space left for its home.")


def _name(status: Status) -> str:
    found = status.process
    return "" if found is None else f"{found.pid} on {found.host}"


def read_commits(home: Path, sink: str, limit: int = COMMITS_KEPT) -> list[CommitReport]:
    """Return the last commits of a sink, oldest first, as far as they are kept. Damaged lines are left out."""
    return list(CommitLog(commits_file(home, sink), limit).newest())


class CommitLog:
    """Follows the log of a sink's commits: what was read once is not read again. Any thread may use it."""

    def __init__(self, file: Path, limit: int = COMMITS_KEPT) -> None:
        self._file, self._limit = file, limit
        self._lock = threading.Lock()
        self._forget()

    def newest(self) -> tuple[CommitReport, ...]:
        """The last commits, oldest first; the same value while there are no new ones."""
        with self._lock:
            try:
                mark = _mark_of(self._file)
                if mark != self._mark:
                    self._read(mark)
            except OSError:
                self._forget()
            return self._found

    def _forget(self) -> None:
        self._mark: _Mark = (0, 0, 0)
        self._end = 0
        """What lies before it was read."""
        self._found: tuple[CommitReport, ...] = ()

    def _read(self, mark: _Mark) -> None:
        """Read what was added, or the end of a file that replaced the known one."""
        inode, size, _ = mark
        if inode != self._mark[0] or size < self._end:
            self._forget()
            self._end = max(0, size - self._limit * _COMMIT_BYTES)
        with self._file.open("rb") as log:
            log.seek(self._end)
            added = log.read()
        complete = added[: added.rfind(b"\n") + 1]  # the rest of the last line may follow
        self._end += len(complete)
        self._mark = mark
        self._found = (*self._found, *_commits_in(complete))[-self._limit :]


def _commits_in(lines: bytes) -> list[CommitReport]:
    found = []
    for line in lines.decode("utf-8", errors="replace").splitlines():
        try:
            found.append(_decode(CommitReport, json.loads(line)))
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return found


# ---- writing


def write_status(file: Path, status: Status) -> str:
    """Replace the status of a sink; returns why that failed, empty if it did not."""
    part = part_of(file)
    try:
        make_private(file.parent)
        part.write_text(_encode(status), encoding="utf-8")
        part.replace(file)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        return str(error)
    return ""


def append_commit(file: Path, report: CommitReport) -> None:
    """Add a commit to a log of commits."""
    try:
        make_private(file.parent)
        with file.open("a", encoding="utf-8") as log:
            log.write(_encode(report) + "\n")
    except OSError as error:
        _log.debug("the log of commits %s could not be written: %s", file, error)


def shorten_commits(file: Path) -> int:
    """Shorten a log of commits if it is twice as long as needed; returns its length.

    What killed processes left half written beside it goes, too.
    """
    remove_abandoned(file.parent)
    try:
        found = _commits_in(file.read_bytes())
    except OSError:
        return 0
    if len(found) < 2 * COMMITS_KEPT:
        return len(found)
    part = part_of(file)
    try:
        part.write_text("".join(_encode(r) + "\n" for r in found[-COMMITS_KEPT:]), encoding="utf-8")
        part.replace(file)
    except OSError as error:
        _log.debug("the log of commits %s could not be shortened: %s", file, error)
    return COMMITS_KEPT


def forget_status(home: Path, sink: str) -> None:
    """Remove the status of a dropped sink."""
    try:
        for file in (status_file(home, sink), commits_file(home, sink)):
            file.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("the status of sink %s could not be removed: %s", sink, error)


# ---- values to JSON and back


def _encode(value: Status | CommitReport) -> str:
    """JSON of a dataclass. Written at every commit: `asdict` would copy all of it first."""
    return json.dumps(value, default=vars)


def _decode(kind: type[T], body: object) -> T:
    """Build a dataclass from JSON. Unknown fields are ignored, missing ones get their defaults. Raises ValueError."""
    if not isinstance(body, Mapping):
        raise ValueError(f"expected an object, got {type(body).__name__}")  # noqa: TRY004 - invalid data, as other cases
    values: dict[str, Any] = {}
    declared: Any = kind
    for name, hint, required in _fields_of(declared):
        if name in body:
            values[name] = _value(hint, body[name], name)
        elif required:
            raise ValueError(f"{name} is missing")
    return kind(**values)


@cache
def _fields_of(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    hints = get_type_hints(kind)
    return tuple((f.name, hints[f.name], f.default is MISSING and f.default_factory is MISSING) for f in fields(kind))


def _value(hint: Any, value: Any, name: str) -> Any:
    if get_origin(hint) in {Union, types.UnionType}:
        if value is None:
            return None
        (hint,) = (kind for kind in get_args(hint) if kind is not types.NoneType)
    if get_origin(hint) is tuple:
        return _items(get_args(hint), value, name)
    if isinstance(hint, type) and is_dataclass(hint):
        return _decode(hint, value)
    expected = str if issubclass(hint, Health) else (int, float) if hint is float else hint
    if not isinstance(value, expected) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(f"wrong type of {name}")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{name} is not a number")
    if hint is Health:
        return Health(value) if value in _HEALTHS else Health.UNKNOWN
    return hint(value)


def _items(kinds: tuple[Any, ...], value: Any, name: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"wrong type of {name}")  # noqa: TRY004 - invalid data, as in the other cases
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_value(kinds[0], item, name) for item in value)
    return tuple(_value(kind, item, name) for kind, item in zip(kinds, value, strict=True))
