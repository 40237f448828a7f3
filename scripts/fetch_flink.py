"""Fetches the Flink that `benchmarks/stream.py` compares with: from PyPI to .cache/flink/venv, from Maven to jars.

    python scripts/fetch_flink.py .cache/flink

Flink's Python package needs other versions than calve's, so it has an environment of its own (700 MB). What is there
already in the wanted version is left alone. Without Maven, or when something cannot be fetched, it says so and ends
well: the benchmark then leaves Flink out.
"""

import subprocess
import sys
import venv
from pathlib import Path

from maven import Fetch, jars

FLINK = "apache-flink==2.1.3"
JARS = Path(__file__).resolve().parent / "peers" / "flink.xml"


def main() -> None:
    """Fetch what is missing."""
    target = Path(sys.argv[1])
    Fetch(FLINK, target, FLINK.encode() + JARS.read_bytes(), "benchmarks will leave Flink out").run(
        lambda: installed(target / "venv"), lambda: jars(JARS, target / "jars", target.parent)
    )


def installed(environment: Path) -> bool:
    """Whether the Python package is there."""
    venv.create(environment, with_pip=True)
    command = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return subprocess.run([*command, FLINK], check=False).returncode == 0


if __name__ == "__main__":
    main()
