"""A Spark cluster on this machine: a standalone master and workers, of the PySpark that is installed.

Every worker is a group of processes (itself, its executors, their Python) with its own working directory. Where the
machine allows it, the workers do not see the folders of the driver, so nothing can be passed through a local disk.
"""

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from tests.support.servers.java import START_SECONDS, JavaServer, free_port

SPARK_HOME = Path(pyspark.__file__).parent
_LOOPBACK = "127.0.0.1"
_SCALA = next((SPARK_HOME / "jars").glob("spark-core_*.jar")).name.split("_")[1].split("-")[0]
_ENVIRONMENT = {
    "SPARK_HOME": str(SPARK_HOME),
    "SPARK_LOCAL_IP": _LOOPBACK,
    "SPARK_SCALA_VERSION": _SCALA,
    "PYSPARK_PYTHON": "/no/python",  # the driver alone says which Python the executors have
    "PYTHONPATH": "",
}


@dataclass
class SparkCluster:
    """One core and one executor of half a gigabyte per worker."""

    folder: Path
    hidden: Path
    """A folder that workers see empty, if `isolated`."""
    isolated: bool
    master: JavaServer
    port: int
    workers: list[JavaServer] = field(default_factory=list)

    @property
    def url(self) -> str:
        """For `--master`."""
        return f"spark://{_LOOPBACK}:{self.port}"

    @property
    def logs(self) -> list[Path]:
        """All that master, workers and executors wrote."""
        return [path for path in self.folder.rglob("*") if path.is_file() and path.suffix != ".jar"]

    def add_worker(self) -> JavaServer:
        """Another machine; it is not there yet when this returns."""
        port = free_port()
        name = f"worker-{port}"
        arguments = ["org.apache.spark.deploy.worker.Worker", "--host", _LOOPBACK, "--webui-port", str(port)]
        arguments += ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name), self.url]
        launcher = _hiding(self.hidden) if self.isolated else ()
        jars = SPARK_HOME / "jars"
        worker = JavaServer(name, arguments, port, self.folder, _ENVIRONMENT, jars=jars, launcher=launcher)
        self.workers.append(worker)
        return worker

    def whole(self, count: int) -> None:
        """Wait until so many workers are there; those that were killed are replaced."""
        while len(self.workers) < count:
            self.add_worker()
        self.await_workers(count)

    def await_workers(self, count: int) -> None:
        """Wait until so many are there."""
        deadline = time.monotonic() + START_SECONDS
        while self._alive() != count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"there are {self._alive()} workers, not {count}: see {self.folder}")
            time.sleep(0.05)

    def _alive(self) -> int:
        with urllib.request.urlopen(f"{self.master.uri}/json/", timeout=5) as answer:  # noqa: S310 - our own server
            return int(json.load(answer)["aliveworkers"])

    def stop(self) -> None:
        """End all of it."""
        for part in (*self.workers, self.master):
            part.stop()


def started(folder: Path, hidden: Path, workers: int = 2) -> SparkCluster:
    """A cluster whose workers keep everything in `folder`, and do not see what is in `hidden`."""
    hidden.mkdir(parents=True, exist_ok=True)
    port, page = free_port(), free_port()
    arguments = ["org.apache.spark.deploy.master.Master", "--host", _LOOPBACK]
    arguments += ["--port", str(port), "--webui-port", str(page)]
    master = JavaServer("master", arguments, page, folder, _ENVIRONMENT, jars=SPARK_HOME / "jars")
    cluster = SparkCluster(folder, hidden, _can_hide(), master, port)
    try:
        master.await_answer("/json/")
        cluster.whole(workers)
    except BaseException:
        cluster.stop()
        raise
    return cluster


def _hiding(folder: Path) -> Sequence[str]:
    """Runs a command that sees nothing in a folder."""
    script = 'mount -t tmpfs none "$1" && shift && exec "$@"'
    return ("unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(folder))


def _can_hide() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(tried, check=False, capture_output=True).returncode == 0
