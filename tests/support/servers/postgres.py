"""PostgreSQL, if it is installed: a new cluster in a new folder, on a free loopback port, with a password."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg2
import pytest

from tests.support.servers.java import START_SECONDS, STOP_SECONDS, free_port

USER, PASSWORD, DATABASE = "calve", "wolfram-database-password", "postgres"
NOT_THERE = "PostgreSQL is not installed"


class Postgres:
    """One database. The server does not run as root: then it runs as the user that the package made."""

    def __init__(self) -> None:
        initdb, server = _program("initdb"), _program("postgres")
        self._user = "postgres" if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="calve-postgres-"))
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        if self._user:
            for path in (self._folder, secret):
                shutil.chown(path, self._user)
        data = str(self._folder / "data")
        make = [initdb, "-D", data, "-U", USER, f"--pwfile={secret}", "-A", "scram-sha-256", "-E", "UTF8", "-N"]
        subprocess.run(make, check=True, user=self._user, cwd=self._folder, stdout=subprocess.DEVNULL)
        self.port = free_port()
        settings = ["-p", str(self.port), "-h", "127.0.0.1", "-k", str(self._folder), "-F"]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [server, "-D", data, *settings], user=self._user, cwd=self._folder, stderr=log
            )
        self.uri = f"postgresql+psycopg2://127.0.0.1:{self.port}/{DATABASE}"

    def await_answer(self) -> None:
        """Wait until it takes connections."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg2.connect(
                    host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, dbname=DATABASE
                ).close()
            except psycopg2.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """End it and remove its files."""
        self._process.send_signal(signal.SIGINT)  # not to wait for clients
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder)


def _program(name: str) -> str:
    places = [str(folder) for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    found = shutil.which(name, path=os.pathsep.join([*places, os.environ.get("PATH", "")]))
    if found is None or (os.geteuid() == 0 and not _has_user()):
        pytest.skip(NOT_THERE)
    return found


def _has_user() -> bool:
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        return False
    return True
