"""What a definition may not change while rows wait for times of their own."""

from dataclasses import replace

import pytest

from calve.commit.journal import RunRecords
from calve.commit.waiting import check_change, check_waiting
from calve.errors import InvalidInput
from calve.model.checkpoint import (
    Adoption,
    CheckpointEntry,
    CheckpointIdentity,
    FrontierEntry,
    RowKind,
    Staged,
    entry_from_json,
    entry_to_json,
)
from calve.model.files import Committable
from calve.model.frontier import START, BatchDescription, Frontier
from calve.model.spec import Diff, LateRows, NoEnvelope, RowTimes, SinkSpec, TableName, Upsert

SPEC = SinkSpec(
    "s", "sink", TableName(("n",), "t"), ("id",), Upsert(("seq",)), times=RowTimes(LateRows.ERROR, field="ts")
)
BEFORE = RowKind.of(SPEC, columns="{}", beside="{}")


def entry(*, rows: int = 1, timed: bool = True, kind: RowKind | None = BEFORE) -> CheckpointEntry:
    staged = Staged(("f",), rows, 1, kind=kind)
    if timed:
        staged = replace(staged, frontier=5, low=10, high=20)
    return CheckpointEntry(CheckpointIdentity("q", 0, None, "1"), 20, None, staged)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (replace(SPEC, times=RowTimes(LateRows.ERROR, field="at")), "TIME COLUMN"),
        (replace(SPEC, times=None), "TIME COLUMN"),
        (replace(SPEC, key=("id", "v")), "KEY"),
        (replace(SPEC, envelope=NoEnvelope()), "ENVELOPE"),
        (replace(SPEC, envelope=Diff("ts", "d")), "ENVELOPE"),
        (replace(SPEC, append=True), "MODE"),
    ],
)
def test_what_gives_rows_their_place_in_time_is_fixed_while_they_wait(after: SinkSpec, words: str) -> None:
    with pytest.raises(InvalidInput, match=f'{words} of sink "s" cannot change while rows wait') as refused:
        check_waiting([entry()], RowKind.of(after), "s")
    assert "checkpoint q/0" in refused.value.detail
    assert "--until-caught-up" in refused.value.hint


def test_columns_and_order_are_free_and_so_is_all_where_no_row_waits() -> None:
    other = RowKind.of(replace(SPEC, envelope=Upsert(("rank",))), columns="[]", beside="[]")
    check_waiting([entry()], other, "s")
    changed = RowKind.of(replace(SPEC, times=None, key=("v",)))
    check_waiting([entry(rows=0), entry(kind=None)], changed, "s")
    check_waiting([entry(timed=False)], changed, "s")


def test_a_change_of_the_definition_is_allowed_once_a_batch_holds_the_rows() -> None:
    after = RowKind.of(replace(SPEC, times=RowTimes(LateRows.ERROR, field="at")))
    batch = BatchDescription(START, Frontier(21))
    closed = FrontierEntry(20, Committable("c", batch, "q", 0, "1"))
    waiting = RunRecords(Adoption((entry(),), (), -1, "1"), ())
    with pytest.raises(InvalidInput, match="TIME COLUMN was ts"):
        check_change(waiting, BEFORE, after, "s")
    check_change(waiting, BEFORE, BEFORE, "s")
    check_change(replace(waiting, entries=(closed,)), BEFORE, after, "s")
    check_change(None, BEFORE, after, "s")


def test_a_record_tells_what_its_rows_are_and_one_of_an_older_version_does_not() -> None:
    body = entry_to_json(entry())
    assert entry_from_json(body) == entry()
    del body["staged"]["kind"]
    assert entry_from_json(body) == entry(kind=None)
