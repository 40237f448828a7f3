"""Random schedules against the real protocol code, and mutations of it that the schedules must catch.

A failing seed prints its trace; `CALVE_SEEDS=12345:12346` runs just that one, `CALVE_SEEDS=0:100000` many.
"""

import inspect
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from calve.commit import (
    attempt,
    backpressure,
    batches,
    belief,
    checkpoints,
    claims,
    commits,
    journal,
    run,
    run_state,
    takeover,
    windows,
)
from tests.simulation import driver
from tests.simulation.schedule import Simulation, simulate
from tests.simulation.world import Violation

SHARDS = 4
PER_SHARD = 2500


def seeds_of(shard: int) -> range:
    first, _, last = os.environ.get("CALVE_SEEDS", f"0:{SHARDS * PER_SHARD}").partition(":")
    return range(int(first) + shard, int(last), SHARDS)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_schedule_loses_repeats_or_reorders_a_change(shard: int) -> None:
    outcomes: Counter[str] = Counter()
    for seed in seeds_of(shard):
        simulation = Simulation(seed)
        try:
            outcomes[simulation.run()] += 1
        except Violation as error:
            trace = "\n".join(simulation.world.trace[-80:])
            pytest.fail(f"seed {seed}: {error}\n{simulation.world.setup}\n{trace}")
    assert outcomes["ok"] >= sum(outcomes.values()) / 2, "most schedules must end with everything committed"


@dataclass(frozen=True)
class Mutation:
    """Protective checks removed from the source: (module, text, replacement)."""

    name: str
    edits: tuple[tuple[ModuleType, str, str], ...]
    setup: dict[str, Any]


def only(*faults: str, **setup: Any) -> dict[str, Any]:
    return {"faults": frozenset(faults), **setup}


OFF = "if False:"

FENCE_OF_A_COMMIT = """if progress.fence.run_id != self.fence.run_id:
            raise self.fenced_by(progress, landed=landed)"""

