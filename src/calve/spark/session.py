"""Starts Spark silently: on this machine, bound to loopback, or as the driver of a cluster.

Everything that the JVM and the Python workers print goes into `<home>/logs/spark.log`; if Spark does not start, the
error quotes the end of that log. The environment is changed only while the JVM starts and inherits it. A session that
exists already belongs to the user and is returned unchanged; in a process that `spark-submit` started, it is the
submitted session.
"""

import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from calve.errors import TerminalError
from calve.model.numbers import whole_number
from calve.spark.java import find_java
from calve.spark.session_log import open_log, watch_log
from calve.spark.version import remember_classes

_LOOPBACK = "127.0.0.1"
_GIB = 1 << 30
_TAIL_LINES = 15
_PYTHON = "spark.pyspark.python"
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by `spark-submit` for the process that it starts."""
_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Memory limits of a container, by version 2 and 1 of cgroups. Without a limit: "max", or more than there is."""
_CPU_QUOTAS = (
    (Path("/sys/fs/cgroup/cpu.max"),),
    (Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")),
)
"""CPU time of a container and its period, by version 2 and 1 of cgroups. Without a limit: "max", or -1."""
_starting = threading.Lock()

_ALWAYS = {
    "spark.app.name": "calve",
    "spark.eventLog.enabled": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timeType.enabled": "true",  # Spark 4.1 has the type TIME, disabled by default
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def embedded_session(home: Path, *, master: str = "local[*]", conf: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process, or a new one that keeps its files in `home`. `conf` wins over calve's settings."""
    with _starting:
        if SparkContext._active_spark_context is not None:  # noqa: SLF001 - the public way starts one
            return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        if _SUBMITTED in os.environ:
            return _submitted()
        home = home.absolute()
        settings = _settings(home, master) | dict(conf or {})
        settings = _heap_settings(settings) | settings
        spark_conf = SparkConf().setAll(list(settings.items()))
        log = open_log(home)
        before = log.stat().st_size
        try:
            with _environment(_variables(home, settings)):
                context = SparkContext(conf=spark_conf, gateway=_gateway(spark_conf, log))
                watch_log(home)
                remember_classes(context._jvm)  # noqa: SLF001 - it has no public name
                return SparkSession(context)
        except (PySparkException, Py4JError, OSError) as error:
            _end_jvm()
            raise _not_started(error, log, before) from error


def _submitted() -> SparkSession:
    """The session of `spark-submit`, whose settings win over calve's. Its JVM is running already."""
    SparkContext._ensure_initialized()  # noqa: SLF001 - else a SparkConf of this process lacks the submitted settings
    conf = SparkConf()
    for name, value in _ALWAYS.items():
        conf.setIfMissing(name, value)
    return SparkSession.builder.config(conf=conf).getOrCreate()


def _settings(home: Path, master: str) -> dict[str, str]:
    settings = _ALWAYS | {"spark.master": master, "spark.sql.warehouse.dir": (home / "spark-warehouse").as_uri()}
    if not is_local(master):
        return settings
    return settings | {
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.driver.host": _LOOPBACK,
        "spark.driver.memory": f"{driver_memory(machine_memory()) >> 20}m",
        "spark.python.daemon.module": "calve.spark.workers",
        "spark.sql.shuffle.partitions": str(local_cores(master, os.cpu_count() or 1)),
    }


def local_cores(master: str, machine: int) -> int:
    """How many tasks a local master runs concurrently: `local[3]`, `local[*]`, `local[2,4]`, `local`."""
    inside = re.fullmatch(r"local\[(\d+|\*)(?:,\s*\d+)?\]", master)
    if inside is None:
        return 1 if master == "local" else machine
    return machine if inside[1] == "*" else int(inside[1])


def driver_memory(machine: int) -> int:
    """Bytes of heap for a JVM that does all the work: half of the machine, at least 1 GiB, at most 4 GiB."""
    return min(max(machine // 2, _GIB), 4 * _GIB)


def _heap_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Options for a JVM that does all the work and has a large enough heap.

    Rows leave Spark in chunks of several megabytes. With its default small regions G1 treats each as a humongous
    object, and starts marking the whole heap with nearly every small batch.
    """
    if not is_local(settings["spark.master"]) or heap_of(settings["spark.driver.memory"]) < 2 * _GIB:
        return {}
    return {"spark.driver.defaultJavaOptions": "-XX:G1HeapRegionSize=16m"}


def heap_of(memory: str) -> int:
    """Bytes of a size in Spark's notation: `6g`, `512m`, or a number of mebibytes."""
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", memory.strip().lower())
    return int(found[1]) << {"k": 10, "": 20, "m": 20, "g": 30, "t": 40}[found[2]] if found else 0


def machine_memory() -> int:
    """Bytes of memory of this machine or container."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (whole_number(path.read_text().strip()) for path in _CONTAINER_LIMITS if path.is_file())
    return min([physical, *(limit for limit in limits if limit)])


def machine_cpus() -> int:
    """CPUs of this machine that this process and its container may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([allowed, *_cpu_quotas()])


def _cpu_quotas() -> Iterator[int]:
    for files in _CPU_QUOTAS:
        if all(file.is_file() for file in files):
            quota, period = (whole_number(text) for file in files for text in file.read_text().split())
            if quota and period:
                yield -(-quota // period)


def _variables(home: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Environment variables for the JVM. On a cluster the user may choose the Python and Spark of the executors."""
    variables = {"JAVA_HOME": str(find_java(home / "java", os.environ)), "PYSPARK_DRIVER_PYTHON": sys.executable}
    if not is_local(settings["spark.master"]):
        python = settings.get(_PYTHON) or os.environ.get("PYSPARK_PYTHON") or sys.executable
        return variables | {"PYSPARK_PYTHON": python}
    return variables | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),  # not another Spark on this machine
        "SPARK_LOCAL_IP": _LOOPBACK,  # else Spark does not start on a machine whose own name does not resolve
    }


def is_local(master: str) -> bool:
    """Whether driver and executors are one process."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _gateway(conf: SparkConf, log: Path) -> JavaGateway:
    """The JVM that a stopped session left to this process, or a new one that prints into the log."""
    running: JavaGateway | None = SparkContext._gateway  # noqa: SLF001 - there is no public way to ask
    if running is not None:
        return running
    with log.open("ab") as output:
        return launch_gateway(conf, popen_kwargs={"stdout": output, "stderr": output})


def _end_jvm() -> None:
    """Stop a JVM whose settings did not work: the next start would use it."""
    gateway = SparkContext._gateway  # noqa: SLF001 - as in `_gateway`
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends when this pipe does
        gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - the same


def _not_started(error: Exception, log: Path, start: int) -> TerminalError:
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    messages = [line for line in lines if line.strip() and not line.startswith("\t")]  # without stack traces
    return TerminalError(
        "Spark did not start",
        detail="\n    ".join([f"The end of {log}:", *(messages[-_TAIL_LINES:] or [str(error)])]),
        hint="Usual causes are memory, disk space, the Java version and the settings of Spark.",
    )
