"""Everything durable, in memory: source, Spark's checkpoints, state location, catalog; and the checker.

The drivers of `driver.py`, which run calve's real protocol code, act on the world, and the environment disturbs it.
Every snapshot of the sink is checked when it is applied: contents equal the reference, progress advances without gaps
or overlaps, the fence is respected.
"""

import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from calve.errors import CommitConflict, CommitUnknown, TransientError
from calve.model.frontier import START, Frontier
from calve.model.progress import Fence, Progress
from calve.model.table import REPLACE, Proposal, SnapshotInfo, TableState

from .contents import VECTORS, Contents, File, Row, Violation

FAULTS = {
    "zombie": 0.5,
    "replace": 0.5,
    "expire": 0.3,
    "checkpoint_lost": 0.4,
    "checkpoint_rewound": 0.3,
    "down": 0.3,
    "idle": 0.5,
    "version": 0.2,
    "stray": 0.15,
    "delayed": 0.4,
    "orphan": 0.2,
    "foreign": 0.1,
    "rollback": 0.1,
    "recreate": 0.06,
    "state_lost": 0.08,
    "record_lost": 0.06,
    "property_lost": 0.05,
    "pause": 0.6,
    "load": 0.7,
    "dirty": 0.3,
}

ADOPTED = {"load", "dirty"}
"""What else happens to adopted tables."""

FORMATS = [(2, ""), (2, ""), (VECTORS, ""), (VECTORS, ""), (2, "sink"), (2, "others")]
"""The format version of the table, and who upgrades it."""

FOREIGN_KEY = 100
FALSE_CONFLICTS = 0.3
"""Of the commits whose answer is lost, how many look like conflicts: no promise may depend on the difference."""


Record = tuple[int | None, int | None, int]
"""Key, value (None deletes), time; a progress mark has no key."""


@dataclass(frozen=True)
class Setup:
    """How hostile a schedule is."""

    bounded: bool
    seekable: bool
    accept: bool
    crash: float
    error: float
    skew: int
    faults: frozenset[str]
    steps: int
    windows: tuple[int | None, ...] = (None,)
    """Every run draws one: None commits each checkpoint separately."""
    positions: tuple[bool, ...] = (False,)
    """Every run draws one: whether it deletes by position."""
    kinds: int = 1
    """Number of kinds of checkpoints; runs differ more often than checkpoints of a run."""
    own_times: bool = False
    """Rows have event times, out of order; progress marks state which times are complete."""
    coalesce: bool = True
    heartbeat: bool = False
    adopt: bool = False
    """The table has rows before the sink, which adopts them."""
    pending: int = 100
    """Limit of batches that wait for the catalog."""
    staged_limit: int | None = None
    """Limit of staged bytes; every checkpoint has one."""
    idle: bool = False
    """With event times: while the source is polled and has nothing, time follows the clock."""
    slow: bool = False
    """Records take time to be read or removed, and files to be looked for: others act in between."""
    version: int = 2
    """The format version that the table is created with."""
    upgraded_by: str = ""
    """Who upgrades it to version 3 later: nobody, the sink, or others, who add no snapshot with it."""

    @classmethod
    def drawn(cls, rng: random.Random, **fixed: Any) -> "Setup":
        drawn = {
            "bounded": rng.random() < 0.25,
            "seekable": rng.random() < 0.8,
            "accept": rng.random() < 0.15,
            "crash": rng.choice([0, 0.01, 0.03, 0.06]),
            "error": rng.choice([0, 0.1, 0.3]),
            "skew": rng.choice([0, 0, 4000]),
            "faults": frozenset(f for f, p in FAULTS.items() if f not in ADOPTED and rng.random() < p),
            "steps": rng.choice([150, 300, 500]),
            "windows": rng.choice([(None,), (20,), (60,), (None, 20, 60)]),
            "own_times": rng.random() < 0.35,
            "coalesce": rng.random() < 0.8,
            "heartbeat": rng.random() < 0.15,
        }
        setup = cls(**{**drawn, **fixed})
        return replace(setup, skew=0) if setup.idle and setup.own_times else setup


@dataclass(frozen=True)
class Snapshot:
    info: SnapshotInfo
    contents: Contents

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.contents.rows

    @property
    def files(self) -> frozenset[str]:
        return frozenset(self.contents.files)


