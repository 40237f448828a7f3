"""Named failpoints: a no-op in production, a crash or an error in tests.

`reached("commit.before")` marks a point right before or after a durable step. A test arms points through the
environment variable `CALVE_FAULTS` (which works across processes) or through `install` (which lets a simulation
interleave runs):

    CALVE_FAULTS="commit.after:2=kill; record.before=error"

means: SIGKILL this process when `commit.after` is reached the second time, raise a transient error when
`record.before` is reached the first time. Actions: `kill`, `error` (transient), `error*` (every time from then on),
`pause` (wait until the file named by `CALVE_FAULTS_GATE` disappears), `once` (a transient error in the first process
that creates that file, and in no other).
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from calve.errors import InvalidInput, TransientError

POINTS = frozenset(
    {
        "files.before",  # before any table file of a batch is written
        "files.after",  # all table files of a batch are written
        "manifests.after",  # manifests are written, nothing is recorded
        "record.before",  # before the checkpoint's record (with its committable) is written
        "record.after",  # the record is durable, Spark does not know yet
        "totals.parts",  # tasks have written the parts of a view's totals, no record names them
        "totals.merged",  # tasks have merged pieces of a view's totals, no record names the parts
        "stage.before",  # before the changes of a checkpoint are staged in the state location
        "stage.after",  # they are staged, nothing is recorded
        "spark-commit.before",  # foreachBatch returns: Spark writes its commit log next
        "schema.before",  # columns or partitions of the table are about to change
        "schema.after",  # they changed, nothing uses them yet
        "upgrade.before",  # the format version of the table is about to be raised
        "upgrade.after",  # the table has the new version, and a snapshot that assigns row ids
        "claim.before",
        "claim.after",
        "rows.before",  # claimed, the rows that the sink adopts are about to be checked
        "rows.after",  # they are valid, the table does not state it yet
        "adopt.before",  # claimed, the adoption record is not written
        "adopt.after",
        "resolve.before",  # positions of deleted rows are about to be looked up
        "resolve.after",  # deletes by position are written
        "index.before",  # before data files are added to the key index
        "index.after",  # the manifest of the index is written, nothing is committed
        "index.merge.before",  # in a thread of its own: runs of the index are about to be merged
        "index.merge.after",  # they are merged, no manifest refers to the result
        "manifest-list.before",
        "manifest-list.after",
        "commit.before",  # the request is about to be sent
        "commit.after",  # the catalog applied it, the response is not read
        "receipt.before",  # the response is read, nothing is cleaned up
        "receipt.after",
        "expiry.before",  # snapshots are about to expire
        "expiry.journal",  # the journal names them, the table still has them
        "expiry.after",  # they are expired, their files exist
        "removal.before",  # files of expired snapshots are about to be removed
        "removal.files",  # data, deletes and statistics are removed
        "removal.manifests",  # manifests, too
        "removal.lists",  # manifest lists, too; the journal still names them
        "removal.after",  # the journal no longer names them
        "orphans.listed",  # the folder of a table is listed
        "orphans.work",  # work in flight is read, the metadata is not
        "orphans.noted",  # orphans are noted, none is removed
        "orphans.remove",  # some are about to be removed
        "maintain.before",
        "maintain.after",
        "beside.asked",  # a process beside has got its work, and begins
        "beside.done",  # its files are written, nothing is committed
        "state.put",  # any write to the state location
        "deadletter.before",  # dead letters of a checkpoint are written, not committed to their table
        "deadletter.after",  # they are committed, the checkpoint is not recorded
        "replay.before",  # dead letters to replay are chosen, nothing is written
        "replay.requested",  # a request in the state location names them, nothing is recorded
        "replay.committed",  # their rows are in the table, and the letters still in theirs
        "replay.removed",  # the letters are removed, the request still exists
        "ledger.before",  # file source: before its ledger entry is written
        "ledger.after",
        "metastore.files",  # data files of a modification of the metastore are written
        "metastore.before",  # its commit is about to be sent
        "metastore.after",  # the catalog applied it, the response is not read
        "metastore.expiry",  # before expired files are removed
        "load",  # the table is about to be loaded from the catalog
        "task.write",  # in a task, while it writes a file
    }
)

Hook = Callable[[str], None]


@dataclass(frozen=True)
class Fault:
    """The action at the n-th visit of a point."""

    point: str
    nth: int
    action: str


class FaultPlan:
    """Counts visits of points and acts on the planned ones."""

    def __init__(self, faults: tuple[Fault, ...], gate: Path | None = None) -> None:
        self._faults = faults
        self._gate = gate
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, point: str) -> None:
        with self._lock:
            self._seen[point] += 1
            count = self._seen[point]
        for fault in self._faults:
            if fault.point == point and (count == fault.nth or (count > fault.nth and fault.action.endswith("*"))):
                self._act(fault)

    def _act(self, fault: Fault) -> None:
        action = fault.action.rstrip("*")
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == "error":
            raise TransientError(f"injected failure at {fault.point}")
        elif action == "pause" and self._gate is not None:
            while self._gate.exists():
                time.sleep(0.02)
        elif action == "once" and self._gate is not None:
            with suppress(FileExistsError):
                self._gate.touch(exist_ok=False)
                raise TransientError(f"injected failure at {fault.point}")


def parse(text: str, gate: Path | None = None) -> FaultPlan:
    """Parse the syntax of `CALVE_FAULTS`. Raises InvalidInput."""
    faults = []
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        place, _, action = part.partition("=")
        point, _, nth = place.partition(":")
        if point not in POINTS:
            raise InvalidInput(f'unknown failpoint "{point}"', hint=f"Failpoints are {', '.join(sorted(POINTS))}.")
        if action.rstrip("*") not in {"kill", "error", "pause", "once"}:
            raise InvalidInput(f'unknown fault action "{action}"', hint="Actions are kill, error, pause and once.")
        faults.append(Fault(point, int(nth or 1), action))
    return FaultPlan(tuple(faults), gate)


def _from_environment() -> Hook | None:
    text = os.environ.get("CALVE_FAULTS")
    gate = os.environ.get("CALVE_FAULTS_GATE")
    return parse(text, Path(gate) if gate else None) if text else None


_hook: Hook | None = _from_environment()


def install(hook: Hook | None) -> None:
    """Replace the hook of this process's failpoints; None removes it."""
    global _hook  # noqa: PLW0603 - one switch for the process is the point of this module
    _hook = hook


def reached(point: str) -> None:
    """Mark that execution reached a named point."""
    if _hook is not None:
        _hook(point)
