"""Writes constraints.txt: what pip resolves today for calve with all extras, in an environment of its own.

Only names and versions are written, never where a package came from. The Spark line is held back: the Iceberg runtime
that the tests read with exists for 4.1 and not yet for later ones.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HELD = ("pyspark>=4.1,<4.2",)
HEADER = """\
# The exact versions calve is tested with: `pip install -c constraints.txt -e .[dev,java]`.
# Made by `make constraints`; names and versions only, wherever the packages come from.
"""


def main() -> None:
    """Resolve and write."""
    with tempfile.TemporaryDirectory(prefix="calve-constraints-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"{ROOT}[dev,java]", *HELD], check=True)
        frozen = subprocess.run(
            [python, "-m", "pip", "freeze", "--exclude", "calve"], check=True, capture_output=True, text=True
        ).stdout
    pins = sorted(frozen.splitlines(), key=str.lower)
    if unpinned := [line for line in pins if "==" not in line]:
        sys.exit(f"not pinned by version: {unpinned}")
    (ROOT / "constraints.txt").write_text(HEADER + "".join(f"{pin}\n" for pin in pins))
    print(f"constraints.txt: {len(pins)} packages")


if __name__ == "__main__":
    main()
