"""Processes beside that of a sink rewrite its files: rows stay the same, and nothing is left of what ends early."""

import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from calve.clock import RandomIds, SystemClock
from calve.errors import TerminalError, TransientError
from calve.iceberg.planning.compaction_groups import BY_HAND
from calve.iceberg.snapshot.compaction import CompactionPlan
from calve.maintain.beside import NICENESS, ProcessesBeside
from calve.maintain.compact import CompactionScope, Compactor
from calve.maintain.convert import ConversionTools
from calve.maintain.rewrite import Bundle, GroupWork, rewrite_here
from tests.support.foreign import ForeignTable
from tests.support.keyed import no_session
from tests.support.regions import random_commit

pytestmark = pytest.mark.long

IMPORTED = "'sqlalchemy' in __import__('sys').modules"
"""Of catalogs, which a process beside does not open."""


@pytest.fixture
def processes() -> Iterator[ProcessesBeside]:
    made = ProcessesBeside(2)
    yield made
    made.close()


def bundles(table: ForeignTable, kind: type[GroupWork] = GroupWork) -> list[Bundle]:
    """The groups of a table with deletes of all kinds, each a bundle; the first one of this kind."""
    rng = random.Random(4)
    for _ in range(5):
        random_commit(table, rng)
    tools = ConversionTools(no_session, SystemClock(), RandomIds())
    plan: CompactionPlan | None = Compactor(table.ref.lake.open(), CompactionScope(table.ref.name), tools).plan(BY_HAND)
    assert plan is not None
    assert len(plan.groups.groups) > 2
    return [
        ((GroupWork if number else kind)(group, plan.reading, plan.order, plan.target(group[0].spec_id), f"{number}"),)
        for number, group in enumerate(plan.groups.groups)
    ]


def stored(table: ForeignTable) -> set[str]:
    return {path.name for path in Path(table.table.location().removeprefix("file://")).rglob("*.parquet")}


def children() -> set[int]:
    """Processes that this one has started, and that have not ended."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            number, _, rest = stat.read_text().partition(" (")
            state, parent, *_ = rest.rpartition(") ")[2].split()
            if int(parent) == os.getpid() and state != "Z":
                found.add(int(number))
    return found


def test_a_process_writes_the_files_that_this_one_would_write(table: ForeignTable, processes: ProcessesBeside) -> None:
    work, before = bundles(table), children()
    made = {one.inputs: one for done in processes.rewrite(work, 1, lambda: None) for one in done}  # type: ignore[union-attr]
    (child,) = children() - before
    assert os.getpriority(os.PRIO_PROCESS, child) == min(19, os.nice(0) + NICENESS)
    expected = [one for done in rewrite_here(work, lambda: None) for one in done]  # type: ignore[union-attr]
    assert len(expected) == len(made) == len(work)
    for one in expected:
        assert made[one.inputs].files == one.files, "names are derived from the work"
        assert [places.tolist() for places in made[one.inputs].places] == [places.tolist() for places in one.places]
        assert made[one.inputs].named == one.named
    assert not processes.call(partial(eval, IMPORTED)), "its start is mostly imports"
    processes.close()
    assert children() == before


class Deadly(GroupWork):
    """Work whose process is killed when it arrives."""

    def __reduce__(self) -> tuple[Any, ...]:
        return signal.raise_signal, (signal.SIGKILL,)


def write_and_die(fields: dict[str, Any]) -> None:
    """Be killed after the files of some work were written, and one more was begun."""
    list(rewrite_here([(GroupWork(**fields),)], lambda: None))
    signal.raise_signal(signal.SIGKILL)


class DeadlyLater(GroupWork):
    """Work whose process is killed when its files are written."""

    def __reduce__(self) -> tuple[Any, ...]:
        return write_and_die, (vars(self),)


class Unreadable(GroupWork):
    """Work that cannot be unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


class Faulty(GroupWork):
    """Work that a process cannot understand."""

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ()


