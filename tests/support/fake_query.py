"""What Spark does with a stream of changes, without Spark."""

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from calve.changelog.worker import StreamPairing
from calve.lake import TableRef
from calve.model.changelog import CHANGE_COLUMNS
from calve.source.following import POLL_SECONDS
from calve.source.table_stream import BEGINNING, ChangeStream, define_stream
from tests.support.change_feed import Change
from tests.unit.iceberg.sample import SetClock

PLACES = {"delete": 0, "update_preimage": 1, "update_postimage": 2, "insert": 3}


class PassingClock(SetClock):
    """A clock on which every poll is due."""

    def monotonic(self) -> float:
        self.now += round(POLL_SECONDS * 1000)
        return super().monotonic()


@dataclass
class FakeQuery:
    """What Spark does with a source: logs the end of every batch, then runs it; a restart repeats the last one.

    All offsets go through JSON, all tasks through pickle, as they do in Spark.
    """

    ref: TableRef
    how: dict[str, Any]
    clock: SetClock = field(default_factory=PassingClock)
    log: list[str] = field(default_factory=list)
    committed: int = 0
    changes: list[Change] = field(default_factory=list)
    stream: ChangeStream = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A new process: it is told where the query is."""
        self.definition = pickle.loads(pickle.dumps(define_stream(self.ref, **self.how)))
        self.stream = self.definition.open(self.clock)
        if self.log and self.committed == len(self.log):
            assert self.stream.plan(json.loads(self.log[-1]), json.loads(self.log[-1])) == ()
        elif self.log:
            self.run()

    def poll(self, *, dies: bool = False) -> bool:
        """Run a batch, if there is one; one that dies was planned and maybe read, and is not committed."""
        end = json.dumps(self.stream.latest())
        if self.log:
            if self.committed == len(self.log):
                self.stream.commit(json.loads(self.log[-1]))
            if end == self.log[-1]:
                return False
        self.log.append(end)
        if dies:
            list(self.batch())
        else:
            self.run()
        return True

    def run(self) -> None:
        self.changes += self.batch()
        self.committed = len(self.log)

    def batch(self) -> Iterator[Change]:
        start, end = json.loads(self.log[-2]) if len(self.log) > 1 else BEGINNING, json.loads(self.log[-1])
        tasks = self.stream.plan(start, end)
        assert self.stream.plan(start, end) == tasks, "Spark plans a batch several times"
        events = [batch for task in pickle.loads(pickle.dumps(tasks)) for batch in task.read()]
        places = tuple(self.definition.columns.index(name) for name in self.definition.key)
        names = [*self.definition.columns, *CHANGE_COLUMNS]
        for batch in StreamPairing(places, self.definition.before).read(iter(events)):
            yield from pa.RecordBatch.from_arrays(batch.columns, names=names).to_pylist()


def ordered(changes: list[Change]) -> list[Change]:
    """By step, as a consumer applies them."""
    return sorted(changes, key=lambda c: (c["_commit_version"], c["id"], PLACES[c["_change_type"]]))
