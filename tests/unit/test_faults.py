import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from calve import faults
from calve.errors import InvalidInput, TransientError


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    faults.install(None)


def test_a_failpoint_acts_at_the_planned_visit_only() -> None:
    faults.install(faults.parse("record.before:2=error"))
    faults.reached("record.before")
    with pytest.raises(TransientError, match=r"record\.before"):
        faults.reached("record.before")
    faults.reached("record.before")


def test_a_starred_action_goes_on_for_ever() -> None:
    faults.install(faults.parse("commit.before:2=error*"))
    faults.reached("commit.before")
    for _ in range(3):
        with pytest.raises(TransientError):
            faults.reached("commit.before")


@pytest.mark.parametrize("text", ["nowhere=kill", "commit.before=explode"])
def test_a_plan_with_unknown_words_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        faults.parse(text)


def test_the_points_that_can_be_named_are_those_of_the_code() -> None:
    code = Path(str(files("calve")))
    texts = [path.read_text("utf-8") for path in code.rglob("*.py")]
    reached = {point for text in texts for point in re.findall(r'reached[(,]\s*"([^"]+)"', text)}
    sent = {point for text in texts for point in re.findall(r'send(?:_all)?[(].*, "([a-z]+)"[,)]', text)}
    assert reached | {f"{point}.{when}" for point in sent for when in ("before", "after")} == faults.POINTS


def test_the_environment_kills_the_process_at_the_named_point() -> None:
    code = "from calve import faults; faults.reached('load'); print('once', flush=True); faults.reached('load')"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CALVE_FAULTS": "load:2=kill"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (-9, "once\n"), run.stderr
