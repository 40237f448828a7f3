import pytest

from calve.errors import InvalidInput
from calve.model.checkpoint import (
    Adoption,
    CheckpointEntry,
    CheckpointIdentity,
    FrontierEntry,
    adoption_from_json,
    adoption_to_json,
    canonical_offsets,
    entry_from_json,
    entry_to_json,
)
from calve.model.files import Committable, Content, FieldSummary, FileTotals, Manifest
from calve.model.frontier import SEALED, START, BatchDescription, Frontier
from calve.model.progress import Fence
from calve.model.spec import MAX_FILE_SIZE, TableName, WriteOptions

COMMITTABLE = Committable(
    commit_id="c",
    batch=BatchDescription(START, Frontier(7)),
    query_id="q",
    checkpoint=3,
    offsets='{"n":1}',
    manifests=(
        Manifest(
            "p",
            10,
            1,
            Content.EQUALITY_DELETES,
            2,
            30,
            (FieldSummary(contains_null=True, contains_nan=None, lower=b"\x00\xff", upper=None),),
        ),
    ),
    totals=FileTotals(changes=5, data_files=1),
)


def test_frontiers_are_ordered_and_the_sealed_one_is_the_last() -> None:
    assert START < Frontier(1) < Frontier(2) < SEALED
    assert sorted([SEALED, START, Frontier(1)]) == [START, Frontier(1), SEALED]
    assert Frontier(10**15) < SEALED


@pytest.mark.parametrize("frontier", [START, Frontier(123), SEALED])
def test_a_frontier_survives_its_json(frontier: Frontier) -> None:
    assert Frontier.from_json(frontier.to_json()) == frontier


@pytest.mark.parametrize("text", ["[1, 2]", "7", '["a"]', "{}"])
def test_what_is_no_frontier_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a frontier"):
        Frontier.from_json(text)


def test_an_empty_batch_cannot_be_described() -> None:
    with pytest.raises(ValueError, match="empty batch"):
        BatchDescription(Frontier(5), Frontier(5))


@pytest.mark.parametrize(
    "entry",
    [
        CheckpointEntry(CheckpointIdentity("q", 3, None, "x"), 6, COMMITTABLE),
        CheckpointEntry(CheckpointIdentity("q", 3, "a", "x"), 6, None),
        FrontierEntry(9, COMMITTABLE),
    ],
)
def test_entries_survive_their_json(entry: CheckpointEntry | FrontierEntry) -> None:
    assert entry_from_json(entry_to_json(entry)) == entry


def test_an_adoption_survives_its_json() -> None:
    identity = CheckpointIdentity("q", 1, None, "e")
    adoption = Adoption((FrontierEntry(9, COMMITTABLE),), (identity,), 9, "e")
    assert adoption_from_json(adoption_to_json(adoption)) == adoption


def test_equal_positions_have_equal_offsets_whatever_their_order() -> None:
    assert canonical_offsets({"b": 1, "a": [2]}) == canonical_offsets({"a": [2], "b": 1})


def test_only_a_greater_version_or_epoch_is_a_greater_fence() -> None:
    assert Fence(1, 9, "a") < Fence(2, 1, "b")
    assert Fence(1, 1, "a") < Fence(1, 2, "b")
    assert not Fence(1, 1, "a") < Fence(1, 1, "b")


@pytest.mark.parametrize("text", ["orders", "a..b", ".a", "a.", ""])
def test_a_table_name_needs_a_namespace(text: str) -> None:
    with pytest.raises(InvalidInput, match="not a table name"):
        TableName.parse(text)


@pytest.mark.parametrize("size", [0, -1, MAX_FILE_SIZE + 1])
def test_files_larger_than_the_maximum_are_refused(size: int) -> None:
    with pytest.raises(InvalidInput, match="target file size"):
        WriteOptions(target_file_size=size)
