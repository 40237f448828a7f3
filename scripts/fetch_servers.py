"""Fetches the servers that the tests run against, with Maven: scripts/servers/*.xml -> .cache/servers/<name>/*.jar.

    python scripts/fetch_servers.py .cache/servers [--at-length]

A server that is there in the version that its file describes is left alone. Those of scripts/servers/at_length are for
the tests at length alone; what comes as an archive is unpacked. Without Maven, or when something cannot be fetched, it
says so and ends well: the tests that need it are skipped with that reason.
"""

import shutil
import sys
import tarfile
from functools import partial
from pathlib import Path

from maven import Fetch, jars

SERVERS = Path(__file__).resolve().parent / "servers"
KEPT_PLUGINS = frozenset({"iceberg"})
"""Of an archive that has plugins; the others are most of it."""


def main() -> None:
    """Fetch what is missing."""
    target = Path(sys.argv[1])
    for description in sorted(SERVERS.rglob("*.xml") if "--at-length" in sys.argv else SERVERS.glob("*.xml")):
        folder = target / description.stem
        fetch = Fetch(
            f"the test server {description.stem}",
            folder,
            description.read_bytes(),
            "tests against it will be skipped",
        )
        fetch.run(partial(jars, description, folder, target.parent), partial(unpack_all, folder))


def unpack_all(folder: Path) -> bool:
    """Unpack what came as an archive."""
    for archive in folder.glob("*.tar.gz"):
        unpack(archive)
    return True


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
