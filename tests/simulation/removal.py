"""Random schedules of expiry and removal: the real decisions, journal and removal, on a table in memory.

Around them act a writer that loses answers and commits again after a rollback, compactions with holds, people who tag,
roll back, review, cherry-pick and add files, and another engine that expires snapshots. Processes die at every
failpoint. The world checks each removed file and each commit:

- no file is removed that a snapshot, a record, or a snapshot that expired less than a grace ago names;
- no commit names a file that is gone;
- no snapshot expires too early, no tag or branch is lost where the catalog can prevent it;
- neither a sink nor a compaction loses the chain from its snapshot to the head;
- an expiry that was carried out leaves no file behind.
"""

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from calve import faults
from calve.errors import CommitConflict, CommitUnknown, TransientError
from calve.iceberg.snapshot.expired_files import DATA, MANIFESTS, NamedFile, TableNames
from calve.iceberg.snapshot.history import NamedSink
from calve.iceberg.snapshot.removal_journal import RemovalEntry, RemovalJournal, RemovedSnapshot, journalled
from calve.iceberg.snapshot.retention import MAIN, Expired, ExpiryPolicy, History, PastRef, PastSnapshot, expired
from calve.maintain import removal
from calve.maintain.removal import FileDifference, InFlight, Removal, RemovalReport
from calve.model.progress import tag_name
from calve.model.spec import RetentionOptions

from .contents import Violation

SINK = "s"
AGE, GRACE = 60, 30
UUID = "table"


@dataclass(frozen=True)
class Snap:
    past: PastSnapshot
    manifests: frozenset[str]
    batch: str = ""
    """The writer's batch that it commits."""

    @property
    def list(self) -> str:
        return f"list-{self.past.snapshot_id}"


@dataclass(frozen=True)
class Setup:
    rest: bool
    """The catalog cannot exclude refs that it does not know."""
    thin: bool
    error: float
    crash: float
    min_keep: int
    faults: frozenset[str]
    at_once: int
    """Files that are removed between two loads of the table."""
    tasks: bool
    """Files are compared all at once, as Spark tasks do it."""


FAULTS = {
    "tag": 0.6,
    "branch": 0.3,
    "untag": 0.4,
    "rollback": 0.5,
    "stage": 0.5,
    "cherry_pick": 0.5,
    "add_files": 0.4,
    "foreign_expiry": 0.2,
    "hold": 0.5,
    "merge": 0.7,
    "overwrite": 0.7,
    "gc": 0.15,
    "back": 0.15,
    "pause": 0.5,
    "rest": 0.4,
    "damaged": 0.2,
    "unreachable": 0.2,
}


