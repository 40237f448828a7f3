"""A sink that is filled again from another source: the offsets of the one before mean nothing to it."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

import calve
from calve.commit.checkpoints import CheckpointFiles
from calve.commit.committer import Signals
from calve.commit.journal import Journal
from calve.commit.run import SinkRun
from calve.commit.run_state import RunPorts
from calve.model.checkpoint import CheckpointIdentity, Staged
from calve.model.files import FileTotals
from calve.model.frontier import BatchDescription, Frontier
from calve.model.spec import LateRows, NoEnvelope, RowTimes, SinkSpec, TableName
from calve.pipeline.feed import SourceFeed
from calve.source.port import SourceDefinition
from calve.storage.state import LocalState
from tests.support.foreign import ForeignTable
from tests.support.manual import ManualSink
from tests.unit.iceberg.sample import SetClock
from tests.unit.keylookup.test_random import SCHEMA

SPEC = SinkSpec("s", "sink", TableName(("n",), "t"), ("k",), NoEnvelope())
TIMED = replace(SPEC, times=RowTimes(LateRows.ERROR))
BEFORE = "1"
"""Offsets of the first source."""


def filled_again(spec: SinkSpec) -> ManualSink:
    """The run of a new generation, over a table with a commit of the one before."""
    sink = ManualSink(spec)
    sink.reads(0, time=None if spec.times is None else 5)
    sink.run.batches.flush()
    while sink.run.state.pending:
        sink.commits()
    assert sink.run.state.committed_offsets == BEFORE
    outer, ports = sink.outer, RunPorts(*[sink.outer] * 5)
    sink.run = SinkRun(replace(spec, generation=1), outer, Journal(outer), ports, lambda _: True)
    sink.run.claims.boot()
    sink.run.claims.claim()
    return sink


@pytest.mark.parametrize("kind", ["table", "files"])
def test_a_source_is_not_told_what_was_committed_of_another_source(kind: str, tmp_path: Path) -> None:
    table = ForeignTable(tmp_path / "lake", SCHEMA)
    table.commit()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text("{}")
    kinds: dict[str, SourceDefinition] = {
        "table": calve.table_changes(table.ref),
        "files": calve.files(tmp_path / "in", format="json", schema="id BIGINT"),
    }
    sink = filled_again(SPEC)
    source = kinds[kind].open(LocalState(tmp_path / "source"), SetClock())
    feed = SourceFeed(cast("SparkSession", None), source, Signals(), sink.outer, SPEC.pace)
    state = sink.run.state
    feed._tell_committed(sink.run)  # without its thread
    end = source.next_end(state.end, whole=state.starts_over)
    assert end is not None
    files = CheckpointFiles("first", (), FileTotals())
    sink.run.checkpoints.record(CheckpointIdentity(source.name, state.next_checkpoint, None, end), files, 2000)
    assert state.committed_offsets is None, "recorded, and not committed"
    landed = state.position.committed
    assert landed is not None
    state.position.committed = replace(landed, generation=1, offsets=end)
    feed._tell_committed(sink.run)
    assert source.next_end(end) is None


def test_a_batch_before_the_first_whole_checkpoint_states_no_offsets_of_another_source() -> None:
    sink = filled_again(TIMED)
    name = f"{sink.run.checkpoints.stage_folder}/1"
    sink.outer.put(name, b"[]")
    staged = Staged((name,), 2, 1, 0, 6, 100, (6, 100))
    assert sink.run.checkpoints.stage(CheckpointIdentity("other", 1, None, "other"), staged, sink.world.now)
    lower = sink.run.state.position.minted
    sink.run.batches.close(BatchDescription(lower, Frontier(50)), CheckpointFiles("half", (), FileTotals()))
    recorded = sink.run.state.records[-1][1].committable
    assert recorded is not None
    assert recorded.offsets is None, "a restart reads the other source from its beginning"
