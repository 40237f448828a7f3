"""Fetches jars with Maven, once for each version of what describes them."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from calve.spark.java import find_java

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


@dataclass(frozen=True)
class Fetch:
    """What is fetched to a folder."""

    name: str
    folder: Path
    version: bytes
    """Of all that is in the folder: another one is fetched again."""
    without: str
    """What happens without it."""

    def run(self, *steps: Callable[[], bool]) -> None:
        """Take the steps unless they were all taken before. Without Maven, or when one fails, it says so."""
        complete, version = self.folder / "complete", hashlib.sha256(self.version).hexdigest()
        if complete.is_file() and complete.read_text() == version:
            return
        if shutil.which("mvn") is None:
            print(f"{self.name} needs mvn, which is not found: {self.without}")
            return
        print(f"fetching {self.name}")
        shutil.rmtree(self.folder, ignore_errors=True)
        if not all(step() for step in steps):
            print(f"{self.name} could not be fetched: {self.without}")
            return
        complete.write_text(version)


def jars(description: Path, folder: Path, cache: Path) -> bool:
    """Whether Maven brought all jars; it needs a Java as well, and gets the one that calve finds."""
    java = find_java((cache / "java").absolute(), os.environ)
    command = ["mvn", "-B", "-q", "-Dstyle.color=never", _COPY, "-f", str(description), "-DincludeScope=runtime"]
    done = subprocess.run(
        [*command, f"-DoutputDirectory={folder.absolute()}"],
        check=False,
        env={**os.environ, "JAVA_HOME": str(java)},
    )
    return done.returncode == 0
