"""Rewrites files, and indexes them, in processes beside this one, which leave the cores to other work of the machine.

    here: a thread for each process ──► work, pickled ──► standard input        a process: works, at low priority
                                    ◄── outcome, pickled ◄── standard output

For sinks whose driver and executors share one machine. A thread of this process would compete with the sink's own for
the interpreter's lock, and a Spark task costs a JVM that the sink's batches may not need otherwise. The priority is low
and not the lowest: such a process gets all that is idle, and at least about a tenth of a core however busy the sink
is, so that maintenance is never starved. Files for which that is too little, which are overdue, are rewritten at the
priority of this process.

The processes are shared by all sinks and end after a while without work, with this process, and when they are told to:
then they remove the files of the bundle in progress first. The files of one that is killed are removed here. Only if
this process is killed as well are orphan files left.
"""

import atexit
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import IO, TypeVar, cast

import pyarrow as pa

from calve import faults
from calve.errors import CalveError, TerminalError, TransientError
from calve.maintain.rewrite import Bundle, Outcome, discard_unreported, outcomes_of, rewrite_bundle

NICENESS = 10
"""A tenth of the weight of other processes: batches took a tenth longer beside it, and a fifth to two fifths with 5."""
IDLE_SECONDS = 120.0
"""How long a process waits for more work: starting one takes about a second of CPU time."""
END_SECONDS = 5.0
"""How long a process may remove its files before it is killed."""
WAIT_SECONDS = 0.5

T = TypeVar("T")

_START = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
if hasattr(os, "nice"):
    os.nice(int(sys.argv[1]))
sys.path[:] = sys.argv[2:]
from calve.maintain.beside import main
main()
"""
"""Imports take most of the time of a start. Ctrl-C reaches all processes: this one tells the others."""

Check = Callable[[], None]
"""Raises if the work has to end."""
Work = Callable[[Check], object]
"""Can be pickled."""


class _Ended(Exception):
    """Nobody waits for the outcome any more."""


class _Died(Exception):
    """The process ended without an outcome."""


class ProcessBeside:
    """One process; for one thread at a time, but for `end`."""

    def __init__(self, niceness: int) -> None:
        # -P: imports before the path is set must not find files of the working directory
        command = [sys.executable, "-P", "-c", _START, str(niceness), *sys.path]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 - our own
        self._requests, self._outcomes = cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)
        self.used = False
        self._ends_at: float | None = None

    def do(self, work: Work) -> object:
        """Do some work; its value, or the CalveError that it ended with. Raises _Died."""
        try:
            pickle.dump(work, self._requests)
            self._requests.flush()
            faults.reached("beside.asked")
            outcome: object = pickle.load(self._outcomes)  # noqa: S301 - of our own process
        except (EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
            raise _Died from error
        faults.reached("beside.done")
        self.used = True
        return outcome

    def end(self) -> None:
        """Tell it to end; kill it if it was told a while ago."""
        now = time.monotonic()
        if self._ends_at is None:
            self._ends_at = now + END_SECONDS
            with suppress(OSError, ValueError):
                self._requests.close()
        elif now > self._ends_at:
            self._process.kill()

    def close(self) -> int:
        """End it and wait for that; returns its exit code."""
        self.end()
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        with suppress(OSError, ValueError):
            self._outcomes.close()
        return code


class ProcessesBeside:
    """The processes of this one. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._idle: defaultdict[int, list[ProcessBeside]] = defaultdict(list)
        """By niceness, which a process cannot lower again."""
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(most)

    def rewrite(
        self, bundles: Sequence[Bundle], at_once: int, check: Check, niceness: int = NICENESS
    ) -> Generator[Outcome, None, None]:
        """Rewrite bundles, at most this many at once; yields outcomes as they come. `check` raises to cancel.

        Bundles that fail leave no files, and neither do unfinished ones if the iterator is closed early, or `check`
        raises.
        """
        working: set[ProcessBeside] = set()
        ended = threading.Event()

        def run(bundle: Bundle) -> Outcome:
            def undo() -> None:
                discard_unreported(bundle)

            return cast("Outcome", self._outcome(partial(rewrite_bundle, bundle), niceness, working, ended, undo))

        def cancel() -> None:
            ended.set()
            for process in tuple(working):
                process.end()

        return outcomes_of(bundles, run, at_once, cancel, check)

    def call(self, work: Callable[[], T]) -> T:
        """Return the value of a call that can be pickled. Raises CalveError, TransientError if the process dies."""
        outcome = self._outcome(partial(_unchecked, work), NICENESS, set(), threading.Event(), lambda: None)
        if isinstance(outcome, CalveError):
            raise outcome
        return cast("T", outcome)

    def _outcome(
        self,
        work: Work,
        niceness: int,
        working: set[ProcessBeside],
        ended: threading.Event,
        undo: Callable[[], None],
    ) -> object:
        """Let a process do some work; `undo` removes what one that died may have left."""
        while not self._slots.acquire(timeout=WAIT_SECONDS):
            if ended.is_set():
                return _failure("it was cancelled")
        try:
            while not ended.is_set():
                process = self._taken(niceness)
                working.add(process)
                try:
                    outcome = process.do(work)
                except _Died:
                    code = process.close()
                    undo()
                    if process.used:  # it may have ended for want of work; a new one does the same work
                        continue
                    return _failure(f"it ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}")
                finally:
                    working.discard(process)
                with self._lock:
                    self._idle[niceness].append(process)
                return outcome
            return _failure("it was cancelled")
        except TransientError as error:
            return error
        finally:
            self._slots.release()

    def _taken(self, niceness: int) -> ProcessBeside:
        with self._lock:
            if self._idle[niceness]:
                return self._idle[niceness].pop()
        try:
            return ProcessBeside(niceness)
        except OSError as error:
            raise _failure(f"it could not be started: {error}") from error

    def close(self) -> None:
        """End idle processes."""
        with self._lock:
            idle = [process for processes in self._idle.values() for process in processes]
            self._idle.clear()
        for process in idle:
            process.end()
        for process in idle:
            process.close()


