"""Which snapshots and refs of a table expire. Only decides: everything arrives as values.

    branches     keep their first `min_keep` snapshots, and those that were their head within `max_age_ms`
    tags         keep their snapshot
    sinks        keep everything from their newest snapshot to the heads that descend from it
    holds        keep their snapshot and everything that follows it on a branch
    others       stay until they are too old (rolled back, cut off by thinning), staged ones twice as long

What nothing keeps expires. Of a sink's branch, thinning then removes those that only their age keeps, except for the
newest `keep_all` and the first of each hour. A ref past its age is removed first; main and the branches and tags of
sinks never are.

The age of a snapshot is the time since its successor replaced it as head: however old the head of an idle table is, it
expires only a whole `max_age_ms` after the next commit.

Catalogs that pyiceberg updates clear the parent id of a snapshot whose parent expires. So the chain of ancestors of a
head ends at the oldest of the newest ones, and the hourly ones are in no ref's ancestry.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, pairwise

from calve.model.numbers import number_property
from calve.model.progress import tag_name
from calve.model.spec import HOUR_MS, LEAST_RETENTION_MS, RetentionOptions

MAIN = "main"
MAX_AGE_MS = 7 * 24 * HOUR_MS
KEEP_ALL = 50
BATCH = 10
"""Snapshots expire in batches of at least this many, because each expiry is a separate commit."""
MOST_HELD = 2000
"""The most snapshots, counted from the head of a branch, that holds and idle sinks keep."""
HOLD_PREFIX, CONSUMER_PREFIX = "calve-hold-", "calve-consumer-"
STAGED_FACTOR = 2
"""Staged snapshots (`wap.id`) are kept this many times longer."""


@dataclass(frozen=True)
class PastSnapshot:
    """A snapshot of a table."""

    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    timestamp_ms: int
    sink_id: str | None = None
    """The sink that committed it."""
    staged: bool = False
    """Written for review (`wap.id`), and never the head of a branch."""


@dataclass(frozen=True)
class PastRef:
    """A branch or tag."""

    snapshot_id: int
    branch: bool
    max_ref_age_ms: int | None = None
    max_age_ms: int | None = None
    min_keep: int | None = None


@dataclass(frozen=True)
class History:
    """The snapshots of a table, and everything that may keep them."""

    snapshots: Mapping[int, PastSnapshot]
    refs: Mapping[str, PastRef]
    log: tuple[tuple[int, int], ...] = ()
    """Times at which a snapshot became the head of main, and its id."""
    properties: Mapping[str, str] = field(default_factory=dict)
    sinks: frozenset[str] = frozenset()
    """Sinks with progress in the table, except for retired ones."""

    def ancestors(self, head: int | None) -> Iterator[PastSnapshot]:
        """A snapshot and its ancestors, newest first, as far back as they remain."""
        while head is not None and (snapshot := self.snapshots.get(head)) is not None:
            yield snapshot
            head = snapshot.parent_id

    def branches(self) -> dict[str, list[PastSnapshot]]:
        """The ancestors of the head of each branch."""
        return {name: list(self.ancestors(ref.snapshot_id)) for name, ref in self.refs.items() if ref.branch}

    def without(self, refs: Iterable[str]) -> "History":
        """This history without some refs."""
        gone = set(refs)
        return replace(self, refs={name: ref for name, ref in self.refs.items() if name not in gone})

    @cached_property
    def in_ancestry(self) -> frozenset[int]:
        """Snapshots that a ref names, or that are ancestors of a branch."""
        named = {ref.snapshot_id for ref in self.refs.values()}
        return frozenset(named.union(*({s.snapshot_id for s in chain} for chain in self.branches().values())))

    @cached_property
    def _next(self) -> dict[int, int]:
        """When another snapshot became the head of main, or else was committed, after each snapshot."""
        ordered = sorted(self.snapshots.values(), key=lambda s: s.sequence_number)
        return {one.snapshot_id: later.timestamp_ms for one, later in pairwise(ordered)} | self.replaced_in_log

    @cached_property
    def replaced_in_log(self) -> dict[int, int]:
        """When another snapshot became the head of main after each one in the log; after a rollback, the last time."""
        return {
            snapshot_id: later_ms
            for (_, snapshot_id), (later_ms, later_id) in pairwise(self.log)
            if later_id != snapshot_id
        }

    def superseded_ms(self, snapshot: PastSnapshot) -> int:
        """When a snapshot in no ref's ancestry was last a head, as far as the table tells; never too early."""
        return snapshot.timestamp_ms if snapshot.staged else self._next.get(snapshot.snapshot_id, snapshot.timestamp_ms)


