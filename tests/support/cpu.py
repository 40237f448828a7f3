"""Shows which tests take the most CPU, their JVMs and other processes included: `pytest -p tests.support.cpu`.

CPU is what bounds a run, and unlike durations it is about the same beside other work. A process counts for the test
during which it worked, whichever started it: the first test of a session pays for the session.
"""

import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

_PROPERTY = "cpu"
_SHOWN = 50
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

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = cpu_seconds(os.getpid())
        report.user_properties.append((_PROPERTY, max(0.0, now - self._before)))
        self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[report.nodeid] += sum(
            float(str(value)) for name, value in report.user_properties if name == _PROPERTY
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files = defaultdict[str, float](float)
        for test, seconds in self.tests.items():
            files[test.partition("::")[0]] += seconds
        for title, times in (("files", files), ("tests", self.tests)):
            terminalreporter.section(f"CPU seconds of {title}, {sum(times.values()):,.0f} in all")
            for name in sorted(times, key=times.__getitem__, reverse=True)[:_SHOWN]:
                terminalreporter.write_line(f"{times[name]:8.1f} {name}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuTimes())