@dataclass(frozen=True)
class Table:
    uuid: str
    snapshots: dict[int, Snapshot]
    head: int | None
    stated: Progress | None
    last_sequence: int
    version: int
    next_row_id: int = 0

    @property
    def contents(self) -> Contents:
        return self.snapshots[self.head].contents if self.head else Contents()

    def with_head(self, info: SnapshotInfo, contents: Contents) -> "Table":
        """With a new snapshot. In format version 3 each row has an id from then on."""
        next_row_id = self.next_row_id
        if self.version >= VECTORS:
            contents, next_row_id = contents.numbered(next_row_id)
        return replace(
            self,
            snapshots={**self.snapshots, info.snapshot_id: Snapshot(info, contents)},
            head=info.snapshot_id,
            last_sequence=info.sequence_number,
            next_row_id=next_row_id,
        )

    def ancestors(self) -> list[Snapshot]:
        found, at = [], self.head
        while at is not None and at in self.snapshots:
            found.append(self.snapshots[at])
            at = self.snapshots[at].info.parent_id
        return found


@dataclass
class SparkCheckpoint:
    """Spark's checkpoint directory: offsets are logged before a batch, commits after it."""

    query_id: str
    start: int
    offsets: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)

    def copy(self) -> "SparkCheckpoint":
        return SparkCheckpoint(self.query_id, self.start, dict(self.offsets), set(self.commits))

    def position(self) -> tuple[int, int]:
        batch = max(self.commits, default=-1) + 1
        return batch, (self.offsets[batch - 1][1] if batch else self.start)


@dataclass(frozen=True)
class Request:
    state: TableState
    proposal: Proposal
    snapshot_id: int


@dataclass(frozen=True)
class UpgradeRequest:
    """A run's upgrade to format version 3."""

    state: TableState
    fence: Fence
    snapshot_id: int


@dataclass
class Truth:
    """The checker's own memory of what was committed."""

    frontier: Frontier = START
    offsets: str | None = None
    commit_id: str = ""
    fence: Fence = field(default_factory=lambda: Fence(0, 0, ""))
    adopting: bool = False
    catching_up: bool = False


