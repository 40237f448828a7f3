"""What is staged is closed when somebody asks for it, whatever the other threads do, and whatever cannot be removed."""

from dataclasses import replace

import pytest

from calve.errors import TransientError
from calve.model.checkpoint import CheckpointIdentity, Staged
from calve.model.spec import LateRows, NoEnvelope, RowTimes, SinkSpec, TableName
from tests.support.manual import ManualSink

SPEC = SinkSpec("s", "sink", TableName(("n",), "t"), ("k",), NoEnvelope(), window_ms=10**9)


class Held:
    """The lock of a run's memory, which says whether it is held."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


def test_the_rules_of_closing_are_used_with_the_memory_lock_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a flush can be lost to the committer that ends the one before."""
    sink, held = ManualSink(SPEC), Held()
    windows = sink.run.state.windows
    monkeypatch.setattr(sink.run.state, "memory", held)
    used: dict[str, int] = {}
    for name in ("flush", "end_flush", "next_batch", "until_due", "found_nothing", "reset_idle"):

        def noted(*given: object, name: str = name, **named: object) -> object:
            used[name] = min(held.depth, used.get(name, held.depth))
            return getattr(type(windows), name)(windows, *given, **named)

        monkeypatch.setattr(windows, name, noted)
    sink.reads(0)
    sink.run.checkpoints.found_nothing(sink.run.state.end, sink.world.now)
    sink.run.batches.until_due()
    sink.run.batches.flush()
    assert sink.run.batches.due()
    assert set(used) == {"flush", "end_flush", "next_batch", "until_due", "found_nothing", "reset_idle"}
    assert min(used.values()) > 0


def test_rows_that_became_late_are_staged_again_although_the_first_ones_cannot_be_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = ManualSink(replace(SPEC, times=RowTimes(LateRows.ERROR)))
    sink.reads(0, time=10, promised=20)
    sink.run.batches.flush()
    sink.commits()

    def refuses(name: str) -> None:
        raise TransientError(f"{name} could not be removed")

    monkeypatch.setattr(sink.outer, "delete", refuses)
    late = Staged(("stage/late",), 1, 1, 20, 5, 5, (5,))
    assert not sink.run.checkpoints.stage(CheckpointIdentity("q", 1, sink.run.state.end, "2"), late, sink.world.now)