class RemovalWorld:
    """A table, its files and its state location."""

    def __init__(self, seed: int, **fixed: Any) -> None:
        self.rng = rng = random.Random(f"removal {seed}")
        drawn = {
            "rest": rng.random() < 0.3,
            "thin": rng.random() < 0.3,
            "error": rng.choice([0, 0.1, 0.3]),
            "crash": rng.choice([0, 0.02, 0.1]),
            "min_keep": rng.choice([1, 1, 3]),
            "faults": frozenset(name for name, share in FAULTS.items() if rng.random() < share),
        }
        apart = random.Random(f"comparison {seed}")
        drawn |= {"at_once": apart.choice([1, 1000]), "tasks": apart.random() < 0.5}
        self.setup = Setup(**{**drawn, **fixed})
        self.now, self.numbers = 1000, 0
        self.trace: list[str] = []
        self.snapshots: dict[int, Snap] = {}
        self.refs: dict[str, PastRef] = {}
        self.log: list[tuple[int, int]] = []
        self.sequence = 0
        self.gc = self.shown_gc = True
        """Whether files may be removed: now, and when the table was last loaded. Nobody can know what changed since."""
        self.reachable = True
        """Whether the records of the sink can be read."""
        self.ever: dict[int, Snap] = {}
        """Every snapshot, with the parent it was committed on."""
        self.ended: dict[int, int] = {}
        """When a snapshot was committed, or last was the head of main."""
        self.removed_at: dict[int, int] = {}
        self.lost: set[int] = set()
        """Snapshots that an expiry removed although a ref named them."""
        self.refs_before: dict[int, frozenset[int]] = {}
        self.contents: dict[str, tuple[str, ...]] = {}
        """The data files of every manifest."""
        self.lists: dict[str, frozenset[str]] = {}
        self.files: set[str] = set()
        self.damaged: str | None = None
        self.state: dict[str, bytes] = {}
        self.records: dict[str, str] = {}
        """The manifest of each batch that is recorded and not known to be committed."""
        self.delayed: list[tuple[int, Callable[[], object]]] = []
        self.picks: list[tuple[int, Snap]] = []
        self.holds: dict[str, int] = {}
        self.cut_by_others = False
        self.rests_until = 0
        self.settling = False
        self.done: dict[str, int] = {"expired": 0, "removed": 0}

    def say(self, text: str) -> None:
        self.trace.append(f"{self.now:>6} {text}")

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def has(self, fault: str) -> bool:
        return fault in self.setup.faults

    # ---- files

    def new_manifest(self, data: Iterable[str], prefix: str = "m") -> str:
        name = f"{prefix}-{self.number()}"
        self.contents[name] = tuple(data)
        self.files.add(name)
        return name

    def new_data(self) -> str:
        name = f"d-{self.number()}"
        self.files.add(name)
        return name

    def named_by(self, snaps: Iterable[Snap]) -> set[str]:
        found: set[str] = set()
        for snap in snaps:
            found.add(snap.list)
            for manifest in snap.manifests:
                found.add(manifest)
                found.update(self.contents[manifest])
        return found

    # ---- the table

    @property
    def head(self) -> int | None:
        return self.refs[MAIN].snapshot_id if MAIN in self.refs else None

    def history(self) -> History:
        # The sink has progress whether or not one of its snapshots is left.
        return History(
            {n: s.past for n, s in self.snapshots.items()},
            dict(self.refs),
            tuple(self.log),
            {},
            frozenset({SINK}),
        )

    def chain(self) -> list[int]:
        return [one.snapshot_id for one in self.history().ancestors(self.head)]

    def add(self, manifests: Iterable[str], *, sink: bool = False, batch: str = "", staged: bool = False) -> int:
        """Apply a commit on top of the head."""
        named, self.sequence = frozenset(manifests), self.sequence + 1
        number = 10_000 + self.number()
        past = PastSnapshot(number, self.head, self.sequence, self.now, SINK if sink else None, staged)
        snap = Snap(past, named, batch)
        if missing := self.named_by([snap]) - self.files - {snap.list}:
            raise Violation(f"a commit names files that are gone: {sorted(missing)}")
        self.files.add(snap.list)
        self.lists[snap.list] = named
        self.snapshots[number] = self.ever[number] = snap
        self.ended[number] = self.now
        if not staged:
            self.move(MAIN, number)
            if sink:
                self.refs[tag_name(SINK)] = PastRef(number, branch=False, max_ref_age_ms=2**63 - 1)
        return number

    def move(self, branch: str, to: int) -> None:
        before = self.refs.get(branch)
        if before is not None:
            self.ended[before.snapshot_id] = self.now
        self.refs[branch] = replace(before, snapshot_id=to) if before else PastRef(to, branch=True)
        if branch == MAIN:
            self.log.append((self.now, to))

    def expire(self, gone: Expired, refs: dict[str, PastRef], policy: ExpiryPolicy) -> None:
        """Apply an expiry that was planned on these refs."""
        known = self.refs if not self.setup.rest else {n: r for n, r in self.refs.items() if n in refs}
        if known != refs or not set(gone.snapshots) <= self.snapshots.keys():
            raise CommitConflict("refs changed")
        self.check_expiry(gone, policy)
        for name in gone.refs:
            del self.refs[name]
        named = frozenset(ref.snapshot_id for ref in self.refs.values()) & set(gone.snapshots)
        if named and not self.setup.rest:
            raise Violation(f"an expiry drops the refs of {sorted(named)}")
        self.lost |= named
        before = frozenset(self.chain())
        self.drop(gone.snapshots, named)
        self.done["expired"] += len(gone.snapshots)
        self.check_chains(before)

    def drop(self, ids: Iterable[int], named: frozenset[int] = frozenset()) -> None:
        away = set(ids)
        for number in away:
            self.removed_at[number], self.refs_before[number] = self.now, named
            del self.snapshots[number]
        self.refs = {name: ref for name, ref in self.refs.items() if ref.snapshot_id not in away}
        self.log = [(at, number) for at, number in self.log if number not in away]
        self.snapshots = {
            n: replace(s, past=replace(s.past, parent_id=None)) if s.past.parent_id in away else s
            for n, s in self.snapshots.items()
        }

    # ---- the checker

    def check_expiry(self, gone: Expired, policy: ExpiryPolicy) -> None:
        journal = RemovalJournal(Store(self))
        if not set(gone.snapshots) <= {i for entry in journal.entries(UUID) for i in entry.ids}:
            raise Violation("snapshots expire that no entry of the journal names")
        if self.setup.thin:
            return
        first = set(self.chain()[: policy.options.min_snapshots])
        for number in gone.snapshots:
            age = 2 * AGE if self.snapshots[number].past.staged else AGE
            if number in first or self.now - self.ended[number] < age:
                raise Violation(f"snapshot {number} expires too early")

    def check_chains(self, before: frozenset[int]) -> None:
        """Check that those who must prove that the head descends from their snapshot still can.

        `before` is the chain before an expiry: after a rollback, a snapshot that expired long ago may be the newest.
        """
        if self.cut_by_others:
            return
        true, at = [], self.head
        while at is not None:
            true.append(at)
            at = self.ever[at].past.parent_id
        chain = set(self.chain())
        own = next((n for n in true if self.ever[n].past.sink_id == SINK), None)
        for what, number in (("a sink", own), *(("a hold", n) for n in self.holds.values())):
            if number in before and number not in chain:
                raise Violation(f"{what} cannot prove that the head descends from {number}")

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files as the removal asks for it."""
        away = set(paths) & self.files
        kept = {
            "the table": self.snapshots.values(),
            "a snapshot within its grace": [self.ever[n] for n, at in self.removed_at.items() if self.now - at < GRACE],
            "a snapshot with a tag": [self.ever[n] for n in self.lost],
        }
        for who, snaps in kept.items():
            if wrong := away & self.named_by(snaps):
                raise Violation(f"{sorted(wrong)} removed, which {who} names")
        for batch, manifest in self.records.items():
            if wrong := away & {manifest, *self.contents[manifest]}:
                raise Violation(f"{sorted(wrong)} removed, which the record of {batch} names")
        if not self.shown_gc and away:
            raise Violation("files removed although gc.enabled is false")
        damaged = any(self.damaged in s.manifests for s in self.snapshots.values())
        if damaged and any(path.startswith("d-") for path in away):
            raise Violation("files removed although a manifest of the table cannot be read")
        self.files -= away
        self.done["removed"] += len(away)

    def check_complete(self, entry: RemovalEntry) -> None:
        """Check that an entry which is done leaves no file that nothing names."""
        snaps = [self.ever[one.snapshot_id] for one in entry.snapshots]
        if any(snap.list in self.files for snap in snaps):
            return  # dropped, not carried out
        waiting = {i for e in RemovalJournal(Store(self)).entries(UUID) for i in e.ids}
        others = [self.ever[n] for n in waiting - entry.ids] + list(self.snapshots.values())
        kept = self.named_by(others) | self.named_by(self.ever[n] for n in self.lost)
        for manifest in self.records.values():
            kept |= {manifest, *self.contents[manifest]}
        if left := (self.named_by(snaps) & self.files) - kept:
            raise Violation(f"{sorted(left)} left behind")


class Store:
    """The state location."""

    def __init__(self, world: RemovalWorld) -> None:
        self._world = world

    def put(self, name: str, data: bytes) -> None:
        faults.reached("state.put")
        self._world.state[name] = data

    put_new = put

    def read(self, name: str) -> bytes | None:
        return self._world.state.get(name)

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None:
        raise NotImplementedError(name, ranges)

    def list(self, prefix: str) -> list[str]:
        return sorted(n for n in self._world.state if n.startswith(f"{prefix}/"))

    def delete(self, name: str) -> None:
        data = self._world.state.pop(name, None)
        if data is not None:
            world = RemovalJournal(Once(name, data)).entries(UUID)
            self._world.check_complete(world[0])


class Once(Store):
    """A store with one record."""

    def __init__(self, name: str, data: bytes) -> None:
        self._name, self._data = name, data

    def list(self, prefix: str) -> list[str]:
        del prefix
        return [self._name]

    def read(self, name: str) -> bytes | None:
        del name
        return self._data


class SimulatedFiles:
    """Implements the port `TableFiles`, with a failpoint at every request."""

    def __init__(self, world: RemovalWorld) -> None:
        self._world = world

    def load(self) -> TableNames:
        faults.reached("load")
        world = self._world
        if not world.settling and world.rng.random() < world.setup.error / 5:
            raise TransientError("the table could not be loaded")
        lists = {n: s.list for n, s in world.snapshots.items()}
        world.shown_gc = world.gc
        return TableNames(UUID, lists, sinks=(NamedSink(SINK, None, None),), refusal="" if world.gc else "gc.enabled")

    def lost_refs(self, removed: frozenset[int]) -> frozenset[int]:
        return frozenset(n for n in removed if n in self._world.refs_before.get(n, ()))

    def manifests_in(self, manifest_list: str) -> list[NamedFile]:
        faults.reached("read list")
        self._look_for(manifest_list)
        return [NamedFile(one, MANIFESTS) for one in sorted(self._world.lists[manifest_list])]

    def files_in(self, manifest: str) -> list[NamedFile]:
        faults.reached("read manifest")
        self._look_for(manifest)
        return [NamedFile(one, DATA) for one in self._world.contents[manifest]]

    def _look_for(self, path: str) -> None:
        if path not in self._world.files:
            raise FileNotFoundError(2, "missing", path)
        if path == self._world.damaged:
            raise OSError(5, "damaged", path)

    def sizes_of(self, paths: Sequence[str]) -> dict[str, int]:
        return dict.fromkeys(paths, 1)

    def remove(self, paths: Sequence[str]) -> None:
        """Files go one by one: the process may die in between."""
        world = self._world
        if not world.settling and world.rng.random() < world.setup.crash:
            world.remove(paths[: len(paths) // 2])
            raise OSError(5, "killed while files are removed")
        world.remove(paths)


class SimulatedTasks:
    """Implements the port `TaskComparison`: manifests are read in any order, and nothing again."""

    from_bytes = 0

    def __init__(self, files: SimulatedFiles) -> None:
        self._files = files

    @contextmanager
    def compare(
        self, candidates: Collection[str], kept: Collection[str], check: Callable[[], None]
    ) -> Iterator[FileDifference]:
        check()
        named: set[str] = set()
        missing: set[str] = set()
        unnamed: dict[str, NamedFile] = {}
        manifests = sorted([*((one, False) for one in candidates), *((one, True) for one in kept)])
        for manifest, stays in manifests:
            try:
                found = {file.path: file for file in self._files.files_in(manifest)}
            except FileNotFoundError:
                missing |= {manifest} if stays else set()
            except OSError as error:
                removal.refuse_unreadable(error)
            else:
                if stays:
                    named |= found.keys()
                else:
                    unnamed |= found
        yield FileDifference(frozenset(missing), iter([[file for path, file in unnamed.items() if path not in named]]))


class Job:
    """A process that expires snapshots and then removes files."""

    def __init__(self, world: RemovalWorld) -> None:
        self.world, self.main = world, getcurrent()
        self.thread = greenlet(self.run)
        self.alive, self.paused_until = True, 0
        self.report: RemovalReport | None = None

    def now_ms(self) -> int:
        return self.world.now

    def monotonic(self) -> float:
        return float(self.world.now)

    def step(self) -> None:
        faults.install(lambda point: self.main.switch(point) if getcurrent() is not self.main else None)
        try:
            self.thread.switch()
        except (TransientError, OSError) as error:
            self.alive = False
            self.world.say(f"job ends: {error}")
        finally:
            faults.install(None)
        self.alive = self.alive and not self.thread.dead

    def end(self) -> None:
        with suppress(BaseException):
            self.thread.throw(GreenletExit)

    def run(self) -> None:
        world = self.world
        journal = RemovalJournal(Store(world))
        with suppress(CommitConflict, CommitUnknown):
            self.expire(journal)
        files = SimulatedFiles(world)
        tasks = SimulatedTasks(files) if world.setup.tasks else None
        at_once = world.setup.at_once
        removal = Removal(files, journal, self.in_flight, self, grace_ms=GRACE, tasks=tasks, at_once=at_once)
        self.report = removal.run()

    def expire(self, journal: RemovalJournal) -> None:
        world = self.world
        options = RetentionOptions(AGE, world.setup.min_keep, world.setup.thin)
        if not world.gc:
            return
        history = world.history()
        policy = ExpiryPolicy(options, MAIN, world.now, batch=1, force=True)
        found = expired(history, policy)
        if not found.snapshots:
            return
        near = history.without(found.refs).in_ancestry
        entry = RemovalEntry(
            f"e{world.number()}",
            UUID,
            tuple(
                RemovedSnapshot(n, f"list-{n}", world.snapshots[n].past.sink_id, n not in near) for n in found.snapshots
            ),
            (),
            world.now,
        )
        world.say(f"expiry of {found.snapshots} is planned")

        def commit() -> None:
            faults.reached("expiry.before")
            if not world.settling and world.rng.random() < world.setup.error:
                fate = world.rng.choice(["lost", "applied", "delayed"])
                if fate == "delayed":
                    world.delayed.append((world.now + 20, lambda: world.expire(found, dict(history.refs), policy)))
                elif fate == "applied":
                    world.expire(found, dict(history.refs), policy)
                raise CommitUnknown("the answer was lost")
            world.expire(found, dict(history.refs), policy)
            world.say(f"expired {found.snapshots}")
            faults.reached("expiry.after")

        journalled(journal, entry, commit)

    def in_flight(self, names: TableNames) -> InFlight:
        del names
        world = self.world
        for _ in range(world.rng.choice([1, 3, 12])):
            faults.reached("read records")
        if not world.reachable:
            return InFlight(unknown_sinks=frozenset({SINK}))
        return InFlight(frozenset(world.records.values()))


class RemovalSimulation:
    """One seed, one schedule."""

    steps = 260

    def __init__(self, seed: int, **fixed: Any) -> None:
        self.world = RemovalWorld(seed, **fixed)
        self.jobs: list[Job] = []
        self.write()
        self.commit()

    def run(self) -> RemovalWorld:
        world, rng = self.world, self.world.rng
        try:
            for _ in range(self.steps):
                world.now += rng.choice([0, 1, 1, 2, 6])
                self.deliver()
                running = [job for job in self.jobs if job.alive and job.paused_until <= world.now]
                if running and rng.random() < 0.6:
                    self.step(rng.choice(running))
                else:
                    self.disturb()
            self.settle()
        finally:
            for job in self.jobs:
                job.end()
        return world

    def step(self, job: Job) -> None:
        if self.world.rng.random() < self.world.setup.crash:
            job.alive = False
            self.world.say("job killed")
            return
        if self.world.has("pause") and self.world.rng.random() < 0.01:
            job.paused_until = self.world.now + self.world.rng.choice([10, GRACE, 3 * AGE])
        job.step()

    def deliver(self) -> None:
        """Late requests arrive."""
        world = self.world
        for until, apply in list(world.delayed):
            if world.rng.random() < 0.03 or until <= world.now:
                world.delayed.remove((until, apply))
                with suppress(CommitConflict):
                    apply()

    def disturb(self) -> None:
        world, rng = self.world, self.world.rng
        draw = rng.random()
        if draw < 0.2:
            self.write()
        elif draw < 0.5:
            self.commit()
        elif draw < 0.65:
            if sum(job.alive for job in self.jobs) < 2:
                self.jobs.append(Job(world))
        else:
            fault = rng.choice(sorted(FAULTS))
            if world.has(fault) and world.head is not None:
                getattr(self, f"do_{fault}")()

    def settle(self) -> None:
        """End all faults: every journalled expiry is carried out or dropped."""
        world = self.world
        world.settling, world.gc, world.damaged, world.reachable = True, True, None, True
        world.delayed.clear()
        for job in self.jobs:
            job.alive = False
        for _ in range(4):
            world.now += max(GRACE, removal.ABANDONED_MS) + 1
            job = Job(world)
            self.jobs.append(job)
            while job.alive:
                job.step()
        left = [entry for entry in RemovalJournal(Store(world)).entries(UUID) if not entry.spared]
        if any(entry.seen_ms is None or world.now - entry.seen_ms >= GRACE for entry in left):
            raise Violation(f"entries stay: {left}")

    # ---- the writer

    def write(self) -> None:
        world = self.world
        data = [world.new_data() for _ in range(world.rng.choice([1, 2]))]
        world.records[f"b{world.number()}"] = world.new_manifest(data)

    def commit(self) -> None:
        """Commit the oldest recorded batch, unless it is in the table already."""
        world, rng = self.world, self.world.rng
        if not world.records or world.rests_until > world.now:
            return
        batch, manifest = next(iter(world.records.items()))
        ids = set(world.chain())
        if any(world.snapshots[n].batch == batch for n in ids):
            del world.records[batch]
            return
        manifests = set(world.snapshots[world.head].manifests) if world.head in world.snapshots else set()
        if world.has("overwrite") and manifests and rng.random() < 0.4:
            manifests.discard(rng.choice(sorted(manifests)))
        head, sequence = world.head, world.sequence

        def apply() -> None:
            if world.head != head or world.sequence != sequence:
                raise CommitConflict("the table changed")
            world.say(f"commit of {batch}")
            world.add(manifests | {manifest}, sink=True, batch=batch)

        if rng.random() < world.setup.error:
            fate = rng.choice(["applied", "lost", "delayed"])
            if fate == "applied":
                apply()
            elif fate == "delayed":
                world.delayed.append((world.now + 15, apply))
            return
        apply()
        del world.records[batch]

    # ---- others

    def do_tag(self) -> None:
        world = self.world
        world.refs[f"tag{world.number()}"] = PastRef(
            world.rng.choice(sorted(world.snapshots)), branch=False, max_ref_age_ms=world.rng.choice([None, 40, 400])
        )

    def do_branch(self) -> None:
        world = self.world
        at = world.rng.choice(sorted(world.snapshots))
        age = world.rng.choice([None, 100])
        world.refs[f"branch{world.number()}"] = PastRef(at, branch=True, max_ref_age_ms=age)

    def do_untag(self) -> None:
        world = self.world
        if names := sorted(n for n in world.refs if n.startswith(("tag", "branch"))):
            del world.refs[world.rng.choice(names)]

    def do_rollback(self) -> None:
        """Set main to an ancestor, and the sink accepts that: what it has not confirmed it commits again."""
        world = self.world
        if len(chain := world.chain()) > 1:
            to = world.rng.choice(chain[1:6])
            world.say(f"rolled back to {to}")
            world.move(MAIN, to)
            own = next((n for n in world.chain() if world.snapshots[n].past.sink_id == SINK), None)
            if own is not None:
                world.refs[tag_name(SINK)] = PastRef(own, branch=False, max_ref_age_ms=2**63 - 1)

    def do_back(self) -> None:
        """Somebody restores old metadata: an expired snapshot is in the table again."""
        world = self.world
        recent = [n for n, at in world.removed_at.items() if world.now - at < GRACE and n not in world.snapshots]
        whole = [n for n in recent if world.named_by([world.ever[n]]) <= world.files]
        if whole:
            number = world.rng.choice(whole)
            world.say(f"{number} is back")
            world.snapshots[number] = replace(world.ever[number], past=replace(world.ever[number].past, parent_id=None))
            world.removed_at.pop(number)
            world.lost.discard(number)  # it has a tag again
            world.refs[f"tag{world.number()}"] = PastRef(number, branch=False)

    def do_stage(self) -> None:
        world = self.world
        head = world.snapshots[world.head or 0]
        world.add({*head.manifests, world.new_manifest([world.new_data()])}, staged=True)

    def do_cherry_pick(self) -> None:
        """Commit the new files of a staged snapshot on the head; whoever does it looked at the table before."""
        world, rng = self.world, self.world.rng
        staged = [s for s in world.snapshots.values() if s.past.staged]
        if staged:
            world.picks.append((world.now + rng.choice([1, GRACE // 2, GRACE - 1]), rng.choice(staged)))
        for until, snap in list(world.picks):
            world.picks.remove((until, snap))
            gone_at = world.removed_at.get(snap.past.snapshot_id, world.now)
            if world.now - gone_at < GRACE and world.now <= until:
                manifests = world.snapshots[world.head or 0].manifests
                data = [path for manifest in sorted(snap.manifests - manifests) for path in world.contents[manifest]]
                world.say(f"cherry-pick of {snap.past.snapshot_id}")
                world.add({*manifests, world.new_manifest(data)})
            elif world.now <= until:
                world.picks.append((until, snap))

    def do_add_files(self) -> None:
        """Add data files that exist, by their paths, whoever named them before."""
        world = self.world
        if data := sorted(name for name in world.files if name.startswith("d-")):
            chosen = world.rng.choice(data)
            world.say(f"{chosen} is added")
            world.add({*world.snapshots[world.head or 0].manifests, world.new_manifest([chosen])})

    def do_foreign_expiry(self) -> None:
        """Let another engine expire snapshots, and remove their files at once."""
        world = self.world
        named = {ref.snapshot_id for ref in world.refs.values()}
        free = sorted(world.snapshots.keys() - named)
        if not free or not world.rng.random() < 0.3:
            return
        gone = {n for n in free if world.rng.random() < 0.5}
        snaps = [world.snapshots[n] for n in gone]
        world.drop(gone)
        kept = world.named_by(world.snapshots.values()) | world.named_by(world.ever[n] for n in world.lost)
        for manifest in world.records.values():
            kept |= {manifest, *world.contents[manifest]}
        world.files -= world.named_by(snaps) - kept
        world.cut_by_others = True
        world.say(f"another engine expired {sorted(gone)}")

    def do_hold(self) -> None:
        """Start or end work that builds on a snapshot; it moves its hold forward."""
        world, rng = self.world, self.world.rng
        if world.holds and rng.random() < 0.5:
            name = rng.choice(sorted(world.holds))
            del world.holds[name]
            world.refs.pop(name, None)
        elif world.head is not None:
            name = f"calve-hold-{world.number()}"
            world.holds[name] = world.head
            world.refs[name] = PastRef(world.head, branch=False, max_ref_age_ms=10**9)

    def do_merge(self) -> None:
        """Rewrite manifests: the same data files have other manifests."""
        world = self.world
        head = world.snapshots[world.head or 0]
        if len(head.manifests) > 1:
            some = set(world.rng.sample(sorted(head.manifests), 2))
            data = dict.fromkeys(d for m in sorted(some) for d in world.contents[m])
            world.add({*(head.manifests - some), world.new_manifest(data)})

    def do_overwrite(self) -> None: ...

    def do_gc(self) -> None:
        self.world.gc = not self.world.gc

    def do_pause(self) -> None: ...

    def do_rest(self) -> None:
        """Stop the writer for a while; what it recorded waits."""
        self.world.rests_until = self.world.now + self.world.rng.choice([20, AGE + GRACE, 2 * (AGE + GRACE)])

    def do_unreachable(self) -> None:
        self.world.reachable = not self.world.reachable

    def do_damaged(self) -> None:
        """A manifest of the head cannot be read for a while."""
        world = self.world
        manifests = sorted(world.snapshots[world.head or 0].manifests)
        unread = not any(job.alive for job in self.jobs)  # else one of them may have read it before
        world.damaged = world.rng.choice([None, *manifests]) if unread else None


def simulate_removal(seed: int, **fixed: Any) -> RemovalWorld:
    """Run one schedule. Raises Violation."""
    return RemovalSimulation(seed, **fixed).run()
