"""Random schedules of expiry and removal, and rules that the schedules notice to be missing.

A failing seed prints its trace; `CALVE_SEEDS=12345:12346` runs just that one.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from calve.iceberg.snapshot import retention
from calve.iceberg.snapshot.expired_files import NamedFile
from calve.iceberg.snapshot.removal_journal import RemovalEntry, RemovalJournal
from calve.maintain import removal
from calve.maintain.removal import InFlight, Removal
from calve.storage.path_hashes import Hashes, PathSet
from tests.simulation import removal as simulated
from tests.simulation.contents import Violation
from tests.simulation.removal import RemovalSimulation, simulate_removal
from tests.simulation.seeds import shards

SHARDS = shards(2, of=1000)


@pytest.mark.parametrize("seeds", SHARDS, ids=range(len(SHARDS)))
def test_no_schedule_removes_a_file_that_anything_names(seeds: range) -> None:
    done: Counter[str] = Counter()
    for seed in seeds:
        simulation = RemovalSimulation(seed)
        try:
            done.update(simulation.run().done)
        except Violation as error:
            trace = "\n".join(simulation.world.trace[-60:])
            pytest.fail(f"seed {seed}: {error}\n{simulation.world.setup}\n{trace}")
    assert done["removed"] > 5 * len(seeds), "the schedules remove files"


SEEDS = range(700_000, 702_000)
"""Schedules of which one has to notice that a rule is missing."""


@dataclass(frozen=True)
class Mutation:
    """A rule that is taken away."""

    name: str
    replacements: tuple[tuple[Any, str, Any], ...]
    setup: dict[str, Any]
    seed: int = SEEDS[0]
    """A schedule that notices it, where few do: it is tried first."""


def only(*names: str, **setup: Any) -> dict[str, Any]:
    return {"faults": frozenset(names), "thin": False, **setup}


def always(owner: Any, name: str, answer: object) -> tuple[Any, str, Any]:
    return owner, name, lambda *_arguments, **_options: answer


def commit_first(journal: RemovalJournal, entry: RemovalEntry, commit: Callable[[], Any]) -> Any:
    done = commit()
    journal.put(entry)
    return done


def look_at_the_table_first(work: Any) -> Any:
    names = work._load()
    return work._find_in_flight(names), names


def lists_first(removing: Removal, work: Any, entries: Any, _report: Any, **_options: Any) -> None:
    files: list[NamedFile] = [file for chunk in work.files() for file in chunk]
    for group in (work.lists(), work.manifests(), files):
        removing._delete(work.still_unnamed(group))
    for entry in entries:
        removing._journal.delete(entry)


class Forgetful(PathSet):
    def contains(self, hashes: Hashes) -> NDArray[np.bool_]:
        found = super().contains(hashes)
        super().__init__()
        return found


COMPARE = simulated.SimulatedTasks.compare


def compare_with_nothing(tasks: Any, candidates: Any, _kept: Any, check: Any) -> Any:
    return COMPARE(tasks, candidates, (), check)


SEEN, KEPT = RemovalEntry.seen, retention.kept_by_branch

MUTATIONS = [
    Mutation("files go without a grace", ((removal, "is_due", lambda e, *_: e.seen_ms is not None),), only()),
    Mutation(
        "files go that a snapshot names which expired later",
        (always(removal, "not_yet", ()),),
        only("merge", "overwrite"),
    ),
    Mutation(
        "work in flight is not looked at",
        ((simulated.Job, "in_flight", lambda *_: InFlight()),),
        only("rollback", "rest", error=0.3),
        seed=700_126,
    ),
    Mutation(
        "the table is looked at before work in flight",
        ((removal._Work, "_look", look_at_the_table_first), (removal._Work, "still_unnamed", lambda _, files: files)),
        only("rollback", "rest", error=0.3),
        seed=700_270,
    ),
    Mutation(
        "the table is not loaded again before files are removed",
        ((removal._Work, "still_unnamed", lambda _, files: list(files)),),
        only("add_files", "cherry_pick", "stage"),
        seed=701_515,
    ),
    Mutation(
        "manifests that were found before one removal are forgotten before the next",
        ((removal, "PathSet", Forgetful),),
        only("add_files", "merge", "overwrite", at_once=1, tasks=False),
        seed=700_976,
    ),
    Mutation(
        "files are not compared with those of kept manifests",
        ((removal._Work, "_unnamed", lambda _, files, __: list(files.values())),),
        only("merge", tasks=False),
    ),
    Mutation(
        "files that tasks compare are not compared with those of kept manifests",
        ((simulated.SimulatedTasks, "compare", compare_with_nothing),),
        only("merge", tasks=True),
    ),
    Mutation(
        "a snapshot that is back does not matter",
        (always(removal, "is_there", answer=False), (removal._Work, "still_unnamed", lambda _, files: list(files))),
        only("back", "overwrite"),
        seed=701_715,
    ),
    Mutation(
        "a manifest that cannot be read is skipped",
        (always(removal, "refuse_unreadable", None),),
        only("damaged", "merge", "overwrite"),
        seed=700_245,
    ),
    Mutation(
        "lists and manifests go before the files that they name",
        ((Removal, "_remove", lists_first),),
        only("overwrite", "merge", crash=0.1),
        seed=701_605,
    ),
    Mutation(
        "the journal is written after the commit",
        ((simulated, "journalled", commit_first),),
        only("overwrite", "merge", crash=0.1),
    ),
    Mutation(
        "tags that a catalog drops in silence do not matter",
        ((RemovalEntry, "seen", lambda entry, now, _: SEEN(entry, now, ())),),
        only("tag", rest=True),
    ),
    Mutation("tags do not keep their snapshot", (always(retention, "kept_by_refs", set()),), only("tag", rest=False)),
    Mutation(
        "age counts from the time of a snapshot",
        ((retention, "replaced_ms", lambda _, chain, rank: chain[rank].timestamp_ms),),
        only(),
    ),
    Mutation(
        "rolled back snapshots are as old as their time says",
        ((retention.History, "superseded_ms", lambda _, snapshot: snapshot.timestamp_ms),),
        only("rollback"),
    ),
    Mutation("staged snapshots expire like others", ((retention, "STAGED_FACTOR", 1),), only("stage")),
    Mutation(
        "a sink at rest keeps only what its tag names",
        (always(retention, "kept_by_sinks", set()),),
        only("merge", "stage", "add_files"),
    ),
    Mutation(
        "a hold keeps only the snapshot that it names",
        (always(retention, "kept_by_holds", set()),),
        only("hold", "merge", "add_files"),
    ),
    Mutation(
        "the number of snapshots to keep does not matter",
        (
            (
                retention,
                "kept_by_branch",
                lambda h, chain, r, now: KEPT(h, chain, retention.Retention(r.max_age_ms), now),
            ),
        ),
        only("merge", "add_files", min_keep=3),
    ),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name.replace(" ", "-"))
def test_the_schedules_notice_when(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, instead in mutation.replacements:
        monkeypatch.setattr(owner, name, instead)
    for seed in (mutation.seed, *SEEDS):
        try:
            simulate_removal(seed, **mutation.setup)
        except Violation:
            return
    pytest.fail("the schedules hold without this rule: it is not needed, or they are too tame")