MUTATIONS = [
    Mutation("replays are not recognised", ((takeover, "if identity in self.known:", OFF),), only(crash=0.06)),
    Mutation(
        "the position of a checkpoint is not compared",
        ((checkpoints, "if identity.start == self._state.position.end else Decision.REPOSITION", ""),),
        only("checkpoint_rewound", "checkpoint_lost", crash=0.06, seekable=True),
    ),
    Mutation(
        "a commit does not look at the fence",
        ((attempt, FENCE_OF_A_COMMIT, "pass"),),
        only("zombie", "stray", "pause"),
    ),
    Mutation(
        "a claim does not look at the fence",
        ((attempt, "if not progress.fence < self.fence:", OFF),),
        only("zombie", "stray", "pause", "version"),
    ),
    Mutation("commit ids are not looked up", ((attempt, "        if landed:", "        if False:"),), only(error=0.3)),
    Mutation(
        "missing files are not noticed",
        (
            (
                attempt,
                "return self._table.missing_files(named) if named else ()",
                "return ()",
            ),
        ),
        only("orphan", crash=0.06),
    ),
    Mutation(
        "nothing compares a batch with what comes before it",  # each of the three alone is covered by the others
        (
            (attempt, "if progress.next_lower(committable.generation) != committable.batch.lower:", OFF),
            (takeover, "if entry.committable and entry.committable.batch.lower != position.minted:", OFF),
            (takeover, "if isinstance(entry, CheckpointEntry) and entry.identity.start != position.end:", OFF),
        ),
        only("record_lost", "state_lost", "zombie", crash=0.06, error=0.3, windows=(None,)),
    ),
    Mutation(
        "foreign commits are not noticed",
        ((belief, "if foreign and trust.policy is OnForeignCommit.HALT:", OFF),),
        only("foreign", accept=False),
    ),
    Mutation("rollbacks are not noticed", ((belief, "if ahead or elsewhere:", OFF),), only("rollback", "replace")),
    Mutation(
        "recreated tables are not noticed",
        ((belief, "if expected and expected != state.uuid:", OFF),),
        only("recreate", "zombie"),
    ),
    Mutation(
        "the parent of the oldest snapshot is not compared",
        ((belief, "if oldest.parent_id != stated.snapshot_id:", OFF),),
        only("rollback", "replace", "expire", "foreign", accept=False, steps=500),
    ),
    Mutation(
        "records are read before the claim only",
        (
            (
                claims,
                "position = self._state.retry_checking_fence(lambda: self._take_over(progress))",
                "position = self._state.position; self._journal.adopt(self._state.fence, position.to_adoption())",
            ),
        ),
        only("zombie", "pause", "stray"),
    ),
    Mutation(
        "runs share one directory of records",
        ((journal, 'return f"{fence.epoch:08d}-{fence.run_id}"', 'return "00000000-shared"'),),
        only("zombie", "pause", "stray", crash=0.03),
    ),
    Mutation(
        "a pending batch does not call for deletes",
        ((run_state, "return self.has_data or pending_rows or", "return self.has_data or"),),
        only("down"),
    ),
    Mutation(
        "positions serve in a later snapshot than the one they were looked up in",
        ((attempt, " and known.head == state.head", ""),),
        only("replace", error=0.3, positions=(True,)),
    ),
    Mutation(
        "keys are removed before their batch is in the table",
        (
            (
                attempt,
                '        faults.reached("resolve.after")',
                '        faults.reached("resolve.after"); self.remove_keys(committable)',
            ),
        ),
        only(error=0.3, crash=0.06, positions=(True,)),
    ),
    Mutation(
        "the newest pending batch goes first",
        (
            (
                commits,
                "for e in self._state.position.entries if e.committable)",
                "for e in self._state.position.entries[::-1] if e.committable)",
            ),
        ),
        only("down", error=0.3),
    ),
    Mutation(
        "times may repeat",
        ((run_state, "return max(now_ms, self.position.last_time + 1)", "return now_ms"),),
        only(skew=4000, crash=0.03),
    ),
    Mutation(
        "a window that is being closed still takes checkpoints",
        ((batches, "position.last_time = max(position.last_time, batch.upper.time - 1)", "pass"),),
        only(windows=(20,)),
    ),
    Mutation(
        "windows are not split where checkpoints differ",
        ((takeover, "return rest[0].time", "return None"),),
        only(windows=(20, 60), kinds=2),
    ),
    Mutation(
        "a window is split behind the first checkpoint that differs",
        ((takeover, "return rest[0].time", "return rest[0].time + 1"),),
        only(windows=(20, 60), kinds=2),
    ),
    Mutation(
        "a batch states the offsets of the newest checkpoint",
        ((batches, "whole, committed = position.whole_below(batch.upper),", "whole, committed = position.staged,"),),
        only(windows=(20,)),
    ),
    Mutation(
        "a batch states the offsets of checkpoints that have rows above it",
        ((takeover, "takewhile(lambda e: e.committable or Frontier(e.time) < upper, checkpoints)", "checkpoints"),),
        only(own_times=True),
    ),
    Mutation(
        "a checkpoint that is partly in the table and lost is read again",
        ((claims, "if progress.ahead and not position.reaches(progress.ahead):", OFF),),
        only("state_lost", own_times=True, seekable=True, crash=0.06),
    ),
    Mutation(
        "a checkpoint whose rows are all in the table ends the chain before it",
        (
            (
                takeover,
                "is_staged(entry) and entry.timed and entry.identity.start == position.end",
                "False",
            ),
        ),
        only(own_times=True, crash=0.06),
    ),
    Mutation(
        "rows are taken over without a look at them",
        (
            (
                claims,
                "self._existing.check(self._attempts.load_fenced(), claim.snapshot_id)",
                "None",
            ),
        ),
        only("load", "dirty", adopt=True),
    ),
    Mutation(
        "batches do not wait until rows that are taken over are checked",
        (
            (claims, "if progress.adopting is not None and progress.generation >= self._spec.generation:", OFF),
            (attempt, "if progress.adopting is not None and not replaces:", OFF),
        ),
        only("load", "dirty", adopt=True),
    ),
    Mutation(
        "what others do while rows are checked is not noticed",
        ((belief, " and last.fence.run_id != self.run_id", ""),),
        only("load", "dirty", adopt=True, accept=False),
    ),
    Mutation(
        "a sink that takes over rows reads from the beginning",
        ((attempt, "Progress.fresh(self._spec.sink_id, self.fence, begin)", "Progress.fresh('sink', self.fence)"),),
        only("load", adopt=True),
    ),
    Mutation(
        "the run that checked rows does not look at the fence",
        (
            (
                attempt,
                """if progress.fence.run_id != self.fence.run_id:
            raise self.fenced_by(progress)
        return progress if progress.adopting""",
                "return progress if progress.adopting",
            ),
        ),
        only("load", "zombie", "pause", "stray", adopt=True),
    ),
    Mutation(
        "a source that cannot be asked counts as idle",
        (
            (windows, "quiet.asked_ms - times.delay_ms", "self._clock.now_ms() - times.delay_ms"),
            (
                windows,
                "quiet.milliseconds < times.idle_ms",
                "self._clock.monotonic() - quiet.first < times.idle_ms / 1000",
            ),
            (
                checkpoints,
                """            self._windows.reset_idle()
            self._lag.read(""",
                """            self._lag.read(""",
            ),
            (
                checkpoints,
                """while (room := self._room()) is not Room.FREE:
            self._state.reset_idle()""",
                "while (room := self._room()) is not Room.FREE:",
            ),
        ),
        only("down", "pause", own_times=True, idle=True, error=0.3, pending=1),
    ),
    Mutation(
        "staged rows make reading wait although their times are complete only after more was read",
        ((backpressure, "if spec.times is None or position.ready or is_due(position):", "if True:"),),
        only(own_times=True, idle=False, staged_limit=1),
    ),
    Mutation(
        "a window that is full is not closed",
        ((windows, "return bool(limits) and position.staged_bytes >= min(limits)", "return False"),),
        only(own_times=False, staged_limit=1, windows=(100_000,), bounded=False),
    ),
]