class World:
    compactions_give_new_ids = False
    """Mutation: a compaction does not keep the ids of rows."""

    def __init__(self, seed: int, **fixed: Any) -> None:
        self.rng = random.Random(seed)
        self.encodings = random.Random(f"encodings of {seed}")
        self.upkeeps = random.Random(f"upkeep of {seed}")
        self.refusals = random.Random(f"refusals of {seed}")
        """Refusals of the state location to remove something."""
        self.upkeep: bool = fixed.pop("upkeep", self.upkeeps.random() < 0.4)
        """Whether runs compact the table in parallel with their commits."""
        positions = self.encodings.choice([(False,), (True,), (True, False)])
        self.formats = random.Random(f"formats of {seed}")
        self.kinds = random.Random(f"kinds of {seed}")
        kinds = self.kinds.choice([1, 1, 2, 3])
        limits = random.Random(f"limits of {seed}")
        drawn = {
            "positions": positions,
            "kinds": kinds,
            **dict(zip(("version", "upgraded_by"), self.formats.choice(FORMATS), strict=True)),
            "pending": limits.choice([1, 2, 100]),
            "staged_limit": limits.choice([None, None, 1, 3]),
            "idle": limits.random() < 0.4,
            "slow": "faults" not in fixed and random.Random(f"store of {seed}").random() < 0.3,
        }
        self.setup = Setup.drawn(self.rng, **{**drawn, **fixed})
        adopts = self.encodings.random() < 0.2
        if "adopt" not in fixed and "faults" not in fixed and adopts:
            more = frozenset(f for f in sorted(ADOPTED) if self.encodings.random() < FAULTS[f])
            self.setup = replace(self.setup, adopt=True, faults=self.setup.faults | more)
        if self.setup.adopt:
            self.setup = replace(self.setup, seekable=True)
        self.now = 1000
        self.ids = 0
        self.trace: list[str] = []
        self.events: set[str] = set()
        self.settling = self.limit_raised = False
        self.keys = self.rng.choice([2, 3, 5])
        self.source: list[Record] = []
        self.promised = 0
        self.source_limit = self.rng.choice([6, 15, 40])
        self.references: list[dict[int, int]] = [{}]
        self.files, self.applied = dict[str, File](), set[str]()  # in the store; ever in a snapshot of the sink
        self.state: dict[str, bytes] = {}
        self.table = self.new_table()
        self.in_flight: list[Request | UpgradeRequest] = []
        self.down = False
        self.truth = Truth()
        self.broken: set[str] = set()
        self.disk: SparkCheckpoint | None = None
        self.disk_copies: list[SparkCheckpoint] = []
        self.commits = Counter[str]()
        self.begin = 0
        """Where the sink starts reading."""
        self.base: dict[int, int] = {}
        """Rows that the sink adopted."""
        self.claimed_rows: list[tuple[int, int]] = []
        if self.setup.adopt:
            self.produce(self.rng.choice([0, 3, 8]))
            self.begin = len(self.source)
            self.produce(self.rng.choice([0, 2, 4]))
            self.do_load()

    def new_id(self, prefix: str) -> str:
        self.ids += 1
        return f"{prefix}{self.ids:06d}"

    def new_number(self) -> int:
        self.ids += 1
        return self.ids

    def new_table(self) -> Table:
        return Table(self.new_id("table-"), {}, None, None, 0, self.setup.version)

    def say(self, text: str) -> None:
        self.trace.append(f"{self.now:>7} {text}")

    def has(self, fault: str) -> bool:
        return fault in self.setup.faults

    # ---- source

    def produce(self, count: int) -> None:
        if self.setup.idle:
            self.promised = max(self.promised, self.now)  # rows have the time at which they are made, or a later one
        for _ in range(min(count, self.source_limit - len(self.source))):
            if self.setup.own_times and self.rng.random() < 0.3:
                self.promise(self.promised + self.rng.choice([1, 10, 40]))
                continue
            key = self.rng.randrange(self.keys)
            value = None if self.rng.random() < 0.2 else len(self.source) + 1
            self.source.append((key, value, self.promised + self.rng.choice([0, 0, 3, 30, 70])))
            rows = dict(self.references[-1])
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
            self.references.append(rows)

    def promise(self, time: int) -> None:
        """Add a progress mark: no row with a smaller time follows."""
        self.promised = time
        self.source.append((None, None, time))
        self.references.append(self.references[-1])

    def last_time(self) -> int:
        return max((time for key, _, time in self.source[self.begin :] if key is not None), default=-1)

    def reference_below(self, frontier: Frontier) -> dict[int, int]:
        """Return the contents at a frontier: rows ordered by time, those of one time by arrival."""
        rows = dict(self.base)
        for key, value, time in sorted(self.source[self.begin :], key=lambda record: record[2]):
            if key is None or not Frontier(time) < frontier:
                continue
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        return rows

    def reference_at(self, offset: int) -> dict[int, int]:
        """Return the contents at an offset."""
        if not self.setup.adopt:
            return self.references[offset]
        rows = dict(self.base)
        for key, value, _ in self.source[self.begin : offset]:
            if key is not None and value is None:
                rows.pop(key, None)
            elif key is not None and value is not None:
                rows[key] = value
        return rows

    def source_ended(self) -> bool:
        return self.setup.bounded and len(self.source) >= self.source_limit

    # ---- catalog

    def load(self) -> TableState:
        if self.down or (not self.settling and self.rng.random() < self.setup.error / 3):
            raise TransientError("the table could not be loaded")
        table = self.table
        ancestors = table.ancestors()
        has_data = bool(ancestors and ancestors[0].files)
        infos = tuple(s.info for s in ancestors)
        return TableState(table.uuid, infos, table.stated, has_data, table, format_version=table.version)

    def commit(self, state: TableState, proposal: Proposal) -> Progress:
        """Commit as a client sees it: applied, or an error although it was, or will be, applied."""
        request = Request(state, proposal, self.new_number())
        self.answer(request)
        return self.apply(request)

    def upgrade(self, state: TableState, fence: Fence) -> None:
        """Upgrade the table for a run of the sink, with a snapshot that gives every row an id."""
        request = UpgradeRequest(state, fence, self.new_number())
        self.answer(request)
        self.apply_upgrade(request)

    def answer(self, request: Request | UpgradeRequest) -> None:
        """Return if the request is applied at once, and its client told; otherwise raise what the client sees."""
        if self.down:
            raise TransientError("the catalog is down")
        if not self.settling and self.rng.random() < self.setup.error:
            fate = self.rng.choice(["not applied", "applied", "delayed" if self.has("delayed") else "applied"])
            self.say(f"    answer lost: {fate}")
            if fate == "applied":
                self.try_apply(request)
            elif fate == "delayed":
                self.in_flight.append(request)
            if self.rng.random() < FALSE_CONFLICTS:
                raise CommitConflict("the client takes it for refused, whatever became of it")
            raise CommitUnknown("the answer was lost")

    def try_apply(self, request: Request | UpgradeRequest) -> None:
        with suppress(CommitConflict):
            if isinstance(request, Request):
                self.apply(request)
            else:
                self.apply_upgrade(request)

    def check_base(self, base: TableState) -> int:
        """The sequence number of a snapshot on top of `base`; raises CommitConflict if the catalog refuses it."""
        table = self.table
        sequence_number: int = base.handle.last_sequence + 1
        stale = sequence_number <= table.last_sequence  # catalogs refuse it: the branch may be back where it was
        if table.uuid != base.uuid or table.head != base.head or stale:
            raise CommitConflict("the table changed")
        if table.version != base.format_version and table.version >= VECTORS:
            raise CommitConflict("the snapshot has no first row id")
        return sequence_number

    def apply(self, request: Request) -> Progress:
        table, sequence_number = self.table, self.check_base(request.state)
        proposal = request.proposal
        if any(manifest.path not in self.files for manifest in proposal.manifests):
            raise Violation("a snapshot refers to a file that does not exist")
        added = [(manifest.path, self.files[manifest.path]) for manifest in proposal.manifests]
        contents = table.contents.with_files(added, proposal.replaced_deletes, table.version)
        progress = replace(
            proposal.progress,
            table_uuid=table.uuid,
            snapshot_id=request.snapshot_id,
            sequence_number=sequence_number,
        )
        stated = Progress.from_property(progress.to_property())
        own = Progress.from_summary(
            progress.to_summary(), snapshot_id=progress.snapshot_id, sequence_number=progress.sequence_number
        )
        info = SnapshotInfo(request.snapshot_id, table.head, progress.sequence_number, "overwrite", own)
        self.table = replace(table.with_head(info, contents), stated=stated)
        snapshot = self.table.snapshots[request.snapshot_id]
        if table.version >= VECTORS:
            snapshot.contents.check_ids(table.contents, table.next_row_id)
            self.commits["vectors replaced"] += len(proposal.replaced_deletes)
            self.commits["ids kept"] += sum(len(file.ids) for _, file in added)
        self.applied |= {manifest.path for manifest in proposal.manifests}
        self.check(snapshot, stated)
        return progress

    def apply_upgrade(self, request: UpgradeRequest) -> None:
        sequence_number = self.check_base(request.state)
        if request.fence != self.truth.fence:
            raise Violation(f"{request.fence} upgraded the table, but {self.truth.fence} holds the fence")
        self.say(f"    APPLIED upgrade {request.snapshot_id}")
        self.commits["upgrades"] += 1
        info = SnapshotInfo(request.snapshot_id, self.table.head, sequence_number, REPLACE, None)
        self.table = replace(self.table, version=VECTORS).with_head(info, self.table.contents)

    # ---- the checker

    def check(self, snapshot: Snapshot, stated: Progress) -> None:
        truth = self.truth
        claim = stated.commit_id == truth.commit_id
        self.say(
            f"    APPLIED {'claim' if claim else 'batch'} {snapshot.info.snapshot_id} epoch {stated.fence.epoch} "
            f"[{stated.lower}, {stated.frontier}) offsets {stated.offsets} {stated.commit_id}"
        )
        if self.broken:
            raise Violation(f"own commit after {sorted(self.broken)}")
        rows = [r for r in snapshot.rows if r[0] < FOREIGN_KEY or not self.setup.accept]
        if self.setup.adopt and self.check_adoption(rows, stated):
            return
        if len({k for k, *_ in rows}) != len(rows):
            raise Violation(f"a key is there twice: {rows}")
        self.check_contents({key: value for key, value, _ in rows}, stated)
        if claim:
            if (stated.frontier, stated.offsets) != (truth.frontier, truth.offsets):
                raise Violation("a claim does not repeat the progress")
            if not truth.fence < stated.fence:
                raise Violation("a claim does not raise the fence")
        else:
            if stated.lower != truth.frontier or not stated.lower < stated.frontier:
                raise Violation(f"batch [{stated.lower}, {stated.frontier}) after frontier {truth.frontier}")
            if int(stated.offsets or 0) < int(truth.offsets or 0):
                raise Violation("offsets went back")
            if stated.fence != truth.fence:
                raise Violation(f"{stated.fence} committed, but {truth.fence} holds the fence")
            self.commits["batches"] += 1
        self.truth = Truth(
            stated.frontier, stated.offsets, stated.commit_id, stated.fence, catching_up=stated.catching_up
        )

    def check_adoption(self, listed: list[Row], stated: Progress) -> bool:
        """Check claims that adopt rows, and the statement that they are valid; False for all other snapshots."""
        truth, rows = self.truth, sorted((key, value) for key, value, _ in listed)
        forgotten = {"property_lost", "state_lost"} <= self.events  # nothing says any more that it claimed
        first = not truth.fence.epoch or (forgotten and not stated.commit_id)
        if not (first or truth.adopting):
            return False
        if int(stated.offsets or 0) != self.begin or stated.commit_id or stated.frontier != START:
            raise Violation("a sink that adopts rows starts elsewhere, or commits before they are checked")
        if stated.adopting is not None or first:
            again = stated.fence == truth.fence  # its first claim was lost before the run learned of it
            if not (truth.fence < stated.fence or again or forgotten):
                raise Violation("a claim does not raise the fence")
            self.claimed_rows, self.base = rows, dict(rows)
        elif stated.fence != truth.fence:
            raise Violation(f"{stated.fence} checked the rows, but {truth.fence} holds the fence")
        elif self.setup.accept:
            self.base = dict(rows)  # what others did since the claim is not looked at
        elif rows != self.claimed_rows or len(dict(rows)) != len(rows):
            raise Violation(f"adopted without a check: {rows}, claimed {self.claimed_rows}")
        self.truth = Truth(
            stated.frontier,
            stated.offsets,
            "",
            stated.fence,
            adopting=stated.adopting is not None,
            catching_up=stated.catching_up,
        )
        return True

    def check_contents(self, rows: dict[int, int], stated: Progress) -> None:
        offset = int(stated.offsets or 0)
        reference = self.reference_at(offset)
        if self.setup.own_times:
            reference = self.reference_below(stated.frontier)
            behind = [time for key, _, time in self.source[self.begin : offset] if key is not None]
            if behind and not Frontier(max(behind)) < stated.frontier:
                raise Violation(f"a row of time {max(behind)} is before the offsets and not in the table")
        if rows != reference:
            raise Violation(f"contents {rows} are not those at offset {stated.offsets}: {reference}")

    # ---- what others do to the table, and time

    def do_idle(self) -> None:
        self.now += self.rng.choice([15, 40, 90])

    def do_down(self) -> None:
        self.down = not self.down

    def foreign_snapshot(self, operation: str, contents: Contents) -> None:
        number = self.new_number()
        info = SnapshotInfo(number, self.table.head, self.table.last_sequence + 1, operation, None)
        self.table = self.table.with_head(info, contents)
        self.say(f"foreign {operation} {number}")

    def add_file(self, prefix: str, rows: dict[int, int], operation: str = "append") -> None:
        """Add a file with rows, or put it in the place of all others, as another writer does."""
        name = self.new_id(prefix)
        self.files[name] = File(rows)
        before = self.table.contents if operation == "append" else Contents()
        self.foreign_snapshot(operation, before.with_files([(name, self.files[name])], (), self.table.version))

    def rewrite(self, operation: str, *, keep_ids: bool = True) -> None:
        """Write all rows again."""
        before = self.table.contents
        rewritten = before.rewritten([self.new_id("compacted-") for _ in before.files], keep_ids=keep_ids)
        self.files.update(rewritten.files)
        self.foreign_snapshot(operation, rewritten)
        if operation == REPLACE:
            self.table.contents.check_same_rows(before)

    def do_replace(self) -> None:
        if self.table.contents.files:
            self.rewrite(REPLACE, keep_ids=not self.compactions_give_new_ids)

    def step(self) -> None:
        """Let others upgrade the table, if they do."""
        if self.setup.upgraded_by == "others" and self.table.version < VECTORS and self.formats.random() < 0.01:
            self.table = replace(self.table, version=VECTORS)
            self.say("others upgraded the table")

    def compact(self, state: TableState, fence: Fence) -> None:
        """Replace the files of exactly `state` by one with the same rows, as a run of the sink."""
        if self.down:
            raise TransientError("the catalog is down")
        if self.table.uuid != state.uuid or self.table.head != state.head:
            raise CommitConflict("the table changed")
        if fence != self.truth.fence:
            raise Violation(f"{fence} committed a compaction, but {self.truth.fence} holds the fence")
        self.commits["compactions"] += 1
        self.do_replace()

    def do_foreign(self) -> None:
        if self.table.head is None:
            return
        self.events.add("foreign")
        if self.table.version >= VECTORS and self.formats.random() < 0.5:
            self.rewrite("overwrite", keep_ids=False)  # deletes all rows and inserts them again
        else:
            self.add_file("foreign-", {FOREIGN_KEY + self.new_number(): -1})

    @property
    def loadable(self) -> bool:
        """Whether the sink will check rows that are added now; if it accepts foreign commits, not after its claim."""
        return not self.truth.fence.epoch or (self.truth.adopting and not self.setup.accept)

    def do_load(self) -> None:
        """Bulk-load everything that the source has now, unless the sink has adopted the table."""
        if not self.loadable:
            return
        self.events |= {"foreign"} if self.truth.adopting else set()
        self.add_file("loaded-", dict(self.references[-1]), "overwrite")

    def do_dirty(self) -> None:
        """Load a duplicate key."""
        if not self.loadable:
            return
        rows = self.table.contents.rows
        if rows:
            self.events |= {"dirty", "foreign"}
            self.add_file("loaded-", {rows[0][0]: -2})

    def do_expire(self) -> None:
        keep = self.rng.choice([1, 1, 2, 4])
        kept = [s.info.snapshot_id for s in self.table.ancestors()][:keep]
        if kept:
            self.table = replace(self.table, snapshots={i: self.table.snapshots[i] for i in kept})
            self.events.add("expire")
            self.say(f"expired all but {kept}")

    def do_rollback(self) -> None:
        ancestors = self.table.ancestors()
        if len(ancestors) > 1 and "property_lost" not in self.events:
            back = self.rng.randrange(1, min(4, len(ancestors)))
            self.table = replace(self.table, head=ancestors[back].info.snapshot_id)
            self.say(f"rolled back to {ancestors[back].info.snapshot_id}")
            self.events.add("rollback")
            if any(s.info.own for s in ancestors[:back]):
                self.broken.add("rollback")

    def do_recreate(self) -> None:
        had = self.table.head is not None
        self.table = self.new_table()
        self.say("table recreated")
        self.events.add("recreate")
        self.broken.discard("rollback")
        if had and self.truth.offsets and self.state:
            self.broken.add("recreate")
        elif had:
            self.truth = Truth()

    def do_property_lost(self) -> None:
        if self.table.stated and "rollback" not in self.events:  # after both, nothing in the table could tell
            self.table = replace(self.table, stated=None)
            self.events.add("property_lost")
            self.say("table property removed")

    def wipe_state(self) -> None:
        self.state.clear()
        self.events.add("state_lost")
        self.say("state location wiped")
        if "recreate" in self.broken:  # nothing is left that could know
            self.broken.discard("recreate")
            self.truth = Truth()

    def lose_record(self) -> None:
        records = sorted(n for n in self.state if n.startswith(("rec/", "stage/")) and not n.endswith("adopt"))
        if records:
            name = self.rng.choice(records)
            del self.state[name]
            self.events.add("state_lost")
            self.say(f"lost {name}")

    def remove_orphans(self) -> None:
        used = {f for s in self.table.snapshots.values() for f in s.files}
        gone = [f for f in self.files if f not in used]
        for name in gone:
            del self.files[name]
        if gone:
            self.events.add("orphan")
            self.say(f"orphan removal of {gone}")
