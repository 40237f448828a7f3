"""Fetches the Flink that `benchmarks/stream.py` compares with: from PyPI to .cache/flink/venv, from Maven to jars.

    python scripts/fetch_flink.py .cache/flink

Flink's Python package needs other versions than calve's, so it has an environment of its own (700 MB). What is there
already in the wanted version is left alone. Without Maven, or when something cannot be fetched, it says so and ends
well: the benchmark then leaves Flink out.
"""

import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from fetch_servers import fetched

FLINK = "apache-flink==2.1.3"
JARS = Path(__file__).resolve().parent / "peers" / "flink.xml"


def main() -> None:
    """Fetch what is missing."""
    target = Path(sys.argv[1])
    complete, version = target / "complete", hashlib.sha256(FLINK.encode() + JARS.read_bytes()).hexdigest()
    if complete.is_file() and complete.read_text() == version:
        return
    if shutil.which("mvn") is None:
        print("mvn is not found: benchmarks will leave Flink out")
        return
    print(f"fetching {FLINK}")
    shutil.rmtree(target, ignore_errors=True)
    venv.create(target / "venv", with_pip=True)
    python = str(target / "venv" / "bin" / "python")
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", FLINK]
    if subprocess.run(command, check=False).returncode or not fetched(JARS, target / "jars", target.parent):
        print("Flink could not be fetched: benchmarks will leave it out")
        return
    complete.write_text(version)


if __name__ == "__main__":
    main()