PROTOCOL = (
    *(takeover, attempt, belief, windows, journal, backpressure),
    *(run_state, claims, checkpoints, batches, commits, run),
)


@pytest.fixture
def pristine() -> Iterator[None]:
    saved = [(module, dict(vars(module))) for module in PROTOCOL]
    yield
    for module, names in saved:
        vars(module).update(names)


def mutate(module: ModuleType, text: str, instead: str) -> None:
    """Execute the mutated source of a module, and let its users import from it instead of the real one."""
    name = module.__name__
    source = MUTATED.get(name) or inspect.getsource(module)
    assert source.count(text) == 1, f"the check is not (or not once) in {name}"
    MUTATED[name] = source.replace(text, instead)
    mutant = ModuleType(name)
    exec(compile(MUTATED[name], name, "exec"), vars(mutant))  # noqa: S102 - our own source
    for user in PROTOCOL:
        for known, value in list(vars(user).items()):
            if getattr(value, "__module__", None) == name and known in vars(mutant):
                setattr(user, known, vars(mutant)[known])


MUTATED: dict[str, str] = {}


def is_caught(setup: dict[str, Any]) -> bool:
    for seed in range(500_000, 501_500):
        try:
            simulate(seed, **setup)
        except (Violation, ValueError):
            return True
    return False


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name.replace(" ", "-"))
@pytest.mark.usefixtures("pristine")
def test_the_schedules_notice_when(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATED.clear()
    for edit in mutation.edits:
        mutate(*edit)
    for name, value in (("SinkRun", run.SinkRun), ("Journal", journal.Journal), ("Decision", checkpoints.Decision)):
        monkeypatch.setattr(driver, name, value)
    assert is_caught(mutation.setup), "the schedules hold without this check: it is not needed, or they are too tame"


def test_the_schedules_notice_when_spark_is_told_before_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver.SimulatedWork, "early_commit_log", True)
    assert is_caught(only(seekable=False, crash=0.06))


def test_the_schedules_notice_when_a_compaction_does_not_look_at_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver.SimulatedCompactor, "unfenced", True)
    assert is_caught(only("zombie", "stray", "pause", upkeep=True))


def test_schedules_with_compactions_beside_commits_end_well() -> None:
    done = [simulate(seed, **only("zombie", "pause", "version", upkeep=True, crash=0.03)) for seed in range(100)]
    assert {outcome for outcome, _ in done} <= {"ok", "halted"}
    assert sum(simulation.world.commits["compactions"] for _, simulation in done) > len(done)
