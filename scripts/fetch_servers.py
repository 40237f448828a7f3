"""Fetches the servers that the tests run against, with Maven: scripts/servers/*.xml -> .cache/servers/<name>/*.jar.

    python scripts/fetch_servers.py .cache/servers [--at-length]

A server that is there in the version that its file describes is left alone. Those of scripts/servers/at_length are for
the tests at length alone; what comes as an archive is unpacked. Without Maven, or when something cannot be fetched, it
says so and ends well: the tests that need it are skipped with that reason.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from calve.spark.java import find_java

SERVERS = Path(__file__).resolve().parent / "servers"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
KEPT_PLUGINS = frozenset({"iceberg"})
"""Of an archive that has plugins; the others are most of it."""


def main() -> None:
    """Fetch what is missing."""
    target = Path(sys.argv[1])
    for description in sorted(SERVERS.rglob("*.xml") if "--at-length" in sys.argv else SERVERS.glob("*.xml")):
        folder, version = target / description.stem, hashlib.sha256(description.read_bytes()).hexdigest()
        complete = folder / "complete"
        if complete.is_file() and complete.read_text() == version:
            continue
        if shutil.which("mvn") is None:
            print("mvn is not found: tests against servers will be skipped")
            return
        print(f"fetching the test server {description.stem}")
        shutil.rmtree(folder, ignore_errors=True)
        if not fetched(description, folder, target.parent):
            print(f"{description.stem} could not be fetched: tests against it will be skipped")
            continue
        for archive in folder.glob("*.tar.gz"):
            unpack(archive)
        complete.write_text(version)


def fetched(description: Path, folder: Path, cache: Path) -> bool:
    """Whether Maven brought all jars; it needs a Java as well, and gets the one that calve finds."""
    java = find_java((cache / "java").absolute(), os.environ)
    command = ["mvn", "-B", "-q", "-Dstyle.color=never", COPY, "-f", str(description), "-DincludeScope=runtime"]
    done = subprocess.run(
        [*command, f"-DoutputDirectory={folder.absolute()}"],
        check=False,
        env={**os.environ, "JAVA_HOME": str(java)},
    )
    return done.returncode == 0


def unpack(archive: Path) -> None:
    """Replace an archive by what is in it, without the folder around it. Plugins share files: all come out first."""
    with tarfile.open(archive) as packed:
        packed.extractall(archive.parent, filter="data")
    archive.unlink()
    (inner,) = (path for path in archive.parent.iterdir() if path.is_dir())
    for path in inner.iterdir():
        path.rename(archive.parent / path.name)
    inner.rmdir()
    for plugin in (archive.parent / "plugin").iterdir():
        if plugin.name not in KEPT_PLUGINS:
            shutil.rmtree(plugin)


if __name__ == "__main__":
    main()
