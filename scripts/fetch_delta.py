"""Fetches the Delta Lake that `benchmarks/apply.py` compares with, from Maven: `fetch_delta.py .cache/delta`.

Without Maven, or when it cannot be fetched, it says so and ends well: the benchmark then leaves Delta out.
"""

import sys
from pathlib import Path

from maven import Fetch, jars

JARS = Path(__file__).resolve().parent / "peers" / "delta.xml"


def main() -> None:
    """Fetch what is missing."""
    target = Path(sys.argv[1])
    Fetch("Delta Lake", target, JARS.read_bytes(), "benchmarks will leave Delta out").run(
        lambda: jars(JARS, target / "jars", target.parent)
    )


if __name__ == "__main__":
    main()
