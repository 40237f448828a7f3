"""A sink whose commits go to a branch."""

import pytest
from pyiceberg.table.refs import SnapshotRefType

from calve.errors import TerminalError
from calve.iceberg.schema.evolution import Shape
from calve.iceberg.sink_table import IcebergTable
from calve.model.progress import tag_name
from tests.unit.iceberg.sample import SINK, Sample


def on_branch(sample: Sample, branch: str) -> IcebergTable:
    shape = Shape(sample.table.schema(), branch=branch)
    return IcebergTable(sample.table, SINK, ["id"], sample.clock, sample.ids, shape=shape)


def test_a_branch_begins_at_the_head_of_main_and_leaves_main_alone(sample: Sample) -> None:
    sample.commit({1: "a", 2: "b"})
    sample.iceberg = on_branch(sample, "audit")
    first = sample.commit({1: "c"}, deletes=[1])
    sample.commit({3: "d"}, deletes=[3])
    refs = sample.table.metadata.refs
    assert sample.rows() == sample.rows(refs["main"].snapshot_id) == {1: "a", 2: "b"}
    assert sample.rows(refs["audit"].snapshot_id) == {1: "c", 2: "b", 3: "d"}
    assert refs["audit"].snapshot_ref_type == SnapshotRefType.BRANCH
    assert refs[tag_name(SINK)].snapshot_id == refs["audit"].snapshot_id
    seen = [snapshot.snapshot_id for snapshot in sample.iceberg.load().ancestors]
    assert seen == [refs["audit"].snapshot_id, first.snapshot_id, refs["main"].snapshot_id]


def test_a_branch_of_an_empty_table_has_its_own_beginning(sample: Sample) -> None:
    sample.iceberg = on_branch(sample, "audit")
    sample.commit({1: "a"})
    assert "main" not in sample.table.metadata.refs
    assert sample.rows(sample.table.metadata.refs["audit"].snapshot_id) == {1: "a"}


def test_a_tag_is_no_branch(sample: Sample) -> None:
    sample.commit({1: "a"})
    with pytest.raises(TerminalError, match="is a tag of table"):
        on_branch(sample, tag_name(SINK)).load()
