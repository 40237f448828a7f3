"""Lines of progress where no terminal shows dots: one per half minute, and one for every failure at once."""

import time
from collections.abc import Callable, Generator

import pytest

EVERY_SECONDS = 30.0

Status = tuple[str, str, str | tuple[str, dict[str, bool]]]
"""Category, letter and word of a test's outcome."""


class ProgressLines:
    """Counts tests that have ended, of all workers; it replaces pytest's letters."""

    def __init__(self, write_line: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        self._write_line, self._now = write_line, now
        self._first = self._last = now()
        self._ended = self._failed = 0
        self._session: pytest.Session | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, Status, Status]:
        category, _letter, word = yield
        return category, "", word

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed += 1
            self._write_line(f"{self._elapsed()} failed: {report.nodeid}")
        if report.when == "teardown":
            self._ended += 1
            if self._now() - self._last >= EVERY_SECONDS:
                self._last = self._now()
                self._write_line(f"{self._elapsed()} {self._ended} of {self._collected} tests, {self._failed} failed")

    @property
    def _collected(self) -> int:
        return self._session.testscollected if self._session else 0

    def _elapsed(self) -> str:
        minutes, seconds = divmod(int(self._now() - self._first), 60)
        return f"{minutes:2}:{seconds:02}"
