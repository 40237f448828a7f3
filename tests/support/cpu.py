"""Shows which tests take the most CPU, and which wait longest: `pytest -p tests.support.cpu`.

CPU, that of JVMs and other processes included, is about the same beside other work, unlike durations. A process counts
for the test during which it worked, whichever started it: the first test of a session pays for the session. What is
left of a duration was spent waiting, on a machine with nothing else to do.
"""

import os
from collections import defaultdict
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

_PROPERTY = "cpu"
_SHOWN = 80
_FOLDER_DEPTH = 2
_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT, _TIMES = 1, slice(11, 15)
"""Fields of `/proc/<pid>/stat` behind the name: its parent, and the ticks of the process and of reaped children."""


def cpu_seconds(root: int) -> float:
    """CPU that a process and everything below it have taken so far."""
    children, ticks = defaultdict[int, list[int]](list), dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(path.parent.name)
        children[int(fields[_PARENT])].append(pid)
        ticks[pid] = sum(map(int, fields[_TIMES]))
    found = [root]
    for pid in found:
        found += children[pid]
    return sum(ticks.get(pid, 0) for pid in found) / _TICKS


class CpuTimes:
    """In a worker it adds times to reports; where reports are shown it adds them up."""

    def __init__(self) -> None:
        self._before = cpu_seconds(os.getpid())
        self.tests = defaultdict[str, float](float)
        self.durations = defaultdict[str, float](float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = cpu_seconds(os.getpid())
        report.user_properties.append((_PROPERTY, max(0.0, now - self._before)))
        self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.durations[report.nodeid] += report.duration
        self.tests[report.nodeid] += sum(
            float(str(value)) for name, value in report.user_properties if name == _PROPERTY
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        waits = {test: max(0.0, self.durations[test] - cpu) for test, cpu in self.tests.items()}
        for title, times in (
            ("CPU seconds of folders", _by_place(self.tests, _FOLDER_DEPTH)),
            ("CPU seconds of files", _by_place(self.tests, None)),
            ("CPU seconds of tests", self.tests),
            ("seconds that tests waited", waits),
        ):
            terminalreporter.section(f"{title}, {sum(times.values()):,.0f} in all")
            for name in sorted(times, key=times.__getitem__, reverse=True)[:_SHOWN]:
                terminalreporter.write_line(f"{times[name]:8.1f} {name}")


def _by_place(tests: Mapping[str, float], depth: int | None) -> dict[str, float]:
    """Sums by file, or by the first folders of its path."""
    places = defaultdict[str, float](float)
    for test, seconds in tests.items():
        places["/".join(test.partition("::")[0].split("/")[:depth])] += seconds
    return places


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuTimes())