@dataclass(frozen=True)
class Retention:
    """How long the snapshots of a branch are kept."""

    max_age_ms: int = MAX_AGE_MS
    min_keep: int = 1
    keep_all: int = field(default_factory=lambda: KEEP_ALL)
    thin: bool = True

    @classmethod
    def of(
        cls, properties: Mapping[str, str], ref: PastRef | None, options: RetentionOptions, *, force: bool = False
    ) -> "Retention":
        """The settings of the branch, else of the table, else the options; with `force` the options come first.

        An age below an hour is raised to it, unless `force` is set.
        """
        given_age, given_least = options.max_age_ms, options.min_snapshots
        age = ref.max_age_ms if ref else None
        age = age if age is not None else _number(properties, "history.expire.max-snapshot-age-ms")
        least = ref.min_keep if ref else None
        least = least if least is not None else _number(properties, "history.expire.min-snapshots-to-keep")
        ages = (given_age, age) if force else (age, given_age)
        leasts = (given_least, least) if force else (least, given_least)
        max_age_ms = next((value for value in ages if value is not None), MAX_AGE_MS)
        return cls(
            max_age_ms if force else max(max_age_ms, LEAST_RETENTION_MS),
            max(1, next((value for value in leasts if value is not None), 1)),
            thin=options.thin,
        )


def warning_of(properties: Mapping[str, str], ref: PastRef | None, options: RetentionOptions) -> str:
    """What to tell the user about an age that is too short; empty if none is."""
    asked = Retention.of(properties, ref, options, force=False)
    settings = [
        ("max-snapshot-age-ms of the branch", ref.max_age_ms if ref else None),
        ("history.expire.max-snapshot-age-ms", _number(properties, "history.expire.max-snapshot-age-ms")),
        ("SNAPSHOT RETENTION", options.max_age_ms),
    ]
    name, age = next(((name, age) for name, age in settings if age is not None), ("", asked.max_age_ms))
    return f"{name} is less than an hour; snapshots are kept for an hour" if age < LEAST_RETENTION_MS else ""


@dataclass(frozen=True)
class ExpiryPolicy:
    """What applies to one expiry."""

    options: RetentionOptions
    branch: str
    now_ms: int
    batch: int = field(default_factory=lambda: BATCH)
    """Fewer snapshots than this do not expire."""
    force: bool = False

    def retention(self, history: History, branch: str) -> Retention:
        """The retention of a branch."""
        return Retention.of(history.properties, history.refs.get(branch), self.options, force=self.force)


@dataclass(frozen=True)
class Expired:
    """What expires: snapshots, oldest first, and refs."""

    snapshots: tuple[int, ...] = ()
    refs: tuple[str, ...] = ()


def expired(history: History, policy: ExpiryPolicy) -> Expired:
    """What expires now; nothing while it is less than a batch."""
    over = refs_past_their_age(history, policy.now_ms)
    left = history.without(over)
    kept = kept_by_refs(left) | kept_by_sinks(left) | kept_by_holds(left)
    aged: set[int] = set()
    for name, chain in left.branches().items():
        firm, young = kept_by_branch(left, chain, policy.retention(left, name), policy.now_ms)
        kept |= firm
        if name == policy.branch and policy.retention(left, name).thin:
            aged = young
        else:
            kept |= young
    loose = [s for s in left.snapshots.values() if s.snapshot_id not in left.in_ancestry]
    oldest = policy.retention(left, policy.branch).max_age_ms
    kept |= {s.snapshot_id for s in loose if not is_too_old(left, s, oldest, policy.now_ms)}
    chain = list(left.ancestors(left.refs[policy.branch].snapshot_id)) if policy.branch in left.refs else []
    kept |= aged - thinned(chain, kept, loose, policy.retention(left, policy.branch)) if aged else set()
    gone = sorted((s for s in left.snapshots.values() if s.snapshot_id not in kept), key=lambda s: s.sequence_number)
    if len(gone) < policy.batch and not (policy.batch <= 1 and over):
        return Expired()
    return Expired(tuple(s.snapshot_id for s in gone), over)


def may_be_due(count: int, oldest_ms: int, policy: ExpiryPolicy, retention: Retention) -> bool:
    """A cheap test of the number of snapshots and the oldest time: False if certainly nothing expires."""
    crowded = retention.thin and count > max(retention.keep_all, retention.min_keep) + policy.batch
    return crowded or policy.now_ms - oldest_ms > retention.max_age_ms


def refs_past_their_age(history: History, now_ms: int) -> tuple[str, ...]:
    """Refs that are older than their age limit, except for main and those of sinks."""
    limit = _number(history.properties, "history.expire.max-ref-age-ms")
    own = {MAIN} | {tag_name(sink_id) for sink_id in history.sinks} | _branches_of_sinks(history)
    return tuple(
        name for name, ref in history.refs.items() if name not in own and is_past_its_age(history, ref, now_ms, limit)
    )


