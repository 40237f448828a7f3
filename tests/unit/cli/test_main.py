"""How commands end when something is wrong with the machine, or with their streams."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.iceberg.sample import Sample

pytestmark = pytest.mark.long

CALVE = [sys.executable, "-m", "calve"]


def test_a_file_that_cannot_be_written_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    sample.commit({1: "a"})
    sample.close()
    (tmp_path / "orphans").write_text("a file where a folder has to be")
    command = [*CALVE, "maintain", "shop.orders", "--only", "orphans", "--quiet", "--home", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    first, second, third = done.stderr.splitlines()
    assert first == "error: the command failed"
    assert second.startswith("  NotADirectoryError: ")
    assert third.startswith("  hint: A file is where a folder is needed")


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_stream_that_the_caller_has_closed_is_an_empty_one(tmp_path: Path, closed: str) -> None:
    command = f"{shlex.join([*CALVE, 'sql', '--format', 'json', '--home', str(tmp_path)])} {closed}"
    done = subprocess.run(["sh", "-c", command], input="SHOW SINKS", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
