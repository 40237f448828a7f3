"""The daemon that forks Spark's Python workers, started by the JVM as `python -m calve.spark.workers`.

It is PySpark's own daemon, without Spark's archives on the import path. The JVM puts `pyspark.zip`, py4j's zip and a
jar there. PySpark's worker drops all import caches at the start of every task, and Python then reads the directory of
each archive again, which takes longer than a small task; and every daemon compiles modules from a zip again. The same
modules are installed as files.

And it imports what calve runs in tasks once, before it forks. A worker ends with a task that fails or is not read to
its end; each new one would spend a second and more on the same imports. And after every task a worker collects garbage
among all its objects, which takes longer than a small task; those that exist before the fork are excluded from it.

Its workers acknowledge at once what they read. The JVM hands over a task in several small pieces, and holds each back
until the one before is acknowledged; Linux waits 40 ms with that, in case there is something to send. So every task
began 40 ms late.

Assumes that the installed PySpark is the one of the JVM; `spark/session.py` names this module only then.
"""

import gc
import io
import os
import socket
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

TASK_MODULES = (
    "calve.envelope.envelopes",
    "calve.keylookup.index.build",
    "calve.keylookup.search",
    "calve.maintain.rewrite",
    "calve.reader.frame",
    "calve.write.staging",
    "calve.write.task_writer",
)
"""Modules whose functions run in tasks, by name: they are in layers above this one."""
_WORKER = "pyspark.worker"
_SUFFIXES = (".zip", ".jar")


def archives_of_spark(entries: Iterable[str], spark_home: Path) -> list[str]:
    """The entries of an import path that are Spark's own archives; the user's archives stay."""
    home = spark_home.resolve()
    return [e for e in entries if e.endswith(_SUFFIXES) and Path(e).resolve().is_relative_to(home)]


def leave_archives(spark_home: Path) -> None:
    """Make this process import installed packages instead. Call it before anything of PySpark is imported."""
    for entry in archives_of_spark(sys.path, spark_home):
        sys.path.remove(entry)
    for entry in archives_of_spark(sys.path_importer_cache, spark_home):
        del sys.path_importer_cache[entry]


def forks_task_workers(arguments: list[str]) -> bool:
    """Whether the arguments of this process name the workers of tasks; others plan sources or run listeners."""
    return _WORKER in arguments or not any(argument.startswith("pyspark") for argument in arguments)


class PromptInput(io.RawIOBase):
    """What comes through a socket, acknowledged whenever more is asked for. Wraps the file that reads the socket."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file, self._socket = file, socket.socket(fileno=os.dup(file.fileno()))
        self._is_tcp = self._socket.family in (socket.AF_INET, socket.AF_INET6) and hasattr(socket, "TCP_QUICKACK")

    def readinto(self, buffer: Any) -> int | None:
        """Read what there is."""
        if self._is_tcp:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # it holds for one acknowledgement
        return self._file.readinto1(buffer)

    def readable(self) -> bool:
        """It is for nothing else."""
        return True

    def fileno(self) -> int:
        """Of the file."""
        return self._file.fileno()

    def close(self) -> None:
        """Close the file as well."""
        if not self.closed:
            self._socket.close()
            self._file.close()
        super().close()


def acknowledging(main: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """A worker's function that runs a task, with an input that is acknowledged at once."""

    def run(infile: io.BufferedReader, outfile: io.BufferedWriter) -> None:
        with io.BufferedReader(PromptInput(infile), io.DEFAULT_BUFFER_SIZE) as prompt:
            main(prompt, outfile)

    return run


def prepare_daemon(*, imports: bool) -> Callable[[], None]:
    """Import what tasks need, and return what serves the JVM. Call it when the import path is clean."""
    daemon = import_module("pyspark.daemon")
    daemon.worker_main = acknowledging(daemon.worker_main)  # type: ignore[attr-defined]  # what its workers call
    if imports:
        for name in TASK_MODULES:
            import_module(name)
        gc.collect()
        gc.freeze()
    manager: Callable[[], None] = daemon.manager
    return manager


if __name__ == "__main__":
    leave_archives(Path(os.environ["SPARK_HOME"]))
    prepare_daemon(imports=forks_task_workers(sys.argv[1:]))()
