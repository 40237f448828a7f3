"""One run of one sink, in the parts of its life cycle.

    claims ──► checkpoints ──► batches ──► commits
       start     the feed's thread           the committer's thread

All parts share one `RunState`.
"""

from calve.commit.batches import Batches
from calve.commit.checkpoints import Checkpoints
from calve.commit.claims import Claims
from calve.commit.commits import Commits
from calve.commit.journal import Journal
from calve.commit.ports import TableStore
from calve.commit.run_state import RunPorts, RunState
from calve.commit.takeover import CanReread
from calve.model.spec import SinkSpec


class SinkRun:
    """State machine of one run. `can_reread` returns whether the source can start at given offsets."""

    def __init__(
        self, spec: SinkSpec, table: TableStore, journal: Journal, ports: RunPorts, can_reread: CanReread
    ) -> None:
        self.state = RunState(spec, table, journal, ports)
        self.claims = Claims(self.state, ports.existing, can_reread)
        self.checkpoints = Checkpoints(self.state)
        self.batches = Batches(self.state, self.claims)
        self.commits = Commits(self.state, self.claims)
