"""Installs ClickHouse as a Python package into a folder of its own: it takes 600 MB.

    python scripts/fetch_chdb.py .cache/chdb

Tests and benchmarks that read tables with ClickHouse find it there. A folder that is complete is left as it is.
"""

import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = ("chdb==4.4.0", "chdb-core==26.9.0")


def main() -> None:
    """Install it; the exit code says whether it is there."""
    folder = Path(sys.argv[1]).absolute()
    complete = folder / "complete"
    if complete.is_file() and complete.read_text(encoding="utf-8").split() == list(PACKAGES):
        return
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "--target", str(folder), *PACKAGES], check=False)
    if done.returncode:
        sys.exit("ClickHouse could not be installed")
    complete.write_text(" ".join(PACKAGES), encoding="utf-8")


if __name__ == "__main__":
    main()
