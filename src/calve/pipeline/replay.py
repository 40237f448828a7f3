"""Replays dead letters of a sink, once the reason why they could not be converted is gone.

    choose ──► judge ──► request ──► checkpoint ──► commit ──► remove letters ──► remove request

Letters become a checkpoint like any other, except that it starts and ends at the same offsets: envelope, view, staging,
record, claim and commit are those of a sink. Its identity contains the id of the replay, and the commit states that id
in the table's progress, where later commits repeat it (`Progress.letters`). So after a crash anywhere the table itself
tells whether the letters of a request were applied, whatever was committed since:

    request in the state location     names the letters, before anything is recorded
    claim                             nothing of an earlier run can be recorded or committed after it
    the table states the replay       its letters are removed, then the request
    it does not                       nothing of it was applied: the request is dropped, and its letters chosen again

A replay finishes the requests that it finds before it makes its own, and its own one after the other, so a request
that the table does not state was never applied. Letters are identified by the digest of their origin; equal letters (a
line that occurs several times in a file) are applied and removed together, so that a removal may be repeated. Only
letters up to the time of the request are removed: a record that is read again, and is bad again, is another letter.

A letter stands for a record that was read and not applied. That does not hold for records after the position of the
sink, which will be read again: their letters are withdrawn first, and come back if they are still bad.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from calve import faults
from calve.clock import Clock, IdSource
from calve.commit.committer import Signals
from calve.commit.run import SinkRun
from calve.commit.run_state import SETTLE_SECONDS
from calve.errors import CalveError, InvalidInput, TerminalError
from calve.iceberg.sink_table import IcebergTable
from calve.iceberg.small_tables.dead_letters import LetterTable
from calve.model.change import BAD, ORIGIN_OPEN, Letter, Origin, letter_of
from calve.model.checkpoint import CheckpointIdentity, Offsets, SizeHint
from calve.model.files import ColumnNeeds
from calve.model.letters import LetterChoice, ReplayReport
from calve.model.spec import Pace, SinkSpec
from calve.pipeline.dead_letters import LETTERS_PER_FILE, checkpoints_of, run_spark
from calve.pipeline.feed import Checkpoint, CheckpointRecords, FeedThread, Take
from calve.pipeline.letter_requests import ReplayRequest, Requests
from calve.pipeline.pipeline import Intake
from calve.reader.local import LocalRead
from calve.reader.splits import whole
from calve.reader.worker import rows_of_task
from calve.source.port import Rereads

STALLED_SECONDS = 120.0
"""Seconds that a replay may be stalled before its caller gives up; nothing of it is lost."""
LETTER_COLUMNS = ("sink", "topic", "partition", "offset", "file", "key", "value", "reason", "checkpoint", "met_at")
"""The columns of the dead letter table that a replay reads."""
_READ_AGAIN = "the source was read again since, and a log would have it twice; --force applies it"

# ---- what may be replayed


def check_replay(spec: SinkSpec, source: object, intake: Intake, choice: LetterChoice) -> Rereads:
    """Check that letters of a sink can be replayed without a risk to newer rows. Raises InvalidInput.

    A letter is older than what the table contains, so it must not simply win.
    """
    name, found = spec.name, source
    if not isinstance(found, Rereads):
        raise InvalidInput(
            f'dead letters of sink "{name}" do not contain the records as they were read',
            detail="Only records of topics and of JSON and CSV files can be read again from dead letters.",
            hint="Correct the data in the source.",
        )
    found.check_letters()
    if spec.times is not None:
        raise InvalidInput(
            f'the rows of sink "{name}" have times of their own: dead letters would be late',
            hint="Send the corrected records again, or refill the table: WITH (SNAPSHOT = true).",
        )
    if intake.view is not None and intake.view.plan.stateful:
        raise InvalidInput(
            f'sink "{name}" keeps totals, to which dead letters cannot be added afterwards',
            hint="Send the corrected records again, or refill the table: WITH (SNAPSHOT = true).",
        )
    if choice.force or spec.ordered:
        return found
    if not spec.append:
        raise InvalidInput(
            f'dead letters of sink "{name}" may be older than the rows of their keys',
            detail="Nothing in the table tells which of them is newer: the later change wins.",
            hint="To apply them as the newest changes, add --force (force=True). With ORDER BY ... GLOBAL the order "
            "decides.",
        )
    return found


def complete(sink: str) -> InvalidInput:
    """The error for a sink whose table is sealed."""
    return InvalidInput(
        f'sink "{sink}" is complete: its table takes no more changes',
        hint="To continue with other contents: ALTER SINK ... SET FROM ... WITH (SNAPSHOT = true).",
    )


# ---- letters


@dataclass(frozen=True)
class ChosenLetter:
    """A letter, and how often it occurs."""

    origin: Origin
    reason: str
    checkpoint: str
    met_at: datetime
    last: datetime
    """When the last equal one was added."""
    count: int = 1


@dataclass(frozen=True)
class LetterRows:
    """The letters of a sink as its dead letter table has them now."""

    read: LocalRead
    sink: str

    def chosen(self, choice: LetterChoice) -> Iterator[list[ChosenLetter]]:
        """The letters that are chosen, oldest first, in portions; equal ones once, with their number."""
        equal: dict[str, tuple[int, datetime]] = {}
        for letter in self._letters():
            count, last = equal.get(letter.origin.digest, (0, letter.met_at))
            equal[letter.origin.digest] = count + 1, max(last, letter.met_at)
        portion: list[ChosenLetter] = []
        for letter in self._letters():
            if not choice.takes(letter.reason, letter.met_at) or letter.origin.digest not in equal:
                continue
            count, last = equal.pop(letter.origin.digest)
            portion.append(replace(letter, count=count, last=last))
            if len(portion) >= LETTERS_PER_FILE:
                yield _in_order(portion)
                portion = []
        if portion:
            yield _in_order(portion)

    def _letters(self) -> Iterator[ChosenLetter]:
        target = self.read.scan.target(self.read.plan)
        for file in sorted(self.read.plan.files, key=lambda file: file.sequence_number):
            for batch in rows_of_task(whole(file), target):
                for row in batch.filter(pc.equal(batch.column("sink"), self.sink)).to_pylist():
                    yield _letter(row)


def _letter(row: dict[str, Any]) -> ChosenLetter:
    place = {name: row[name] for name in ("topic", "partition", "offset", "file", "key", "value")}
    met_at = row["met_at"]
    return ChosenLetter(Origin(**place), row["reason"], row["checkpoint"] or "", met_at, met_at)


def _in_order(letters: Sequence[ChosenLetter]) -> list[ChosenLetter]:
    """By the time when they were met, those of a partition by their offsets."""
    return sorted(letters, key=lambda one: (one.met_at, one.origin.partition or 0, one.origin.offset or 0))


# ---- judging and applying


@dataclass(frozen=True)
class Judge:
    """Decides which letters can be converted now, without applying any."""

    spark: SparkSession
    source: Rereads
    intake: Intake
    checkpoints: str = ""
    """How the checkpoints of letters begin that were not read again since."""

    def judge(self, letters: Sequence[ChosenLetter], needs: ColumnNeeds) -> "Judged":
        """Convert letters, and return which of them are good. Raises TransientError."""
        skipped: Counter[str] = Counter()
        candidates = []
        for letter in letters:
            read_again = not letter.checkpoint.startswith(self.checkpoints)
            why = _READ_AGAIN if read_again else self.source.why_not(letter.origin)
            if why:
                skipped[why] += letter.count
            else:
                candidates.append(letter)
        bad = self._bad(candidates, needs) if candidates else {}
        failed: Counter[str] = Counter()
        for at, error in bad.items():
            failed[error.primary] += candidates[at].count
        good = [letter for at, letter in enumerate(candidates) if at not in bad]
        return Judged(tuple(good), failed, skipped)

    def _bad(self, letters: Sequence[ChosenLetter], needs: ColumnNeeds) -> dict[int, CalveError]:
        """The errors of letters that are still bad, by their number, which takes the place of the file or topic."""
        numbered = [
            replace(one.origin, topic=str(at)) if one.origin.topic is not None else replace(one.origin, file=str(at))
            for at, one in enumerate(letters)
        ]
        changes = self.intake.of_records(self.source.records_of(self.spark, numbered), needs)
        rows = run_spark(lambda: changes.where(F.col(BAD).contains(ORIGIN_OPEN)).select(BAD).collect())
        found = [letter for row in rows if (letter := letter_of(row[0]))]
        return {_number(letter): letter.error for letter in found}


def _number(letter: Letter) -> int:
    return int(letter.origin.topic or letter.origin.file or "")


@dataclass(frozen=True)
class Judged:
    """What would become of letters."""

    good: tuple[ChosenLetter, ...]
    failed: Counter[str]
    skipped: Counter[str]

    @property
    def count(self) -> int:
        """Letters that can be applied."""
        return sum(letter.count for letter in self.good)


def judge_all(rows: LetterRows, choice: LetterChoice, judge: Judge, needs: ColumnNeeds, sink: str) -> ReplayReport:
    """Report what a replay would do. Raises TransientError."""
    report = ReplayReport(sink, dry_run=True)
    for letters in rows.chosen(choice):
        report = with_judged(report, judge.judge(letters, needs))
    return report


def with_judged(report: ReplayReport, judged: Judged) -> ReplayReport:
    """A report with the letters of one more portion; those that are good count as applied."""
    return replace(
        report,
        applied=report.applied + judged.count,
        failed=_sum(report.failed, judged.failed),
        skipped=_sum(report.skipped, judged.skipped),
    )


def _sum(known: tuple[tuple[str, int], ...], more: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple((Counter(dict(known)) + more).most_common())


@dataclass(frozen=True)
class ReplayParts:
    """What a replay works with, besides its run."""

    spec: SinkSpec
    choice: LetterChoice
    judge: Judge
    rows: Callable[[], LetterRows]
    """Loads the dead letter table."""
    letters: LetterTable
    table: IcebergTable
    requests: Requests
    source_name: str
    ids: IdSource


class LetterFeed(FeedThread):
    """Delivers dead letters to a run instead of its source, portion by portion, and ends."""

    def __init__(self, parts: ReplayParts, spark: SparkSession, signals: Signals, clock: Clock, pace: Pace) -> None:
        super().__init__(spark, signals, clock, pace)
        self._parts = parts
        self._done = threading.Event()
        self.report = ReplayReport(parts.spec.name)

    @property
    def done(self) -> bool:
        """Whether all chosen letters were replayed."""
        return self._done.is_set()

    def can_reread(self, offsets: Offsets) -> bool:
        """Letters are read again from their table, and the source's records by a later run of the sink."""
        del offsets
        return True

    def ask(self) -> int:
        return 0

    def await_idle(self, asked: int, timeout: float) -> bool:
        del asked
        return (self.is_over or self._over.wait(timeout)) and self.done

    @property
    def _hurried(self) -> bool:
        return True

    def _loop(self, run: SinkRun, take: Take) -> None:
        parts, retry = self._parts, run.state.retry_until_stopped
        requests = retry(parts.requests.unfinished)
        if not requests and next(retry(parts.rows).chosen(parts.choice), None) is None:
            self._done.set()
            return
        run.claims.claim()
        self._settle(run)
        self.report = replace(self.report, finished=sum(self._conclude(run, request) for request in requests))
        self._check_open(run)
        following = CheckpointIdentity(parts.source_name, run.state.next_checkpoint, run.state.end, None)
        retry(lambda: parts.letters.withdraw(f"{checkpoints_of(parts.spec)}{following}"))
        if parts.table.behind:
            run.claims.between_batches(parts.table.evolve)
        for letters in retry(parts.rows).chosen(parts.choice):
            judged = retry(partial(parts.judge.judge, letters, parts.table.needs))
            if judged.good:
                self._apply(run, take, judged.good)
            self.report = with_judged(self.report, judged)
        self._done.set()

    def _check_open(self, run: SinkRun) -> None:
        """Refuse letters of a sink that is complete, or whose next checkpoint replaces the table's contents."""
        name = self._parts.spec.name
        if run.state.sealed:
            raise complete(name)
        if run.state.starts_over:
            raise InvalidInput(
                f'sink "{name}" has not read its new source yet',
                detail="Its next commit replaces the contents of the table.",
                hint="Run the sink first.",
            )

    def _apply(self, run: SinkRun, take: Take, letters: Sequence[ChosenLetter]) -> None:
        """Commit letters, then remove them from their table."""
        parts = self._parts
        faults.reached("replay.before")
        digests = frozenset(letter.origin.digest for letter in letters)
        until = max(letter.last for letter in letters)
        request = ReplayRequest(parts.ids.new_id(), parts.spec.generation, until, digests)
        run.state.retry_until_stopped(lambda: parts.requests.put(request))
        faults.reached("replay.requested")
        origins = [letter.origin for letter in letters for _ in range(letter.count)]
        identity = CheckpointIdentity.of_letters(request.id, run.state.next_checkpoint, run.state.end)
        size = SizeHint(len(origins), sum(len(o.key or b"") + len(o.value or b"") for o in origins))
        frame = parts.judge.source.records_of(self._spark, origins)
        take(Checkpoint(identity, CheckpointRecords.of(frame), self._clock.now_ms(), size))
        self._settle(run)
        if not self._is_applied(run, request):
            raise TerminalError(
                f'the table of sink "{parts.spec.name}" does not show its dead letters',
                hint="Run the replay again: it applies no letter twice.",
            )
        committed = run.state.position.committed
        self._conclude(run, request)
        if committed is not None:
            self.report = replace(self.report, snapshots=(*self.report.snapshots, committed.snapshot_id))

    def _settle(self, run: SinkRun) -> None:
        """Wait until everything that is recorded is committed. Raises Stopped."""
        run.batches.flush()
        while run.state.pending:
            self._signals.pause(SETTLE_SECONDS)

    def _is_applied(self, run: SinkRun, request: ReplayRequest) -> bool:
        """Whether the table contains the letters of a request. A new generation has replaced its contents since."""
        same = request.generation == self._parts.spec.generation
        return same and run.state.replayed_letters == request.id

    def _conclude(self, run: SinkRun, request: ReplayRequest) -> int:
        """Remove the letters of a request if the table contains them, then the request; returns how many."""
        parts, retry = self._parts, run.state.retry_until_stopped
        removed = 0
        if self._is_applied(run, request):
            faults.reached("replay.committed")
            removed = retry(lambda: parts.letters.remove(request.digests, request.until))
            faults.reached("replay.removed")
        retry(lambda: parts.requests.remove(request))
        return removed
