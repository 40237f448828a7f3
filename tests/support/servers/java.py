"""A server in a JVM: started on a free loopback port, waited for, and ended."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from calve.spark.java import find_java
from tests.support.readers import ROOT

JARS = ROOT / ".cache" / "servers"
START_SECONDS = 90
STOP_SECONDS = 15
_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def jars_of(name: str) -> Path:
    """The folder with a server's jars; the test is skipped where they could not be fetched."""
    folder = JARS / name
    if not (folder / "complete").is_file():
        pytest.skip(f"the test server {name} is not there: it needs mvn, see scripts/fetch_servers.py")
    return folder


class JavaServer:
    """One process with what it starts itself. It answers at `uri` after `await_answer`, until `stop`."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        port: int,
        folder: Path,
        environment: Mapping[str, str],
        *,
        jars: Path | None = None,
        launcher: Sequence[str] = (),
        java: Path | None = None,
    ) -> None:
        """`jars` are those of the server if they are not fetched ones; `launcher` is put before the command.

        `java` is the home of another Java than Spark's.
        """
        self.uri = f"http://127.0.0.1:{port}"
        self.log = folder / f"{name}.log"
        java = (java or find_java(folder / "java", os.environ)) / "bin" / "java"
        command = [*launcher, str(java), *_OPTIONS, "-cp", f"{jars or jars_of(name)}/*", *arguments]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, "JAVA_HOME": str(java.parents[1]), **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the process; its group has the same."""
        return self._process.pid

    def await_answer(self, path: str) -> None:
        """Wait until it answers anything at all."""
        deadline = time.monotonic() + START_SECONDS
        while not self._answers(path):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"the server at {self.uri} did not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.05)

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}{path}", timeout=5):  # noqa: S310 - our own server
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return True
        except OSError:
            return False

    @property
    def alive(self) -> bool:
        """False once the process has ended."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the process and what it started at once, as if its machine were gone."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
