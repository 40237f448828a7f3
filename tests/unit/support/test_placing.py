"""Tests run once each, and where what they need has been started."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support import placing
from tests.support.placing import WORTH_STARTING, Needs, Placing, needs_of


class Worker:
    """A worker as the controller knows it; it has the test that it runs, and the next one, at hand."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.workerinput = {"testrunuid": "run", "workerid": self.gateway.id}
        self.shutting_down = False
        self.queue: list[int] = []
        self.ran: list[int] = []
        self.asked: list[int] | None = None

    def send_runtest_some(self, tests: Sequence[int]) -> None:
        assert not self.shutting_down
        self.queue += tests

    def send_steal(self, tests: Sequence[int]) -> None:
        self.asked = list(tests)

    def shutdown(self) -> None:
        self.shutting_down = True

    def given_back(self) -> list[int]:
        given = [test for test in self.queue[2:] if test in (self.asked or ())]
        self.queue = [test for test in self.queue if test not in given]
        self.asked = None
        return given

    @property
    def can_run(self) -> bool:
        """It waits for the next test before it runs the last one, unless there is none."""
        return len(self.queue) > 1 or (self.shutting_down and bool(self.queue))


def ran(needs: Sequence[Needs], workers: int, pace: Sequence[int] = (1,), seed: int = 0) -> list[list[Needs]]:
    """What the tests needed that each worker ran. `pace` are the weights of workers' turns."""
    config: Any = SimpleNamespace(getvalue=lambda _: [f"{workers}*popen"], rootpath=Path())
    scheduler, nodes = Placing(config), [Worker(number) for number in range(workers)]
    for node in nodes:
        scheduler.add_node(cast("Any", node))
        placing._told("run", node.gateway.id).write_text(json.dumps(needs))
        scheduler.add_node_collection(cast("Any", node), [f"test {n}" for n in range(len(needs))])
    scheduler.schedule()
    drawn = random.Random(seed)
    while not scheduler.tests_finished or any(node.queue for node in nodes):
        if scheduler.tests_finished:
            for node in nodes:
                node.shutdown()
        ready = [node for node in nodes if node.asked is not None or node.can_run]
        assert ready, "every worker waits"
        (node,) = drawn.choices(ready, [pace[nodes.index(node) % len(pace)] for node in ready])
        if node.asked is not None:
            scheduler.remove_pending_tests_from_node(cast("Any", node), node.given_back())
        else:
            node.ran.append(node.queue.pop(0))
            scheduler.mark_test_complete(cast("Any", node), node.ran[-1])
    assert sorted(test for node in nodes for test in node.ran) == list(range(len(needs)))
    return [[needs[test] for test in node.ran] for node in nodes]


@pytest.fixture(autouse=True)
def told_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


SUITE = [Needs.SERVERS] * 30 + [Needs.SESSION] * 200 + [Needs.NOTHING] * 700


@pytest.mark.parametrize("seed", range(5))
def test_of_three_workers_one_starts_servers_and_two_a_session(seed: int) -> None:
    first, second, third = ran(SUITE, 3, pace=(1, 1, 4), seed=seed)
    assert first.count(Needs.SERVERS) == 30
    assert first[:30] == [Needs.SERVERS] * 30
    assert Needs.SESSION in first
    assert Needs.SERVERS not in second
    assert set(third) == {Needs.NOTHING}


def test_workers_with_a_session_help_the_one_without() -> None:
    first, second, third = ran(SUITE, 3, pace=(4, 4, 1))
    assert Needs.NOTHING in first
    assert Needs.NOTHING in second
    assert len(third) < 700


def test_many_tests_are_worth_another_session() -> None:
    *_, third = ran([Needs.SESSION] * 20 * WORTH_STARTING[Needs.SESSION] + [Needs.NOTHING] * 10, 3)
    assert Needs.SESSION in third


def test_fewer_tests_are_worth_other_servers() -> None:
    many = WORTH_STARTING[Needs.SESSION]
    _, second, third = ran([Needs.SERVERS] * many + [Needs.SESSION] * 10 + [Needs.NOTHING] * 10, 3)
    assert Needs.SERVERS in second + third
    few = WORTH_STARTING[Needs.SERVERS]
    _, second, third = ran([Needs.SERVERS] * few + [Needs.SESSION] * 10 + [Needs.NOTHING] * 10, 3)
    assert Needs.SERVERS not in second + third


@pytest.mark.parametrize("workers", range(1, 6))
@pytest.mark.parametrize("seed", range(4))
def test_every_test_runs_once_whatever_the_number_of_workers_and_their_pace(workers: int, seed: int) -> None:
    drawn = random.Random(seed)
    needs = sorted(drawn.choices(list(Needs), k=drawn.choice([1, 7, 60, 400])), key=list(Needs).index)
    ran(needs, workers, pace=[drawn.randint(1, 9) for _ in range(workers)], seed=seed)


def item(path: str, *fixtures: str) -> pytest.Item:
    return cast("pytest.Item", SimpleNamespace(path=Path(path), fixturenames=fixtures))


def test_a_file_needs_what_any_of_its_tests_needs() -> None:
    assert needs_of(
        [
            item("tests/unit/test_a.py", "tmp_path"),
            item("tests/e2e/test_b.py", "spark"),
            item("tests/e2e/test_b.py", "kafka"),
            item("tests/e2e/test_c.py"),
            item("tests/integration/test_f.py", "warm_process"),
            item("tests/faults/test_d.py", "spark"),
            item("tests/faults/test_e.py", "tmp_path"),
        ]
    ) == {
        Path("tests/unit/test_a.py"): Needs.NOTHING,
        Path("tests/e2e/test_b.py"): Needs.SERVERS,
        Path("tests/e2e/test_c.py"): Needs.SESSION,
        Path("tests/integration/test_f.py"): Needs.SERVERS,
        Path("tests/faults/test_d.py"): Needs.SERVERS,
        Path("tests/faults/test_e.py"): Needs.SERVERS,
    }
