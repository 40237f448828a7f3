"""Replays of dead letters that die at any step, without Spark: each letter is applied once, or stays a letter."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from calve import faults
from calve.clock import RandomIds, SystemClock
from calve.commit.checkpoints import CheckpointFiles, Decision
from calve.commit.committer import Signals
from calve.errors import BadRow, InvalidInput
from calve.iceberg.small_tables.dead_letters import LetterTable
from calve.lake import connect
from calve.model.change import Letter, Origin
from calve.model.files import NO_NEEDS, Content, FileTotals, WriteResult
from calve.model.letters import LetterChoice, ReplayReport
from calve.model.spec import LateRows, NoEnvelope, Pace, RowTimes, SinkSpec, Upsert
from calve.pipeline.feed import Checkpoint
from calve.pipeline.letter_requests import ReplayRequest, Requests
from calve.pipeline.pipeline import Intake
from calve.pipeline.replay import (
    LETTER_COLUMNS,
    ChosenLetter,
    Judge,
    Judged,
    LetterFeed,
    LetterRows,
    ReplayParts,
    check_replay,
)
from calve.reader.local import read_here
from calve.source.files.definition import files
from calve.source.generator import orders
from calve.storage.state import LocalState
from tests.support.changes import Death, Died
from tests.support.readers import duckdb_rows
from tests.support.runs import NAME, Run, spec_of

SPEC = spec_of("s", dead_letters=NAME.dead_letters)
STEPS = (
    *("replay.before", "replay.requested", "record.before", "record.after"),
    *("claim.before", "claim.after", "adopt.before", "adopt.after"),
    *("commit.before", "commit.after", "receipt.before", "receipt.after"),
    *("replay.committed", "metastore.before", "metastore.after", "replay.removed"),
)


class Committing(Signals):
    """Commits what is recorded whenever the feed waits."""

    run: Run

    def pause(self, seconds: float) -> None:
        del seconds
        assert self.run.run.commits.commit_next()


class JsonJudge:
    """Letters with JSON are good; a record is a row of the table."""

    source: "JsonJudge"

    def __init__(self) -> None:
        self.source = self

    def judge(self, letters: Sequence[ChosenLetter], _needs: object) -> Judged:
        bad = [letter for letter in letters if not (letter.origin.value or b"").startswith(b"{")]
        good = tuple(letter for letter in letters if letter not in bad)
        return Judged(good, Counter({"no JSON": len(bad)} if bad else {}), Counter())

    def records_of(self, _spark: object, origins: Sequence[Origin]) -> Sequence[Origin]:
        return origins


def letter(number: int, value: str | None = None) -> Letter:
    text = json.dumps({"id": number}) if value is None else value
    return Letter(Origin("t", 0, number, value=text.encode()), BadRow("it was bad"))


class Sink:
    """A sink with dead letters, over several processes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        run = Run(home, SPEC)
        run.commit({100: "of the source"})
        self.letters = LetterTable(run.catalog, NAME.dead_letters, "s", SystemClock(), RandomIds())
        self.requests = Requests(LocalState(home / "state" / "s"))

    def replay(self, choice: LetterChoice = LetterChoice()) -> ReplayReport:  # noqa: B008 - frozen
        run = Run(self.home, SPEC)
        signals = Committing()
        signals.run = run
        lake = connect(home=self.home)
        parts = ReplayParts(
            SPEC,
            choice,
            cast("Judge", JsonJudge()),
            lambda: LetterRows(read_here(lake.table(str(NAME.dead_letters)), columns=LETTER_COLUMNS), "s"),
            self.letters,
            run.table,
            self.requests,
            "q",
            RandomIds(),
        )
        feed = LetterFeed(parts, cast("Any", None), signals, SystemClock(), Pace())

        def take(checkpoint: Checkpoint) -> Decision:
            origins = cast("Sequence[Origin]", checkpoint.records.frame)
            rows = [(json.loads(o.value or b"")["id"], f"offset {o.offset}") for o in origins]
            data: list[Any] = []
            for row in rows:  # a file each, without deletes: what is applied twice is in the table twice
                data += [file for file in run._files(dict([row])) if file.content is Content.DATA]
            commit_id = run.ids.new_id()
            manifests = run.table.write_manifests(data, commit_id)
            totals = FileTotals.of(WriteResult(tuple(data), len(rows)))
            written = CheckpointFiles(commit_id, manifests, totals)
            time = run.run.state.next_time(checkpoint.batch_ms)
            assert run.run.checkpoints.decide(checkpoint.identity) is Decision.ACCEPT
            assert run.run.checkpoints.record(checkpoint.identity, written, time)
            return Decision.ACCEPT

        feed._loop(run.run, take)
        return feed.report

    def dies(self, point: str, nth: int = 1) -> bool:
        death = Death(point, nth)
        faults.install(death)
        try:
            with suppress(Died):
                self.replay()
        finally:
            faults.install(None)
        return death.happened.is_set()

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in duckdb_rows(Run(self.home, SPEC).now.metadata_location))

    def left(self) -> list[int]:
        rows = connect(home=self.home).open().load_table(NAME.dead_letters.identifier).scan().to_arrow().to_pylist()
        return sorted(row["offset"] for row in rows)


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path)


