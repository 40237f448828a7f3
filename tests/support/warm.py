"""Processes that start at once: each is forked from one that has imported calve, and uses a JVM that is already warm.

A process is a real one: it can be killed, and what it kept in memory is gone. Its JVM survives it, as executors of a
cluster would; before the next process gets it, everything that the last one left in there is stopped. Tasks do not see
the environment of the process, so failpoints in tasks need a process and a JVM of their own.
"""

import atexit
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

from py4j.java_gateway import JavaGateway
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway

from calve import faults
from calve.spark import session
from tests.support import warm_workers
from tests.support.jvm import QUICK

_FORKS = multiprocessing.get_context("forkserver")
_PRELOADED = ["tests.faults.process", "calve.cli.main", "calve.pipeline.supervisor", "tests.support.warm"]
_GATEWAY = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
_WORKERS = {"spark.python.daemon.module": warm_workers.__name__}
_ANSWER_SECONDS = 180

T = TypeVar("T")


def together(*calls: Callable[[], T]) -> list[T]:
    """What calls return that begin at the same moment, each in a process of its own. They are pickled."""
    _FORKS.set_forkserver_preload(_PRELOADED)
    start = _FORKS.Barrier(len(calls))
    pipes = [_FORKS.Pipe(duplex=False) for _ in calls]
    processes = [
        _FORKS.Process(target=_answer, args=(call, start, theirs), daemon=True)
        for call, (_, theirs) in zip(calls, pipes, strict=True)
    ]
    for process, (_, theirs) in zip(processes, pipes, strict=True):
        process.start()
        theirs.close()
    answers: list[T] = []
    try:
        for ours, _ in pipes:
            with ours:
                if not ours.poll(_ANSWER_SECONDS):
                    raise TimeoutError("a process did not answer")
                answers.append(ours.recv())  # EOFError: it failed, and printed why
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.kill()
    return answers


def _answer(call: Callable[[], T], start: Any, answer: "Connection[T, Any]") -> None:
    """In the forked process."""
    with answer:
        start.wait(_ANSWER_SECONDS)
        answer.send(call())


class WarmJvm:
    """A JVM for one process after the other. It ends with the process that started it."""

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="calve-jvm-")
        home = Path(self._home.name)
        settings = {"spark.master": "local[2]", "spark.driver.host": "127.0.0.1", **QUICK}
        conf: Any = SimpleNamespace(getAll=lambda: list(settings.items()), get=settings.get)  # SparkConf starts a JVM
        variables = session._variables(home, settings) | {warm_workers.ADDRESS: _address_of_workers()}
        with (
            session._environment(variables),
            (home / "log").open("ab") as log,
        ):
            self._gateway: JavaGateway = launch_gateway(conf, popen_kwargs={"stdout": log, "stderr": log})
        parameters = self._gateway.gateway_parameters
        self.address = dict(zip(_GATEWAY, (str(parameters.port), parameters.auth_token), strict=True))

    def clear(self) -> None:
        """Stop what a process left behind."""
        contexts = getattr(getattr(self._gateway.jvm.org.apache.spark, "SparkContext$"), "MODULE$")
        active = contexts.getActive()
        if active.isDefined():
            active.get().stop()

    def end(self) -> None:
        self._gateway.shutdown()
        self._gateway.proc.stdin.close()
        self._gateway.proc.wait()
        self._home.cleanup()


class WarmProcess:
    """`main()` of a module as a process, with what tests use of `subprocess.Popen`."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path | None = None,
        *,
        spark: bool = True,
    ) -> None:
        """With a working folder of its own, if given; without `spark` it fails if it starts Spark."""
        self._jvm = (_free().pop() if _free() else WarmJvm()) if spark else None
        if self._jvm:
            self._jvm.clear()
        self._folder = Path(tempfile.mkdtemp(prefix="calve-process-"))
        self._printed: tuple[str, str] | None = None
        variables = {**os.environ, **environment, **(self._jvm.address if self._jvm else {})}
        outputs = [str(self._folder / name) for name in ("out", "err")]
        _FORKS.set_forkserver_preload(_PRELOADED)
        self._process = _FORKS.Process(
            target=_run, args=(module, [*arguments], variables, outputs, folder), daemon=True
        )
        self._process.start()

    @property
    def returncode(self) -> int:
        """Of a process that has ended."""
        assert self._process.exitcode is not None
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def printed_output(self) -> str:
        """What it has printed so far."""
        return self._read("out")

    def printed_errors(self) -> str:
        """What it has printed as errors so far."""
        return self._read("err")

    def _read(self, name: str) -> str:
        path = self._folder / name
        return path.read_text() if path.exists() else ""

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; what it printed, and what it printed as errors."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a warm process", timeout or 0)
        if self._printed is None:
            self._printed = (self.printed_output(), self.printed_errors())
            shutil.rmtree(self._folder)
            if self._jvm:
                _free().append(self._jvm)
        return self._printed


@cache
def _free() -> list[WarmJvm]:
    """JVMs that no process uses."""
    free: list[WarmJvm] = []

    def end_all() -> None:
        for jvm in free:
            jvm.end()

    atexit.register(end_all)
    return free


@cache
def _address_of_workers() -> str:
    """Where the JVMs of this process get Python workers that are warm, too."""
    path = str(Path(tempfile.mkdtemp(prefix="calve-workers-"), "socket"))
    atexit.register(shutil.rmtree, Path(path).parent)
    _FORKS.set_forkserver_preload(_PRELOADED)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        _FORKS.Process(target=warm_workers.serve, args=(listener,), daemon=True).start()
    return path


def _no_jvm(*_: object) -> NoReturn:
    raise AssertionError("this process was to do without Spark")


def _run(module: str, arguments: list[str], variables: dict[str, str], outputs: list[str], folder: Path | None) -> None:
    """In the forked process."""
    if folder:
        os.chdir(folder)
    for descriptor, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.clear()
    os.environ.update(variables)
    if _GATEWAY[0] in variables:
        SparkContext._gateway = launch_gateway()
        SparkContext._jvm = SparkContext._gateway.jvm
        for name in _GATEWAY:
            del os.environ[name]
        settings = session._settings
        setattr(session, "_settings", lambda home, master: settings(home, master) | _WORKERS)  # noqa: B010 - mypy
    else:
        setattr(session, "_gateway", _no_jvm)  # noqa: B010 - the same
    faults.install(faults._from_environment())
    sys.argv = [module, *arguments]
    try:
        sys.exit(import_module(module).main())
    finally:
        atexit._run_exitfuncs()
