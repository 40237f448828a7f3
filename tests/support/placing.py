"""Which worker runs which test: what tests need is started once, not once for each worker.

A session of Spark needs 15 seconds of CPU until its first pipeline is done, a broker and a REST catalog with its S3
about ten each. So the first worker has the tests with servers, the last one those without a session, and all others
the rest. A worker that has done its own takes from the longest queue of tests that need nothing that it has not
started, and others only if there are many of them.

Workers know what tests need, and the controller decides where they run: a file in the folder for temporary files is the
way between them.
"""

import json
import tempfile
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import WorkStealingScheduling
from xdist.workermanage import WorkerController

SERVERS = {"servers", "kafka", "trino", "warm_process"}
"""Fixtures that start servers, or JVMs that are kept warm for processes."""
_AT_HAND = 2
"""Tests that a worker has to have: the one that it runs and the next one."""


class Needs(StrEnum):
    """What the tests of a file need, in the order in which they are collected."""

    SERVERS = "servers"
    SESSION = "session"
    NOTHING = "nothing"


WORTH_STARTING = {Needs.SERVERS: 24, Needs.SESSION: 100, Needs.NOTHING: 1}
"""So many tests are worth starting what they need a second time. Those with servers take four times as long."""


def needs_of(items: Iterable[pytest.Item]) -> dict[Path, Needs]:
    """What each file needs. Tests with neither fixture may start a session as well, but for those of some folders.

    Tests of crashes ask for sessions and servers while they run, and for JVMs that are kept warm for their processes.
    """
    fixtures: dict[Path, set[str]] = {}
    for item in items:
        fixtures.setdefault(item.path, set()).update(getattr(item, "fixturenames", ()))
    return {path: _needs(path, names) for path, names in fixtures.items()}


def _needs(path: Path, fixtures: set[str]) -> Needs:
    if fixtures & SERVERS or "faults" in path.parts:
        return Needs.SERVERS
    if "spark" in fixtures or {"integration", "e2e"} & set(path.parts):
        return Needs.SESSION
    return Needs.NOTHING


def order(items: list[pytest.Item], config: pytest.Config) -> None:
    """Order the tests by what they need; a worker tells the controller."""
    needs, first = needs_of(items), list(Needs)
    items.sort(key=lambda item: first.index(needs[item.path]))
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        told = _told(worker["testrunuid"], worker["workerid"])
        told.write_text(json.dumps([needs[item.path] for item in items]))


def _told(run: str, worker: str) -> Path:
    return Path(tempfile.gettempdir()) / f"calve-needs-{run}-{worker}.json"


class Placing(WorkStealingScheduling):  # type: ignore[misc]  # published without types
    """xdist's way of stealing work, with other owners and other thieves."""

    pending: list[int]
    """Tests that no worker has."""
    node2pending: dict[WorkerController, list[int]]
    nodes: list[WorkerController]
    steal_requested_from_node: WorkerController | None

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._needs: list[Needs] = []
        self._has: dict[WorkerController, set[Needs]] = {}
        """What each worker starts; where servers are, there is a session as well."""
        self._thief: WorkerController | None = None

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        told = _told(node.workerinput["testrunuid"], node.workerinput["workerid"])
        self._needs = [Needs(word) for word in json.loads(told.read_text())]
        told.unlink()

    def check_schedule(self) -> None:
        working = [node for node in self.nodes if not node.shutting_down]
        if self.pending:
            self._hand_out(working)
        for node in working:
            if len(self.node2pending[node]) >= _AT_HAND:
                continue
            owner, tests = self._to_steal(node, working)
            if not tests:
                node.shutdown()  # it runs its last test
            elif self.steal_requested_from_node is None:
                owner.send_steal(tests)
                self.steal_requested_from_node, self._thief = owner, node

    def _hand_out(self, working: list[WorkerController]) -> None:
        """Give tests that no worker has to the one that asked for them, or to those that begin with such tests."""
        if not working:
            return
        tests, self.pending = self.pending, []
        if self._thief in working:
            self._give(self._thief, tests)
        else:
            owners = {
                Needs.SERVERS: working[:1],
                Needs.SESSION: working[1:-1] or working[-1:],
                Needs.NOTHING: working[-1:],
            }
            for need, nodes in owners.items():
                these = [test for test in tests if self._needs[test] is need]
                for at, node in enumerate(nodes):
                    self._give(node, these[len(these) * at // len(nodes) : len(these) * (at + 1) // len(nodes)])
        self._thief = None

    def _give(self, node: WorkerController, tests: list[int]) -> None:
        if tests:
            needs = {self._needs[test] for test in tests}
            self._has.setdefault(node, {Needs.NOTHING}).update(needs, {Needs.SESSION} if Needs.SERVERS in needs else ())
            self.node2pending[node] += tests
            node.send_runtest_some(tests)

    def _to_steal(self, thief: WorkerController, working: list[WorkerController]) -> tuple[WorkerController, list[int]]:
        """Whose tests a worker takes, and which: half of a queue of tests that need what it has, or of a long one."""
        has = self._has.get(thief, {Needs.NOTHING})
        missing = [need for need in reversed(Needs) if need not in has]
        for need in (*(need for need in Needs if need in has), *missing):
            queues = [
                (node, [test for test in self.node2pending[node][_AT_HAND:] if self._needs[test] is need])
                for node in working
            ]
            owner, tests = max(queues, key=lambda queue: len(queue[1]))
            if len(tests) >= (WORTH_STARTING[need] if need in missing else 1):
                return owner, tests[len(tests) // 2 :]
        return thief, []