def test_a_process_that_is_killed_loses_its_own_bundle_alone(table: ForeignTable, processes: ProcessesBeside) -> None:
    outcomes = list(processes.rewrite(bundles(table, Deadly), 1, lambda: None))
    (error,) = (one for one in outcomes if isinstance(one, TransientError))
    assert (error.primary, error.detail) == (
        "maintenance could not be done",
        "A process of its own does it; it ended with signal 9.",
    )
    assert sum(isinstance(one, tuple) for one in outcomes) == len(outcomes) - 1 > 1


@pytest.mark.parametrize("used", [False, True], ids=["a new process", "one that has worked before"])
def test_a_process_that_is_killed_leaves_no_files(
    table: ForeignTable, processes: ProcessesBeside, *, used: bool
) -> None:
    first, *others = bundles(table, DeadlyLater)
    if used:
        assert all(isinstance(one, tuple) for one in processes.rewrite(others[:1], 1, lambda: None))
    before = stored(table)
    (error,) = processes.rewrite([first], 1, lambda: None)
    assert isinstance(error, TransientError)
    assert error.detail.endswith("it ended with signal 9.")
    assert stored(table) == before


def test_work_that_cannot_be_unpickled_ends_its_process_at_once(
    table: ForeignTable, processes: ProcessesBeside
) -> None:
    outcomes = list(processes.rewrite(bundles(table, Unreadable), 1, lambda: None))
    (error,) = (one for one in outcomes if isinstance(one, TransientError))
    assert error.detail.endswith("it ended with exit code 0.")


def test_a_process_imports_nothing_from_the_working_directory(
    tmp_path: Path, processes: ProcessesBeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "signal.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert processes.call(partial(len, "four")) == 4


def test_a_bug_in_a_process_is_told_as_one(table: ForeignTable, processes: ProcessesBeside) -> None:
    first, *others = processes.rewrite(bundles(table, Faulty), 1, lambda: None)
    assert isinstance(first, TerminalError)
    assert "AttributeError: 'list' object has no attribute" in first.detail
    assert all(isinstance(one, tuple) for one in others)


def test_an_idle_process_that_is_gone_is_replaced(table: ForeignTable, processes: ProcessesBeside) -> None:
    first, second, *_ = bundles(table)
    before = children()
    assert all(isinstance(one, tuple) for one in processes.rewrite([first], 1, lambda: None))
    (idle,) = children() - before
    os.kill(idle, signal.SIGINT)  # Ctrl-C is for this process
    assert all(isinstance(one, tuple) for one in processes.rewrite([second], 1, lambda: None))
    assert children() - before == {idle}
    os.kill(idle, signal.SIGKILL)
    assert all(isinstance(one, tuple) for one in processes.rewrite([second], 1, lambda: None))
    assert len(children() - before - {idle}) == 1


def test_a_process_that_cannot_be_started_is_a_failure_that_may_pass(
    table: ForeignTable, processes: ProcessesBeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    errors = list(processes.rewrite(bundles(table), 1, lambda: None))
    assert all(isinstance(error, TransientError) for error in errors)
    assert "it could not be started" in errors[0].detail  # type: ignore[union-attr]


class _Cancelled(Exception):
    pass


def test_cancelled_bundles_leave_neither_files_nor_processes(table: ForeignTable, processes: ProcessesBeside) -> None:
    work, before, running = bundles(table), stored(table), children()
    calls: list[int] = []

    def once() -> None:
        calls.append(1)
        if len(calls) > 1:
            raise _Cancelled

    with pytest.raises(_Cancelled):
        list(processes.rewrite(work, 2, once))
    processes.close()
    assert stored(table) == before
    assert children() == running


def test_a_process_ends_with_the_one_that_started_it() -> None:
    code = (
        "import os; from calve.maintain.beside import ProcessBeside; one = ProcessBeside(0); "
        "print(one._process.pid, flush=True); os._exit(1)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    watched = os.pidfd_open(pid)
    parent.wait()
    parent.stdout.close()
    assert select.select([watched], [], [], 60)[0], "it has ended"
    os.close(watched)
