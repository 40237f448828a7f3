from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.progress import EVERY_SECONDS, ProgressLines


class Lines:
    """Lines of progress of a run of eight tests, at times that the test sets."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.now = 100.0
        self.progress = ProgressLines(self.written.append, lambda: self.now)
        session: Any = SimpleNamespace(testscollected=8)
        self.progress.pytest_sessionstart(session)

    def end_test(self, name: str, outcome: str = "passed") -> None:
        for when, how in (("setup", "passed"), ("call", outcome), ("teardown", "passed")):
            self.progress.pytest_runtest_logreport(report(name, when, how))


def report(name: str, when: Any, outcome: Any) -> pytest.TestReport:
    return pytest.TestReport(name, (name, 1, name), {}, outcome, None, when)


def test_a_line_is_written_every_half_minute_and_says_how_far_the_run_is() -> None:
    lines = Lines()
    lines.end_test("a")
    lines.now += EVERY_SECONDS
    lines.end_test("b")
    lines.end_test("c")
    lines.now += 2 * EVERY_SECONDS + 3
    lines.end_test("d")
    assert lines.written == [" 0:30 2 of 8 tests, 0 failed", " 1:33 4 of 8 tests, 0 failed"]


def test_a_failure_is_told_at_once() -> None:
    lines = Lines()
    lines.end_test("tests/test_a.py::test_b", "failed")
    assert lines.written == [" 0:00 failed: tests/test_a.py::test_b"]


def test_outcomes_keep_their_words_and_lose_their_letters() -> None:
    asked = Lines().progress.pytest_report_teststatus()
    next(asked)
    with pytest.raises(StopIteration) as answer:
        asked.send(("failed", "F", "FAILED"))
    assert answer.value.value == ("failed", "", "FAILED")