@pytest.mark.parametrize(
    ("step", "between"),
    [(step, "nothing") for step in STEPS]
    + [(step, "the sink") for step in ("replay.requested", "record.after", "commit.after", "metastore.before")],
)
def test_a_replay_that_dies_is_finished_by_the_next_one(sink: Sink, step: str, between: str) -> None:
    sink.letters.add([letter(1), letter(2), letter(2), letter(3, "still bad")], "q/0")
    assert sink.dies(step)
    expected = [1, 2, 2, 100]
    if between == "the sink":  # what was recorded is taken over, and its commit is not the last one any more
        run = Run(sink.home, SPEC)
        run.commit({101: "of the source"})
        while run.run.state.pending:
            run.run.commits.commit_next()
        expected = [1, 2, 2, 100, 101]
    report = sink.replay()
    assert report.applied + report.finished == (0 if step in {"metastore.after", "replay.removed"} else 3)
    assert (sink.ids(), sink.left(), sink.requests.unfinished()) == (expected, [3], [])
    assert sink.replay().applied == 0
    assert sink.ids() == expected


def test_a_record_that_is_bad_again_is_a_letter_again(sink: Sink) -> None:
    sink.letters.add([letter(1)], "q/0")
    assert sink.dies("replay.removed")
    sink.letters.add([letter(1)], "q/1")  # for example after the source was read again
    assert sink.replay().finished == 0
    assert (sink.left(), sink.ids()) == ([], [1, 1, 100]), "it was chosen anew, after the unfinished one"


def test_a_new_generation_keeps_the_letters_of_an_interrupted_replay(sink: Sink) -> None:
    sink.letters.add([letter(1)], "q/0")
    assert sink.dies("replay.committed")
    (kept,) = sink.requests.unfinished()
    sink.requests.put(replace(kept, generation=7))
    report = sink.replay()
    assert (report.finished, report.applied) == (0, 1), "the table's contents were replaced since"


def test_letters_that_the_sink_reads_again_are_not_replayed(sink: Sink) -> None:
    after = Run(sink.home, SPEC).run.state.next_checkpoint
    sink.letters.add([letter(1)], "q/0")
    sink.letters.add([letter(2)], f"s/0/q/{after}")  # this checkpoint was never recorded
    sink.letters.add([letter(3)], f"another id/0/q/{after}")  # of a sink of the same name that was dropped
    assert sink.replay().applied == 2
    assert (sink.ids(), sink.left()) == ([1, 3, 100], [])


def test_equal_letters_that_were_added_at_different_times_go_together(sink: Sink) -> None:
    sink.letters.add([letter(1)], "q/0")
    sink.letters.add([letter(1), letter(1)], "q/1")
    assert sink.replay(LetterChoice(since=datetime(2020, 1, 1, tzinfo=UTC))).applied == 2
    assert (sink.ids(), sink.left()) == ([1, 1, 100], [])


