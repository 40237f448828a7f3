"""Workers with another Python than this process: whoever reads is told before anything runs on them."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.readers import ROOT

PYTHON = """#!{0}
import collections, runpy, sys
version = collections.namedtuple("version", "major minor micro releaselevel serial")
sys.version_info = version(3, sys.version_info.minor + 1, 0, "final", 0)
sys.argv = sys.argv[2:]  # after -m
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def test_reading_with_workers_of_another_python_says_so_and_where_to_read_on(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(PYTHON.format(sys.executable))
    python.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.reader.other_python", tmp_path / "home"],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("TerminalError")]
    assert len(lines) == 2, done.stdout + done.stderr
    for line in lines:
        assert line.startswith("TerminalError: Spark's executors have another version of Python / ")
        assert "docs/cluster.md" in line