def is_past_its_age(history: History, ref: PastRef, now_ms: int, limit: int | None) -> bool:
    """Whether a ref is older than its max-ref-age, or else that of the table; False without one."""
    age = ref.max_ref_age_ms if ref.max_ref_age_ms is not None else limit
    snapshot = history.snapshots.get(ref.snapshot_id)
    return age is not None and snapshot is not None and now_ms - snapshot.timestamp_ms > age


def _branches_of_sinks(history: History) -> set[str]:
    """Branches with the newest snapshot of a sink, unless it is on main, too."""
    chains = history.branches()
    newest: dict[str | None, PastSnapshot] = {}
    for snapshot in sorted(history.snapshots.values(), key=lambda s: s.sequence_number):
        newest[snapshot.sink_id] = snapshot
    own = {s.snapshot_id for sink_id, s in newest.items() if sink_id in history.sinks}
    own -= {s.snapshot_id for s in chains.get(MAIN, ())}
    return {name for name, chain in chains.items() if any(s.snapshot_id in own for s in chain)}


def kept_by_refs(history: History) -> set[int]:
    """The snapshots that branches and tags name."""
    return {ref.snapshot_id for ref in history.refs.values()}


def kept_by_branch(
    history: History, chain: list[PastSnapshot], retention: Retention, now_ms: int
) -> tuple[set[int], set[int]]:
    """The snapshots that a branch keeps by their number, and those that it keeps by their age only."""
    firm = {s.snapshot_id for s in chain[: retention.min_keep]}
    ranks = range(retention.min_keep, len(chain))
    young = [rank for rank in ranks if now_ms - replaced_ms(history, chain, rank) <= retention.max_age_ms]
    depth = max(young, default=-1) + 1
    return firm, {s.snapshot_id for s in chain[retention.min_keep : depth]}


def replaced_ms(history: History, chain: list[PastSnapshot], rank: int) -> int:
    """When a snapshot of a branch last stopped being a head: a rollback may have made it one again."""
    return max(chain[rank - 1].timestamp_ms, history.replaced_in_log.get(chain[rank].snapshot_id, 0))


def kept_by_sinks(history: History) -> set[int]:
    """From the newest snapshot of each sink to the heads that descend from it."""
    kept: set[int] = set()
    for chain in history.branches().values():
        depth, unseen = 0, set(history.sinks)
        for number, snapshot in enumerate(islice(chain, MOST_HELD), start=1):
            if snapshot.sink_id in unseen:
                depth = number
                unseen.discard(snapshot.sink_id)
        kept.update(s.snapshot_id for s in chain[:depth])
    return kept


def kept_by_holds(history: History) -> set[int]:
    """What holds and consumers keep: their snapshot, and everything that follows it on a branch."""
    held = {ref.snapshot_id for name, ref in history.refs.items() if is_hold(name)}
    kept = set(held)
    for chain in history.branches().values():
        depth = max((n for n, s in enumerate(chain[:MOST_HELD], start=1) if s.snapshot_id in held), default=0)
        kept.update(s.snapshot_id for s in chain[:depth])
    return kept


def is_hold(ref: str) -> bool:
    """Whether a tag keeps what follows its snapshot."""
    return ref.startswith((HOLD_PREFIX, CONSUMER_PREFIX))


def is_too_old(history: History, snapshot: PastSnapshot, max_age_ms: int, now_ms: int) -> bool:
    """Whether a snapshot in no ref's ancestry expires."""
    limit = STAGED_FACTOR * max_age_ms if snapshot.staged else max_age_ms
    return now_ms - history.superseded_ms(snapshot) > limit


def thinned(chain: list[PastSnapshot], kept: set[int], loose: Iterable[PastSnapshot], retention: Retention) -> set[int]:
    """Snapshots of a branch that are neither among the newest nor the first of their hour, nor kept."""
    hours = {s.timestamp_ms // HOUR_MS for s in loose if not s.staged}
    gone: set[int] = set()
    for rank in range(len(chain) - 1, max(retention.keep_all, retention.min_keep) - 1, -1):
        hour = chain[rank].timestamp_ms // HOUR_MS
        if chain[rank].snapshot_id not in kept and hour in hours:
            gone.add(chain[rank].snapshot_id)
        hours.add(hour)
    return gone


def _number(properties: Mapping[str, str], name: str) -> int | None:
    """A number among properties; None if it is missing or invalid."""
    unset = -1
    number = number_property(properties, name, unset)
    return None if number == unset else number
