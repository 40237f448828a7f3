"""Windows of very many checkpoints: each of them costs the same, whatever their number."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from calve.commit.checkpoints import CheckpointFiles
from calve.commit.journal import Journal
from calve.commit.run import SinkRun
from calve.commit.run_state import RunPorts
from calve.commit.takeover import RunPosition, extend
from calve.model.checkpoint import CheckpointEntry, CheckpointIdentity, Entry, FrontierEntry, Staged
from calve.model.files import Committable, FileTotals
from calve.model.frontier import START, BatchDescription, Frontier
from calve.model.spec import NoEnvelope, SinkSpec, TableName
from tests.support.manual import ManualSink as Sink

SPEC = SinkSpec("s", "sink", TableName(("n",), "t"), ("k",), NoEnvelope(), window_ms=3_600_000_000)
MANY = 300


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often the entries of checkpoints were looked at."""
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        real = getattr(CheckpointEntry, name)

        def called(self: CheckpointEntry, *arguments: object) -> object:
            counted[name] += 1
            return real(self, *arguments)

        monkeypatch.setattr(CheckpointEntry, name, called)

    count("times_from")
    count("__eq__")
    return iter([counted])


def test_a_checkpoint_of_a_long_window_does_not_look_at_all_that_came_before_it(calls: Iterator[Counter[str]]) -> None:
    counted = next(calls)
    sink = Sink(SPEC)
    sink.world.references = [{} for _ in range(MANY + 1)]
    for number in range(MANY):
        sink.run.checkpoints.await_room()
        sink.reads(number)
        assert sink.run.batches.due() is None
        sink.run.batches.until_due()
    assert len(sink.run.state.staged) == MANY
    assert counted["times_from"] <= 2 * MANY
    sink.run.batches.flush()
    batch = sink.run.batches.due()
    assert batch
    sink.run.batches.close(batch, CheckpointFiles("c", (), FileTotals()))
    assert sink.run.commits.commit_next()
    assert sink.run.state.pending == 0
    assert counted["__eq__"] <= 2 * MANY


def test_a_run_that_takes_over_a_long_window_lists_the_state_location_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = Sink(SPEC)
    for number in range(MANY):
        sink.reads(number)
    outer, listed = sink.outer, Counter[str]()
    real = outer.list

    def counting(prefix: str) -> list[str]:
        listed[prefix] += 1
        return real(prefix)

    monkeypatch.setattr(outer, "list", counting)
    ports = RunPorts(outer, outer, outer, outer, outer)
    successor = SinkRun(SPEC, outer, Journal(outer), ports, lambda _: True)
    successor.claims.boot()
    successor.claims.claim()
    assert len(successor.state.staged) == MANY
    assert listed.total() < 20


@pytest.mark.parametrize("own_times", [False, True])
def test_what_waits_is_the_same_however_often_it_was_asked_for(own_times: bool) -> None:  # noqa: FBT001 - a parameter
    often, once = RunPosition(), RunPosition()
    for entry in _entries(own_times=own_times):
        extend(often, entry)
        _seen(often)
        extend(once, entry)
    assert _seen(often) == _seen(once)
    assert (often.ready, often.ready_bytes, often.ready_changes) == (1, 11, 5)
    closed = next(e.committable for e in often.entries if e.committable)
    assert often.drop_committed(closed) == once.drop_committed(closed)
    assert _seen(often) == _seen(once) == _seen(replace(often, _tally=None))


def _seen(position: RunPosition) -> tuple[object, ...]:
    ready = position.ready, position.ready_bytes, position.ready_changes
    sizes = *ready, position.held_bytes, position.staged_bytes, position.staged_rows
    splits = [position.split(own_times=own_times) for own_times in (False, True)]
    return *sizes, list(position.staged), list(position.waiting_times), splits


def _entries(*, own_times: bool) -> list[Entry]:
    found: list[Entry] = []
    for number in range(12):
        start = str(number) if number else None
        low = 10 * number
        told = (low, low, low + 15, (low, low + 15)) if own_times else ()
        staged = Staged((f"f{number}",), 1 if number % 5 else 0, 7, *told)
        identity = CheckpointIdentity("q", number, start, str(number + 1))
        found.append(CheckpointEntry(identity, low + 15 if own_times else low, None, staged))
    batch, totals = BatchDescription(START, Frontier(60)), FileTotals(changes=5, data_bytes=8, delete_bytes=3)
    found.insert(8, FrontierEntry(59, Committable("c", batch, "q", 5, "6", totals=totals)))
    return found
