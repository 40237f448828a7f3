"""The daemon that forks Spark's Python workers, started by the JVM as `python -m calve.spark.workers`.

It is PySpark's own daemon, without Spark's archives on the import path. The JVM puts `pyspark.zip`, py4j's zip and a
jar there. PySpark's worker drops all import caches at the start of every task, and Python then reads the directory of
each archive again, which takes longer than a small task; and every daemon compiles modules from a zip again. The same
modules are installed as files.

And it imports what calve runs in tasks once, before it forks. A worker ends with a task that fails or is not read to
its end; each new one would spend a second and more on the same imports. And after every task a worker collects garbage
among all its objects, which takes longer than a small task; those that exist before the fork are excluded from it.

Assumes that the installed PySpark is the one of the JVM; `spark/session.py` names this module only then.
"""

import gc
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

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


if __name__ == "__main__":
    leave_archives(Path(os.environ["SPARK_HOME"]))

    from pyspark import daemon  # not before the path is clean

    if forks_task_workers(sys.argv[1:]):
        for name in TASK_MODULES:
            import_module(name)
        gc.collect()
        gc.freeze()

    daemon.manager()
