"""A run in a simulated world, called by the test: time advances, and the committer runs, whenever the run waits."""

import json
from collections.abc import Callable

from calve.commit.checkpoints import CheckpointFiles
from calve.commit.journal import Journal
from calve.commit.run import SinkRun
from calve.commit.run_state import RunPorts
from calve.model.checkpoint import CheckpointIdentity, Staged
from calve.model.files import FileTotals
from calve.model.spec import SinkSpec
from tests.simulation.driver import Schedule, Simulated
from tests.simulation.world import World


class Outer(Simulated):
    """A world in which time advances, and the committer runs, whenever the run waits."""

    meanwhile: Callable[[], None]

    def pause(self, seconds: float) -> None:
        del seconds
        self._world.now += 1
        self.waits += 1
        assert self.waits < 1000, "it waits for ever"
        self.meanwhile()

    waits = 0


class ManualSink:
    """A run, its ports, and a committer that the test calls."""

    def __init__(self, spec: SinkSpec) -> None:
        world = World(1, faults=frozenset(), error=0, crash=0, skew=0, own_times=False, accept=False)
        self.world, self.outer = world, Outer(world, Schedule())
        outer = self.outer
        self.run = SinkRun(spec, outer, Journal(outer), RunPorts(outer, outer, outer, outer, outer), lambda _: True)
        self.run.claims.boot()
        self.run.claims.claim()
        self.catalog_is_there = True
        self.batches = 0
        outer.meanwhile = self.commits
        self.world.references = [{} for _ in range(100)]

    def commits(self) -> None:
        """Do what the committer's thread does between two waits."""
        if not self.catalog_is_there:
            return
        if self.run.state.ready:
            assert self.run.commits.commit_next()
            self.batches += 1
        elif batch := self.run.batches.due():
            self.run.batches.close(batch, CheckpointFiles(self.outer.new_id(), (), FileTotals()))

    def reads(self, number: int, *, time: int | None = None, promised: int = 0) -> None:
        """Stage one checkpoint of one byte; with a time, or only a progress row."""
        name = f"{self.run.checkpoints.stage_folder}/{number}"
        self.outer.put(name, json.dumps([]).encode())
        staged = Staged((name,), 1, 1)
        if self.run.state.spec.times:
            times = (-1, -2, ()) if time is None else (time, time, (time,))
            staged = Staged((name,) if time is not None else (), int(time is not None), 1, promised, *times)
        start = self.run.state.end
        assert self.run.checkpoints.stage(
            CheckpointIdentity("q", number, start, str(number + 1)), staged, self.world.now
        )
