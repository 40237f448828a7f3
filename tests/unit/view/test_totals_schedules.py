"""Totals of runs that die, restart, cut their checkpoints elsewhere, or do not know that they were replaced."""

import random
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from calve.errors import CalveError
from calve.model.checkpoint import CheckpointIdentity, Offsets, canonical_offsets
from calve.reader.resources import NO_MEMORY, MemoryBudget
from calve.storage.state import LocalState
from calve.view import blocks, totals
from calve.view.blocks import rows_after
from calve.view.sums import add_piece, live_groups, sum_by_group
from calve.view.totals import ManyTotals, TotalsAt, TotalsLimits, TotalsPiece, ViewTotals
from calve.view.totals_tasks import TotalsMerge, TotalsUpdate
from tests.support.combinations import seeds
from tests.unit.view.test_totals_tasks import in_order, merged_here, random_piece, run_here, schema_of, tables_of

SCHEMA = schema_of([pa.string(), pa.int64()])


def offsets_at(position: int) -> Offsets:
    return canonical_offsets(position) if position else None


@dataclass
class Input:
    """The same additions for every run, position by position."""

    rng: random.Random
    pieces: list[pa.Table] = field(default_factory=list)
    live: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def between(self, start: int, end: int) -> pa.Table:
        while len(self.pieces) < end:
            self.pieces.append(random_piece(self.rng, SCHEMA, self.live, inserts=False))
        return sum_by_group([SCHEMA.empty_table(), *self.pieces[start:end]])


@dataclass
class Run:
    """One run of a view."""

    totals: ViewTotals
    epoch: int
    committed: int
    ends: list[int] = field(default_factory=list)
    """Of its checkpoints that are not committed."""

    @property
    def position(self) -> int:
        return self.ends[-1] if self.ends else self.committed

    def take(self, source: Input, rng: random.Random, survives: float = 0.9) -> None:
        """Take a checkpoint, in the driver or as tasks do; or die before its record."""
        end = self.position + rng.choice([1, 1, 1, 2, 5])
        piece = source.between(self.position, end)
        identity = CheckpointIdentity("q", 0, offsets_at(self.position), offsets_at(end))
        before = self.totals.at(identity.start, SCHEMA)
        if isinstance(before, TotalsAt):
            after, touched = add_piece(before.table, piece, "v")
            if rng.random() < survives:
                self.totals.record(identity, piece, TotalsAt(after, ""), epoch=self.epoch)
                self.ends.append(end)
        else:
            name = f"parts/{self.epoch}-{rng.random()}"
            answer = run_here(TotalsUpdate(self.totals.store, "v", before.pieces, SCHEMA, 2, name), piece, rng)
            assert not answer.bad
            touched = pa.concat_tables(
                [SCHEMA.empty_table(), *(rows_after(self.totals.store, p) for p in answer.parts)]
            )
            if rng.random() < survives:
                self.totals.record_parts(identity, answer.parts, "", epoch=self.epoch)
                self.ends.append(end)
        keys = {tuple(row.values())[:2] for row in piece.to_pylist()}
        expected = [row for row in in_order(source.between(0, end)) if tuple(row.values())[:2] in keys]
        assert in_order(touched) == expected

    def commit(self, count: int) -> None:
        """Commit its oldest checkpoints."""
        done, self.ends = self.ends[:count], self.ends[count:]
        self.committed = done[-1] if done else self.committed
        self.clean()

    def clean(self) -> None:
        """What follows a checkpoint."""
        self.totals.committed(offsets_at(self.committed), epoch=self.epoch)


def contents(store: LocalState, position: int) -> list[dict[str, Any]]:
    """The totals that a run finds which knows nothing yet."""
    found = ViewTotals(store, "v", limits=TotalsLimits(NO_MEMORY, small=0)).at(offsets_at(position), SCHEMA)
    tables = [found.table] if isinstance(found, TotalsAt) else list(tables_of(found.pieces, store))
    return in_order(live_groups(sum_by_group([SCHEMA.empty_table(), *tables]), "v"))


@seeds(40)
def test_totals_are_those_of_the_input_in_any_schedule_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 4)
    monkeypatch.setattr(totals, "FANOUT", 3)
    monkeypatch.setattr(TotalsMerge, "run", merged_here)
    rng, store = random.Random(seed), LocalState(tmp_path)
    source, runs, epochs = Input(rng), list[Run](), count(1)
    memory = MemoryBudget(rng.choice([0, 20_000, 1 << 20]))

    def begin(committed: int) -> None:
        limits = TotalsLimits(memory, small=rng.choice([0, 500, 1 << 16]))
        made = ViewTotals(store, "v", limits=limits, spark=cast("SparkSession", object()))
        runs.append(Run(made, next(epochs), committed))

    begin(0)
    for _ in range(40):
        current = runs[-1]
        match rng.choice(["take", "take", "take", "commit", "begin", "late"]):
            case "take":
                current.take(source, rng)
                current.clean()
            case "commit":
                current.commit(rng.randint(0, len(current.ends)))
            case "begin" if rng.random() < 0.3:
                begin(current.committed)
            case "late" if runs[:-1]:  # it does not know that it was replaced
                late = rng.choice(runs[-3:-1])
                try:
                    late.take(source, rng)
                    late.clean()
                except CalveError:
                    runs.remove(late)
        assert contents(store, runs[-1].committed) == in_order(live_groups(source.between(0, runs[-1].committed), "v"))
    for _ in range(20):
        runs[-1].commit(len(runs[-1].ends))
    for _ in range(3):
        runs[-1].take(source, rng, survives=1)
        runs[-1].commit(1)
    named = {
        part.name
        for name in store.list("")
        if TotalsPiece.parse(name)
        for part in blocks.read_piece(store, name)[0].parts or ()
    }
    assert named == set(store.list("parts")), "nothing is left of runs and attempts that died"
    assert isinstance(runs[-1].totals.at(offsets_at(runs[-1].position), SCHEMA), TotalsAt | ManyTotals)