def test_a_replay_that_lost_its_fence_cannot_make_its_successor_repeat_letters(sink: Sink) -> None:
    sink.letters.add([letter(1)], "q/0")
    assert sink.dies("replay.committed")
    sink.requests.put(ReplayRequest("of a zombie", 0, datetime.now(UTC), frozenset({letter(1).origin.digest})))
    report = sink.replay()
    assert (report.finished, report.applied) == (1, 0)
    assert (sink.ids(), sink.left(), sink.requests.unfinished()) == ([1, 100], [], [])


def test_a_choice_leaves_the_other_letters(sink: Sink) -> None:
    sink.letters.add([letter(1), Letter(letter(2).origin, BadRow("Another Reason"))], "q/0")
    assert sink.replay(LetterChoice(reason="another")).applied == 1
    assert (sink.ids(), sink.left()) == ([2, 100], [1])


def test_without_letters_nothing_is_claimed(sink: Sink) -> None:
    before = Run(sink.home, SPEC).now.metadata_location
    assert sink.replay().applied == 0
    assert Run(sink.home, SPEC).now.metadata_location == before


def test_a_request_survives_its_record() -> None:
    request = ReplayRequest("r", 3, datetime(2026, 1, 2, 3, 4, 5, 678901, UTC), frozenset({"a", "b"}))
    assert ReplayRequest.parse(request.to_bytes()) == request


SOURCE = files("in", format="json", schema="id BIGINT").open(LocalState(Path("state")), SystemClock())
INTAKE = Intake(NoEnvelope(), ())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "may be older than the rows of their keys"),
        ({"times": RowTimes(LateRows.ERROR, "at")}, "have times of their own"),
    ],
)
def test_letters_that_may_harm_newer_rows_are_refused(settings: dict[str, Any], words: str) -> None:
    spec = replace(SPEC, **settings)
    with pytest.raises(InvalidInput, match=words):
        check_replay(spec, SOURCE, INTAKE, LetterChoice())
    if spec.times is None:
        assert check_replay(spec, SOURCE, INTAKE, LetterChoice(force=True)) is SOURCE


def ordered() -> SinkSpec:
    return replace(SPEC, envelope=Upsert(columns="id BIGINT", order_by=("seq",), across_checkpoints=True))


@pytest.mark.parametrize("spec", [ordered(), replace(SPEC, key=(), append=True)], ids=["ordered", "log"])
def test_letters_that_cannot_harm_are_taken(spec: SinkSpec) -> None:
    assert check_replay(spec, SOURCE, INTAKE, LetterChoice()) is SOURCE


def test_letters_of_records_that_were_read_again_stay_out_of_a_log() -> None:
    def chosen(checkpoint: str) -> ChosenLetter:
        return ChosenLetter(Origin(), "it was bad", checkpoint, datetime.now(UTC), datetime.now(UTC))

    judge = Judge(cast("Any", None), SOURCE, INTAKE, "s/1/")
    judged = judge.judge([chosen("s/0/q/3"), chosen("another/1/q/3"), chosen("q/3"), chosen("s/1/q/9")], NO_NEEDS)
    (again, count), (no_record, one) = judged.skipped.most_common()
    assert (count, one, judged.good) == (3, 1, ())
    assert again.startswith("the source was read again since")
    assert no_record == "it is a row of a view, not a record"


def test_letters_without_the_record_as_it_was_read_are_refused(tmp_path: Path) -> None:
    log = replace(SPEC, key=(), append=True)
    state, clock = LocalState(tmp_path), SystemClock()
    for source in (
        files("in", format="parquet").open(state, clock),
        files("in", format="json", schema="id BIGINT", options={"multiLine": "true"}).open(state, clock),
        orders(rows=1).open(state, clock),
        None,
    ):
        with pytest.raises(InvalidInput, match="do not contain the records as they were read"):
            check_replay(log, source, INTAKE, LetterChoice())