def _failure(what: str) -> TransientError:
    return TransientError(
        "maintenance could not be done",
        detail=f"A process of its own does it; {what}.",
        hint="It is tried again later. If that process is killed for want of memory, use fewer MAINTENANCE CORES.",
    )


def _unchecked(work: Callable[[], T], _check: Check) -> T:
    return work()


PROCESSES = ProcessesBeside(os.cpu_count() or 1)
"""Shared by all sinks."""
atexit.register(PROCESSES.close)


# ---- in such a process


def main() -> None:
    """Do the work that arrives on standard input until it ends, or none arrives for a while."""
    outcomes = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write among the outcomes
    pa.set_cpu_count(1)
    ended = threading.Event()
    works: queue.Queue[Work | None] = queue.Queue()
    threading.Thread(target=_receive, args=(works, ended), daemon=True).start()
    with suppress(_Ended, queue.Empty, OSError):
        while (work := works.get(timeout=IDLE_SECONDS)) is not None:
            pickle.dump(_outcome(work, ended), outcomes)
            outcomes.flush()
    os._exit(0)  # the other thread waits for its input


def _receive(works: "queue.Queue[Work | None]", ended: threading.Event) -> None:
    try:
        with suppress(EOFError, OSError, pickle.UnpicklingError):  # the other process has ended, maybe while it wrote
            while True:
                works.put(pickle.load(sys.stdin.buffer))  # noqa: S301 - of the process that started this one
    finally:  # also if some work cannot be unpickled: nobody would wait for its outcome in vain
        ended.set()
        works.put(None)


def _outcome(work: Work, ended: threading.Event) -> object:
    def check() -> None:
        if ended.is_set():
            raise _Ended

    try:
        return work(check)
    except CalveError as error:
        return error
    except _Ended:
        raise
    except Exception:  # noqa: BLE001 - a bug: told where somebody looks
        return TerminalError(
            "maintenance failed unexpectedly",
            detail=traceback.format_exc(),
            hint="This is a bug of calve: report it with these lines. The sink goes on without maintenance.",
        )
