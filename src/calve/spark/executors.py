"""What a cluster needs and one machine does not: executors that have calve, and locations that all machines see.

The driver writes small batches itself, so only the first large batch would notice executors without calve. Therefore
they are checked before a sink starts, or a table is read or maintained, once per application. Workers on this machine
are checked if they run another Python than this process.
"""

import logging
import os
import platform
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from calve.errors import InvalidInput, TransientError
from calve.spark.failures import executor_failure
from calve.spark.session import is_local

_SAME = ("calve", "pyiceberg")
"""Packages whose objects are sent between the driver and executors."""
_PATIENCE_SECONDS = 20.0
_log = logging.getLogger("calve")
_asked: set[str] = set()
_asking = threading.Lock()


def refuse_connect(given: object) -> None:
    """Raise InvalidInput for a frame or session of Spark Connect, whose driver is another process."""
    if type(given).__module__.startswith("pyspark.sql.connect"):
        raise InvalidInput(
            "Spark Connect is not supported",
            hint="Use a classic session: without SPARK_REMOTE, builder.remote(...) or spark.api.mode = connect.",
        )


def on_cluster(spark: SparkSession) -> bool:
    """Whether executors are other processes, most likely on other machines."""
    return not is_local(str(spark.sparkContext.master))


def check_executors(spark: SparkSession) -> None:
    """Check the packages of the executors. Raises TerminalError, InvalidInput, TransientError."""
    context = spark.sparkContext
    with _asking:
        known = context.applicationId in _asked
        if known or not (on_cluster(spark) or _has_another_python(context)):
            return
        tasks = max(2, context.defaultParallelism)
        try:
            with _waiting_is_told(str(context.master)):
                # Not `Tasks`: executors may have another calve, and this must need as little of it as possible.
                answers = set(context.parallelize(range(tasks), tasks).map(_installed).collect())
        except (PySparkException, Py4JError) as error:
            raise executor_failure(error) or TransientError("Spark's executors did not answer") from error
        here = _installed(0)
        for there in sorted(answers - {here}):
            raise InvalidInput(
                "Spark's executors and the driver have different package versions",
                detail=f"The driver has {_listed(here)}; an executor has {_listed(there)}.",
                hint="Install the same versions everywhere, or ship them with spark.archives: see docs/cluster.md.",
            )
        _asked.add(context.applicationId)


def asked_first(make_session: Callable[[], SparkSession]) -> Callable[[], SparkSession]:
    """Check the executors of a session before anything runs on them."""

    def session() -> SparkSession:
        spark = make_session()
        check_executors(spark)
        return spark

    return session


def _has_another_python(context: SparkContext) -> bool:
    """Whether Python workers on this machine run another Python than this process."""
    program = shutil.which(str(context.pythonExec)) or ""
    return os.path.abspath(program) != os.path.abspath(sys.executable)  # noqa: PTH100 - links of environments differ


def _installed(_: int) -> tuple[str, ...]:
    return tuple(version(package) for package in _SAME)


def _listed(versions: tuple[str, ...]) -> str:
    return ", ".join(f"{package} {number}" for package, number in zip(_SAME, versions, strict=True))


@contextmanager
def _waiting_is_told(master: str) -> Iterator[None]:
    """Warn after a while: a cluster without a free core reports nothing by itself."""
    words = "still waiting for executors of %s: does it have free cores, and can it reach this machine (%s)?"
    timer = threading.Timer(_PATIENCE_SECONDS, _log.warning, (words, master, platform.node()))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def warn_of_local_place(spark: SparkSession, what: str, location: str) -> None:
    """Warn of a local folder on a cluster, whose other machines may not see it."""
    if on_cluster(spark) and urlsplit(location).scheme in {"", "file"}:
        _log.warning("%s is %s: on a cluster every machine must see that folder at the same path", what, location)
