"""Random schedules against the real protocol code, and mutations of it that the schedules must catch.

A failing seed prints its trace; `CALVE_SEEDS=12345:12346` runs just that one, `CALVE_SEEDS=0:100000` many.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from calve.commit import attempt, belief, checkpoints, journal, takeover
from calve.commit.attempt import Attempts
from calve.commit.backpressure import Room, room_for_more
from calve.commit.batches import Batches
from calve.commit.belief import Trust
from calve.commit.checkpoints import Checkpoints
from calve.commit.claims import Claims
from calve.commit.commits import Commits
from calve.commit.journal import Journal
from calve.commit.run_state import RunState
from calve.commit.takeover import RunPosition
from calve.commit.windows import Closing
from calve.iceberg.snapshot import retention
from calve.model.checkpoint import CheckpointEntry, Entry
from calve.model.files import Committable, ResolvedDeletes
from calve.model.progress import Progress
from calve.model.spec import SinkSpec
from calve.model.table import Proposal, TableState
from tests.simulation import driver, world
from tests.simulation.contents import Violation
from tests.simulation.lookup import SimulatedLookup
from tests.simulation.schedule import Simulation, simulate
from tests.simulation.seeds import shards

SHARDS = shards(4, of=2000)


@pytest.mark.parametrize("seeds", SHARDS, ids=range(len(SHARDS)))
def test_no_schedule_loses_repeats_or_reorders_a_change(seeds: range) -> None:
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        simulation = Simulation(seed)
        try:
            outcomes[simulation.run()] += 1
        except Violation as error:
            trace = "\n".join(simulation.world.trace[-80:])
            pytest.fail(f"seed {seed}: {error}\n{simulation.world.setup}\n{trace}")
    assert outcomes["ok"] >= sum(outcomes.values()) / 2, "most schedules must end with everything committed"


SEEDS = range(500_000, 501_500)
"""Schedules of which one has to notice that a rule is missing."""

Replacement = tuple[Any, str, Any]
"""A class or module, the name of a rule in it, and what stands in its place."""


@dataclass(frozen=True)
class Mutation:
    """Rules of the protocol that are taken away."""

    name: str
    replacements: tuple[Replacement, ...]
    setup: dict[str, Any]
    seed: int = SEEDS[0]
    """A schedule that notices it, where few do: it is tried first."""


def only(*faults: str, **setup: Any) -> dict[str, Any]:
    return {"faults": frozenset(faults), **setup}


def off(owner: Any, name: str) -> Replacement:
    """A check that lets everything pass."""
    return owner, name, lambda *_arguments, **_options: None


def always(owner: Any, name: str, answer: object) -> Replacement:
    return owner, name, lambda *_arguments, **_options: answer


def without_head(known: Any, committable: Committable, _state: TableState) -> bool:
    same: bool = known.commit_id == committable.commit_id
    return same


def look_up_and_remove(attempts: Attempts, committable: Committable, state: TableState) -> ResolvedDeletes:
    found = DELETES_OF(attempts, committable, state)
    attempts.remove_keys(committable)
    return found


def discard_deletes_in_doubt(attempts: Attempts) -> None:
    attempts._resolution.may_be_in_table = False
    DISCARD_UNUSED(attempts)


def without_version(known: Any, committable: Committable, state: TableState) -> bool:
    return (known.head, known.commit_id) == (state.head, committable.commit_id)


def keep_replaced_vectors(*arguments: Any, **options: Any) -> Proposal:
    return Proposal(*arguments, **{**options, "replaced_deletes": ()})


def discard_rows_in_doubt(attempts: Attempts) -> None:
    last = attempts._resolution
    if last.deletes.rows:
        attempts._table.discard_files(last.deletes.rows.new, "although they may be in the table")
    DISCARD_UNUSED(attempts)


def look_up_and_remove_rows(attempts: Attempts, committable: Committable, state: TableState) -> ResolvedDeletes:
    found = DELETES_OF(attempts, committable, state)
    if found.rows:
        attempts._table.discard_files(found.rows.unused, "although their batch is not in the table")
    return found


def change_unfenced(attempts: Attempts) -> TableState:
    return attempts.observe()[0]


def take_over_without_records(claims: Any, _progress: Progress) -> RunPosition:
    position: RunPosition = claims._state.position
    claims._journal.adopt(claims._state.fence, position.to_adoption())
    return position


def read_entries_once(records: Journal, folder: str) -> tuple[Entry, ...]:
    read: dict[int, Entry] = {}
    records._read_entries(folder, records._numbers(folder), read)
    return tuple(read.values())


def record_adopted_unfenced(attempts: Attempts) -> Progress:
    state, progress = attempts.observe()
    assert progress is not None
    return progress if progress.adopting is None else attempts._table.commit(state, Proposal(progress.checked()))


def newest(commits: Commits) -> Committable | None:
    return next((e.committable for e in commits._state.position.entries[::-1] if e.committable), None)


def split_later(position: RunPosition, *, own_times: bool) -> int | None:
    found = SPLIT(position, own_times=own_times)
    return None if found is None else found + 1


def input_by_the_clock(closing: Closing, position: RunPosition) -> int:
    times, quiet, clock = closing._spec.times, closing._quiet, closing._clock
    if times is None:
        return position.last_time + 1
    if times.idle_ms is None or quiet is None or clock.monotonic() - quiet.first < times.idle_ms / 1000:
        return position.input
    return max(position.input, clock.now_ms() - times.delay_ms)


def wait_at_the_limit(spec: SinkSpec, position: RunPosition, is_due: Any, *, catching_up: bool) -> Room:
    room = ROOM_FOR_MORE(spec, position, is_due, catching_up=catching_up)
    full = spec.staged_limit is not None and position.held_bytes >= spec.staged_limit
    return Room.WAIT if full else room


DELETES_OF, SPLIT, CLAIM, ROOM_FOR_MORE = Attempts._deletes_of, RunPosition.split, Attempts.claim, room_for_more
DISCARD_UNUSED = Attempts.discard_unused_deletes
BY_VECTORS = {"positions": (True,), "version": 3, "upgraded_by": ""}

MUTATIONS = [
    Mutation("replays are not recognised", (always(RunPosition, "knows", answer=False),), only(crash=0.06)),
    Mutation(
        "the position of a checkpoint is not compared",
        (always(Checkpoints, "_starts_at_end", answer=True),),
        only("checkpoint_rewound", "checkpoint_lost", crash=0.06, seekable=True),
        seed=500_072,
    ),
    Mutation("a commit does not look at the fence", (off(Attempts, "_check_owner"),), only("zombie", "stray", "pause")),
    Mutation(
        "a claim does not look at the fence",
        (off(Attempts, "_check_newer"),),
        only("zombie", "stray", "pause", "version"),
    ),
    Mutation("commit ids are not looked up", (always(Attempts, "_has_landed", answer=False),), only(error=0.3)),
    Mutation("missing files are not noticed", (always(Attempts, "missing", ()),), only("orphan", crash=0.06)),
    Mutation(
        "nothing compares a batch with what comes before it",  # each of the three alone is covered by the others
        (
            off(Attempts, "_check_lower"),
            always(takeover, "_starts_at_frontier", answer=True),
            always(takeover, "_starts_at_end", answer=True),
        ),
        only("record_lost", "state_lost", "zombie", crash=0.06, error=0.3, windows=(None,)),
        seed=500_176,
    ),
    Mutation("foreign commits are not noticed", (off(belief, "_check_foreign"),), only("foreign", accept=False)),
    Mutation("rollbacks are not noticed", (off(belief, "_check_rollback"),), only("rollback", "replace")),
    Mutation("recreated tables are not noticed", (off(belief, "_check_uuid"),), only("recreate", "zombie")),
    Mutation(
        "the parent of the oldest snapshot is not compared",
        (off(belief, "_check_connected"),),
        only("rollback", "replace", "expire", "foreign", accept=False, steps=500),
    ),
    Mutation(
        "records are read before the claim only",
        ((Claims, "_take_over", take_over_without_records),),
        only("zombie", "pause", "stray"),
    ),
    Mutation(
        "runs share one directory of records",
        (always(journal, "_directory", "00000000-shared"),),
        only("zombie", "pause", "stray", crash=0.03),
    ),
    Mutation(
        "records are not listed again if one was removed meanwhile",
        ((Journal, "_entries", read_entries_once),),
        only("zombie", "pause", own_times=True, windows=(60,), slow=True, steps=500, error=0, crash=0),
        seed=500_206,
    ),
    Mutation(
        "a run whose files are gone does not look at the fence",
        (off(Attempts, "check_fence"),),
        only("zombie", "pause", positions=(True,), slow=True),
        seed=500_089,
    ),
    Mutation(
        "a pending batch does not call for deletes",
        ((RunState, "_has_pending_rows", False),),
        only("down"),
    ),
    Mutation(
        "positions serve in a later snapshot than the one they were looked up in",
        ((attempt._Resolution, "fits", without_head),),
        only("replace", error=0.3, positions=(True,)),
    ),
    Mutation(
        "keys are removed before their batch is in the table",
        ((Attempts, "_deletes_of", look_up_and_remove),),
        only(error=0.3, crash=0.06, positions=(True,)),
        seed=500_044,
    ),
    Mutation(
        "deletes are removed although the outcome of their attempt is unknown",
        ((Attempts, "discard_unused_deletes", discard_deletes_in_doubt),),
        only("replace", error=0.3, positions=(True,)),
    ),
    Mutation(
        "vectors and ids serve in a later snapshot than the one they were looked up in",
        ((attempt._Resolution, "fits", without_head),),
        only("replace", error=0.3, **BY_VECTORS),
    ),
    Mutation(
        "position deletes serve after an upgrade",
        ((attempt._Resolution, "fits", without_version),),
        only(error=0.3, positions=(True,), version=2, upgraded_by="others"),
        seed=500_028,
    ),
    Mutation("a vector that is replaced stays", ((attempt, "Proposal", keep_replaced_vectors),), only(**BY_VECTORS)),
    Mutation(
        "a vector lacks what the one before it deleted",
        ((SimulatedLookup, "forgets_vectors", True),),
        only(**BY_VECTORS),
    ),
    Mutation(
        "a vector lacks what position deletes deleted",
        ((SimulatedLookup, "forgets_positions", True),),
        only(positions=(True,), version=2, upgraded_by="sink"),
    ),
    Mutation("updated rows get new ids", ((SimulatedLookup, "keeps_no_ids", True),), only(**BY_VECTORS)),
    Mutation(
        "compacted rows get new ids",
        ((world.World, "compactions_give_new_ids", True),),
        only("replace", **BY_VECTORS),
    ),
    Mutation(
        "rows with ids are removed although the outcome of their attempt is unknown",
        ((Attempts, "discard_unused_deletes", discard_rows_in_doubt),),
        only("replace", error=0.3, **BY_VECTORS),
    ),
    Mutation(
        "the files of a batch are removed before rows with ids take their place",
        ((Attempts, "_deletes_of", look_up_and_remove_rows),),
        only(error=0.3, crash=0.06, **BY_VECTORS),
        seed=500_041,
    ),
    Mutation(
        "an upgrade does not look at the fence",
        ((Attempts, "load_fenced", change_unfenced),),
        only("zombie", "stray", "pause", positions=(True,), version=2, upgraded_by="sink"),
    ),
    Mutation("the newest pending batch goes first", ((Commits, "_oldest", newest),), only("down", error=0.3)),
    Mutation(
        "times may repeat",
        ((RunState, "next_time", lambda _state, now_ms: now_ms),),
        only(skew=4000, crash=0.03),
    ),
    Mutation(
        "a window that is being closed still takes checkpoints",
        (off(Batches, "_exclude"),),
        only(windows=(20,)),
    ),
    Mutation(
        "windows are not split where checkpoints differ",
        (always(RunPosition, "split", None),),
        only(windows=(20, 60), kinds=2),
    ),
    Mutation(
        "a window is split behind the first checkpoint that differs",
        ((RunPosition, "split", split_later),),
        only(windows=(20, 60), kinds=2),
    ),
    Mutation(
        "a batch states the offsets of the newest checkpoint",
        ((Batches, "_completed_by", lambda batches, _batch: list(batches._state.position.staged)),),
        only(windows=(20,)),
    ),
    Mutation(
        "a batch states the offsets of checkpoints that have rows above it",
        (
            (
                RunPosition,
                "whole_below",
                lambda position, _upper: [e for e in position.entries if isinstance(e, CheckpointEntry)],
            ),
        ),
        only(own_times=True),
    ),
    Mutation(
        "a checkpoint that is partly in the table and lost is read again",
        (off(Claims, "_check_ahead"),),
        only("state_lost", own_times=True, seekable=True, crash=0.06),
        seed=500_186,
    ),
    Mutation(
        "a checkpoint whose rows are all in the table ends the chain before it",
        (always(takeover, "_continues", answer=False),),
        only(own_times=True, crash=0.06),
    ),
    Mutation(
        "rows are adopted without a check",
        ((Claims, "_check_existing", lambda claims, _claim: claims._attempts.record_adopted()),),
        only("load", "dirty", adopt=True),
    ),
    Mutation(
        "batches do not wait until adopted rows are checked",
        (always(Claims, "_has_unchecked_rows", answer=False), off(Attempts, "_check_adopted")),
        only("load", "dirty", adopt=True),
    ),
    Mutation(
        "what others do while rows are checked is not noticed",
        ((Trust, "will_check", lambda _trust, last: last.adopting is not None),),
        only("load", "dirty", adopt=True, accept=False),
    ),
    Mutation(
        "a sink that adopts rows reads from the beginning",
        ((Attempts, "claim", lambda attempts, _begin=None: CLAIM(attempts)),),
        only("load", adopt=True),
    ),
    Mutation(
        "the run that checked rows does not look at the fence",
        ((Attempts, "record_adopted", record_adopted_unfenced),),
        only("load", "zombie", "pause", "stray", adopt=True),
        seed=500_054,
    ),
    Mutation(
        "a source that cannot be asked counts as idle",
        ((Closing, "input", input_by_the_clock), off(Closing, "reset_idle")),
        only("down", "pause", own_times=True, idle=True, error=0.3, pending=1),
    ),
    Mutation(
        "staged rows make reading wait although their times are complete only after more was read",
        ((checkpoints, "room_for_more", wait_at_the_limit),),
        only(own_times=True, idle=False, staged_limit=1),
    ),
    Mutation(
        "a window that is full is not closed",
        (always(Closing, "_full", answer=False),),
        only(own_times=False, staged_limit=1, windows=(100_000,), bounded=False),
    ),
    Mutation(
        "Spark is told before the record",
        ((driver.SimulatedWork, "early_commit_log", True),),
        only(seekable=False, crash=0.06),
    ),
    Mutation(
        "snapshots expire that a sink at rest stands on",
        (always(retention, "kept_by_sinks", set()),),
        only("replace", "pause", own_expiry=True, crash=0.06),
    ),
    Mutation(
        "a compaction does not look at the fence",
        ((driver.SimulatedCompactor, "unfenced", True),),
        only("zombie", "stray", "pause", upkeep=True),
    ),
]


def is_caught(mutation: Mutation) -> bool:
    for seed in (mutation.seed, *SEEDS):
        try:
            simulate(seed, **mutation.setup)
        except (Violation, ValueError):
            return True
    return False


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name.replace(" ", "-"))
def test_the_schedules_notice_when(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, instead in mutation.replacements:
        monkeypatch.setattr(owner, name, instead)
    assert is_caught(mutation), "the schedules hold without this rule: it is not needed, or they are too tame"


def test_schedules_with_expiry_beside_commits_and_compactions_end_well() -> None:
    """No event of these schedules justifies a halt, except for that of a run whose successor has fenced it."""
    settings = only("zombie", "pause", "replace", "down", own_expiry=True, upkeep=True, crash=0.03)
    done = [simulate(seed, **settings) for seed in range(100)]
    assert {outcome for outcome, _ in done} <= {"ok", "halted"}
    assert sum(outcome == "ok" for outcome, _ in done) > len(done) / 2
    assert sum(simulation.world.commits["expiries"] for _, simulation in done) > len(done)


def test_schedules_with_compactions_beside_commits_end_well() -> None:
    done = [simulate(seed, **only("zombie", "pause", "version", upkeep=True, crash=0.03)) for seed in range(100)]
    assert {outcome for outcome, _ in done} <= {"ok", "halted"}
    assert sum(simulation.world.commits["compactions"] for _, simulation in done) > len(done)


def test_schedules_with_vectors_replace_them_keep_ids_and_upgrade_tables() -> None:
    settings = only("zombie", "pause", "replace", "delayed", positions=(True,), error=0.1, crash=0.03)
    done = [
        simulate(seed, **settings, version=2, upgraded_by=("sink", "others")[seed % 2], upkeep=seed % 4 < 2)
        for seed in range(60)
    ]
    assert {outcome for outcome, _ in done} <= {"ok", "halted"}
    counts = sum((simulation.world.commits for _, simulation in done), Counter[str]())
    assert min(counts["upgrades"], counts["vectors replaced"]) > len(done) / 4
    assert counts["ids kept"] > len(done)
