import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.readers import ROOT

pytestmark = pytest.mark.long

SKIPPING = """
import pytest

def test_skipped():
    pytest.skip("no server here")

@pytest.mark.xfail(reason="known", strict=True)
def test_expected_to_fail():
    raise AssertionError
"""

SKIPPED_AS_A_WHOLE = """
import pytest

pytest.skip("no server for all of these", allow_module_level=True)
"""


def run_pytest(folder: Path, *, ci: str) -> str:
    """The output of a run with the rules of this project."""
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "--continue-on-collection-errors", "-q", "-rs"]
    command = [sys.executable, "-m", "pytest", *options, str(folder)]
    environ = {**os.environ, "CI": ci, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False).stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_one.py").write_text(SKIPPING)
    (tmp_path / "test_all.py").write_text(SKIPPED_AS_A_WHOLE)
    return tmp_path


def test_a_skip_is_a_failure_where_changes_are_decided_on(folder: Path) -> None:
    output = run_pytest(folder, ci="true")
    assert "with CI=true a skip is a failure: Skipped: no server here" in output
    assert "with CI=true a skip is a failure: Skipped: no server for all of these" in output
    assert "skipped" not in output.splitlines()[-1]


def test_a_skip_is_a_skip_elsewhere(folder: Path) -> None:
    assert run_pytest(folder, ci="").splitlines()[-1].startswith("2 skipped, 1 xfailed")
