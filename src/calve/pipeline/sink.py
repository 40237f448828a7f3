"""The Python interface: `calve.connect`, `calve.sink(...).start()`.

lake = calve.connect()
query = calve.sink(changes, name="orders", into=lake.table("shop.orders"), key=["id"]).start()
"""

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import cache
from inspect import signature
from math import isfinite
from typing import Any, TypeVar

from pyspark.sql import DataFrame

from calve.calls import for_users
from calve.clock import sink_id_of
from calve.errors import InvalidInput, TransientError
from calve.lake import Lake, TableRef
from calve.model.instants import datetime_of
from calve.model.letters import LetterChoice, ReplayReport
from calve.model.readers import parse_readers
from calve.model.spec import (
    HEARTBEAT_MS,
    CompactionOptions,
    DayHours,
    Diff,
    Envelope,
    LateRows,
    NoEnvelope,
    Pace,
    PartitionBy,
    RetentionOptions,
    RowOrder,
    RowTimes,
    SinkSpec,
    TableName,
    ThinSnapshots,
    WriteOptions,
    check_envelope,
)
from calve.pipeline.query import Query
from calve.pipeline.start import Start
from calve.pipeline.views import ViewOver
from calve.plan.catalogue import SinkOptions
from calve.plan.settings import Setting
from calve.records.frames import extensions_of
from calve.retry import Backoff
from calve.source.port import SourceDefinition
from calve.spark.executors import refuse_connect
from calve.sql.parser import parse_partition_field
from calve.sql.values import parse_duration, parse_size
from calve.suggest import suggestion

START_TRIES = 4
"""Attempts to start a sink while a catalog or a store fails."""
FIRST_WAIT = 0.5
"""Seconds before the second attempt, doubled each time."""

_LEAST_SECONDS, _MOST_SECONDS = 0.001, 1e9
"""Bounds of durations: times are in milliseconds."""
_LEAST_HEARTBEAT_MS = 1000

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


Changes = DataFrame | SourceDefinition


@for_users
def sink(
    changes: Changes,
    *,
    name: str,
    into: TableRef,
    key: Sequence[str] = (),
    envelope: Envelope | None = None,
    mode: str = "upsert",
    **settings: Any,
) -> "Sink":
    """Define a sink that keeps the table `into` equal to `changes`, by `key`. Nothing happens before `start`.

    >>> into = calve.connect(home="/data/calve").table("shop.orders")
    >>> changes = calve.files("in/orders", format="json", schema="id BIGINT, status STRING, seq BIGINT",
    ...                       envelope=calve.Upsert(order_by=("seq",), columns="id, status"))
    >>> orders = calve.sink(changes, name="orders", into=into, key=["id"], commit_interval="1m",
    ...                     partition_by=["bucket(16, id)"])
    >>> orders.spec.key
    ('id',)
    >>> calve.sink(changes, name="orders", into=into, key=["id"], comit_interval="1m")
    Traceback (most recent call last):
    calve.errors.InvalidInput: a sink has no setting "comit_interval"

    `orders.start()` runs it.

    `settings` are the options of a sink in SQL, in lower case (`COMMIT INTERVAL` is `commit_interval`), and `state`,
    a folder or URI for calve's records. They are checked now. The methods of `Sink` set the same ones. `on_truncate`
    and `on_unavailable_value` belong to `calve.Debezium`; `DEAD LETTER TABLE`, `RESUME`, `SNAPSHOT` are for SQL only.

    `changes` is a streaming or bounded DataFrame, or one of calve's own sources (`calve.files`, `calve.kafka`,
    `calve.table_changes`, `calve.orders`), which define their envelope. With `mode="append"` the table is a log of all
    changes, with columns `_calve_diff` and `_calve_time`; such a table has no key, and `key` is only for envelopes that
    need one.
    """
    if not isinstance(into, TableRef):
        raise InvalidInput(
            "into must be a table of a lake",
            detail=f"Got {into!r}.",
            hint=f'Write into=calve.connect().table("{into}").' if isinstance(into, str) else "Use lake.table(...).",
        )
    refuse_connect(changes)  # before the next check: its frames are of another class in Spark 3.5
    if not isinstance(changes, DataFrame) and not hasattr(changes, "envelope"):
        raise InvalidInput(
            "changes must be a DataFrame or a source",
            detail=f"Got {changes!r}.",
            hint="Use a Spark DataFrame, calve.files(...), calve.kafka(...), calve.table_changes(...) or "
            "calve.orders(...).",
        )
    if mode not in ("upsert", "append"):
        raise InvalidInput(f'unknown mode "{mode}"', hint="Use 'upsert' or 'append'.")
    if mode == "upsert" and not key:
        raise InvalidInput(f'sink "{name}" has no key', hint="Give key=[...], or mode='append' to keep every change.")
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f'"{name}" is not a valid name for a sink', hint="Use letters, digits and _, after the first also . and -."
        )
    _check_key(key)
    check_envelope(envelope)
    natural = None if isinstance(changes, DataFrame) else changes.envelope
    chosen = envelope or natural or NoEnvelope()
    append = mode == "append"
    times = (
        RowTimes(_default_late_rows(append), by_progress=chosen.progress is not None)
        if isinstance(chosen, Diff)
        else None
    )
    write = WriteOptions(extensions=extensions_of(changes.schema) if isinstance(changes, DataFrame) else ())
    identity = (name, sink_id_of(name, str(into)), into.name, () if append else tuple(key))
    spec = SinkSpec(*identity, chosen, append=append, times=times, write=write)
    return Sink(changes, into.lake, spec, record_key=tuple(key)).configured(**settings)


def _check_key(key: object) -> None:
    if isinstance(key, str):
        raise InvalidInput("key must be a list of columns", detail=f'Got "{key}".', hint=f'Write key=["{key}"].')
    if not isinstance(key, Sequence) or not all(isinstance(name, str) and name for name in key):
        raise InvalidInput("key must be a list of columns", detail=f"Got {key!r}.", hint='Write key=["id"].')
    twice = next((name for name in key if list(key).count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(f'the key contains column "{twice}" twice')


@dataclass(frozen=True)
class Sink:
    """A sink that is defined but not started."""

    changes: Changes
    lake: Lake
    spec: SinkSpec
    view: ViewOver | None = None
    """The view to keep instead of the changes themselves. `spec.key` may then be empty: the view's key is used."""
    record_key: tuple[str, ...] = ()
    """Key of the records, if the table has none."""
    start_settings: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `start` that were given earlier."""

    @for_users
    def configured(self, **settings: Any) -> "Sink":
        """Return this sink with other settings, by the names that `calve.sink` takes. Raises InvalidInput."""
        known = _setting_names()
        for name in settings:
            if name not in known:
                raise InvalidInput(
                    f'a sink has no setting "{name}"',
                    detail=f"Expected one of: {', '.join(sorted(known))}.",
                    hint=suggestion(name, known),
                )
        found = self
        given = {name: value for name, value in settings.items() if value is not None}
        chosen = {group: {known[n][1]: v for n, v in given.items() if known[n][0] == group} for group in _GROUPS}
        if chosen["options"]:
            found = found.options(**chosen["options"])
        if chosen["commits"]:
            found = found.commits(**chosen["commits"])
        if chosen["times"]:
            found = found.times(**chosen["times"])
        if chosen["partition_by"]:
            fields = chosen["partition_by"]["fields"]
            found = found.partition_by(*([fields] if isinstance(fields, str) else fields))
        if chosen["start"]:
            found.paced(**{k: v for k, v in chosen["start"].items() if k != "state"})  # checked now, used by `start`
            found = replace(found, start_settings={**found.start_settings, **chosen["start"]})
        return found

    @for_users
    def options(  # noqa: PLR0913 - all of them are options by name
        self,
        *,
        version: int | None = None,
        on_foreign_commit: str | None = None,
        on_schema_change: str | None = None,
        on_key_violation: str | None = None,
        branch: str | None = None,
        target_file_size: int | str | None = None,
        row_group_size: int | str | None = None,
        compression: str | None = None,
        bloom_filter: bool | None = None,
        deletes: str | None = None,
        format_version: int | None = None,
        readers: str | None = None,
        on_bad_row: str | None = None,
        key_index: str | None = None,
        maintenance: str | None = None,
        max_pending_batches: int | None = None,
        max_staged_size: int | str | None = None,
        adopt: bool | str | None = None,
        snapshot_retention: str | timedelta | float | None = None,
        min_snapshots: int | None = None,
        thin_snapshots: str | None = None,
        removal_grace: str | timedelta | float | None = None,
        expected_reads: float | None = None,
        deleted_share: float | None = None,
        small_files: int | None = None,
        maintenance_cores: float | None = None,
        maintenance_hours: str | None = None,
        sort_by: str | None = None,
    ) -> "Sink":
        """Return this sink with other options. Dead letters go to the table `<table>_dead_letters`.

        `adopt=True` adopts the rows of an existing table: the sink builds on them, after a check that no key is null
        or duplicated; `adopt="trust"` skips the check. `readers="databricks, trino 480"` names engines that have to be
        able to read the table: they determine the format version of a new one.
        """
        if branch == "":
            raise InvalidInput("branch is empty", hint="Leave it out for main.")
        before = self.spec.write
        write = replace(
            before,
            target_file_size=_bytes(SinkOptions.TARGET_FILE_SIZE, target_file_size) or before.target_file_size,
            row_group_size=_bytes(SinkOptions.ROW_GROUP_SIZE, row_group_size) or before.row_group_size,
            compression=_word(SinkOptions.COMPRESSION, compression) or before.compression,
            bloom_filter=before.bloom_filter if bloom_filter is None else bloom_filter,
        )
        spec = replace(self.spec, write=write, branch=branch or self.spec.branch)
        spec = replace(
            spec,
            version=_positive("version", version) or spec.version,
            max_pending_batches=_positive(SinkOptions.MAX_PENDING_BATCHES.keyword, max_pending_batches)
            or spec.max_pending_batches,
            max_staged_size=_bytes(SinkOptions.MAX_STAGED_SIZE, max_staged_size) or spec.max_staged_size,
        )
        ages = (snapshot_retention, removal_grace)
        spec = replace(spec, retention=_retention(spec.retention, ages, min_snapshots, thin_snapshots))
        compaction = spec.compaction
        spec = replace(
            spec,
            compaction=CompactionOptions(
                _number(SinkOptions.EXPECTED_READS, expected_reads, compaction.reads_per_hour),
                _number(SinkOptions.DELETED_SHARE, deleted_share, compaction.deleted_share),
                compaction.small_files if small_files is None else _small_files(small_files),
                compaction.hours if maintenance_hours is None else DayHours.parse(maintenance_hours),
                _number(SinkOptions.MAINTENANCE_CORES, maintenance_cores, compaction.core_share),
                compaction.order if sort_by is None else RowOrder.parse(sort_by),
            ),
        )
        if on_foreign_commit is not None:
            policy = _parse_choice(SinkOptions.ON_FOREIGN_COMMIT, on_foreign_commit)
            spec = replace(spec, on_foreign_commit=policy)
        if deletes is not None or format_version is not None or readers is not None:
            spec = replace(
                spec,
                deletes=spec.deletes if deletes is None else _parse_choice(SinkOptions.DELETES, deletes),
                format_version=_format_version(format_version) or spec.format_version,
                readers=spec.readers if readers is None else parse_readers(readers),
            )
        if on_bad_row is not None:
            spec = replace(spec, dead_letters=_dead_letters(spec.table, on_bad_row))
        if key_index is not None:
            spec = replace(spec, key_index=_parse_choice(SinkOptions.KEY_INDEX, key_index))
        if adopt is not None:
            spec = replace(spec, adopt=_parse_choice(SinkOptions.ADOPT, str(adopt).lower()))
        if maintenance is not None:
            spec = replace(spec, maintenance=_parse_choice(SinkOptions.MAINTENANCE, maintenance))
        if on_key_violation is not None:
            spec = replace(spec, on_key_violation=_parse_choice(SinkOptions.ON_KEY_VIOLATION, on_key_violation))
        if on_schema_change is not None:
            spec = replace(spec, on_schema_change=_parse_choice(SinkOptions.ON_SCHEMA_CHANGE, on_schema_change))
        return replace(self, spec=spec)

    @for_users
    def commits(
        self,
        *,
        size: int | str | None = None,
        coalesce: bool = True,
        heartbeat: str | timedelta | float | None = None,
    ) -> "Sink":
        """Return this sink with other rules for when to commit.

        `size`: commit as soon as this much is staged. `coalesce=False`: one snapshot for every window, or every time,
        even if several are complete. `heartbeat`: commit an empty snapshot this long after the last one (default: an
        hour).
        """
        beat = HEARTBEAT_MS if heartbeat is None else round(_seconds(SinkOptions.HEARTBEAT, heartbeat) * 1000)
        if beat < _LEAST_HEARTBEAT_MS:
            raise InvalidInput("heartbeat must be at least a second", detail=f"Got {heartbeat!r}.")
        spec = replace(
            self.spec, commit_bytes=_bytes(SinkOptions.COMMIT_SIZE, size), coalesce=coalesce, heartbeat_ms=beat
        )
        return replace(self, spec=spec)

    @for_users
    def times(
        self,
        column: str | None = None,
        *,
        watermark_delay: str | timedelta | float | None = None,
        idle_timeout: str | timedelta | float | None = None,
        late_rows: str | None = None,
    ) -> "Sink":
        """Return this sink with event times: those in `column`, or those of the envelope DIFF."""
        if isinstance(self.spec.envelope, Diff) == bool(column):
            raise InvalidInput("event times come either from a column or from the envelope DIFF")
        times = RowTimes(
            late=_parse_choice(SinkOptions.LATE_ROWS, late_rows) if late_rows else _default_late_rows(self.spec.append),
            field=column,
            by_progress=isinstance(self.spec.envelope, Diff) and self.spec.envelope.progress is not None,
            delay_ms=round(_seconds(SinkOptions.WATERMARK_DELAY, watermark_delay) * 1000),
            idle_ms=round(_seconds(SinkOptions.IDLE_TIMEOUT, idle_timeout) * 1000)
            if idle_timeout is not None
            else None,
        )
        return replace(self, spec=replace(self.spec, times=times))

    @for_users
    def partition_by(self, *fields: str) -> "Sink":
        """Return this sink with a partitioned table; fields as in SQL: `"bucket(16, id)"`, `"day(at)"`."""
        return replace(self, spec=replace(self.spec, partition_by=tuple(map(_partition_field, fields))))

    def start_once(self, state: str | None = None) -> Query:
        """Like `start`, without retries: for callers that retry themselves."""
        return Start(self, state).query()

    @for_users
    def start(
        self,
        *,
        state: str | None = None,
        commit_interval: str | timedelta | float | None = None,
        checkpoint_interval: str | timedelta | float | None = None,
        recovery: str | None = None,
    ) -> Query:
        """Create the table if it is missing, and run until stopped. Returns once the sink knows where to continue.

        If a catalog or a store fails, this retries a few times and then raises; a running sink keeps retrying.

        `state` is a folder or URI for calve's records (default: below the home folder). With a `commit_interval`
        snapshots are made at its multiples; until then changes are read as they arrive, and staged checkpoint by
        checkpoint. `checkpoint_interval` is the least time between two checkpoints once the source has been read to its
        end; the commit interval has to be a multiple of it; by default checkpoints follow the data.
        `recovery="replay"` stages nothing: one checkpoint, and one snapshot, per commit interval.
        """
        given = {
            "commit_interval": commit_interval,
            "checkpoint_interval": checkpoint_interval,
            "recovery": recovery,
            "state": state,
        }
        merged = {**self.start_settings, **{name: value for name, value in given.items() if value is not None}}
        place = merged.pop("state", None)
        return _start_with_retries(self.paced(**merged), place)

    @for_users
    def replay_letters(
        self,
        *,
        state: str | None = None,
        reason: str = "",
        since: datetime | str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> ReplayReport:
        """Apply dead letters of this sink again, once their cause is gone; each one exactly once. It must not run.

        Those that can be converted now become changes of the table and leave the dead letter table; the others stay.
        `reason` is a part of their reason, `since` when they were added. Letters are older than what the table
        contains: a sink with a key needs an order across checkpoints, or `force=True` to apply them as the newest
        changes. `dry_run=True` only reports what would happen. After a crash, call it again.
        """
        moment = None if since is None else datetime_of(since)
        choice = LetterChoice(reason, moment, force)
        merged = dict(self.start_settings)
        place = state or merged.pop("state", None)
        merged.pop("state", None)
        sink = self.paced(**merged)
        return Start(sink, place).judge_letters(choice) if dry_run else Start(sink, place, choice).replay()

    @for_users
    def paced(
        self,
        *,
        commit_interval: str | timedelta | float | None = None,
        checkpoint_interval: str | timedelta | float | None = None,
        recovery: str | None = None,
    ) -> "Sink":
        """This sink with its intervals. Raises InvalidInput if they do not fit."""
        commits = _seconds(SinkOptions.COMMIT_INTERVAL, commit_interval)
        every = _seconds(SinkOptions.CHECKPOINT_INTERVAL, checkpoint_interval)
        if commits and every and round(commits * 1000) % round(every * 1000):
            raise InvalidInput(
                f"the commit interval {commits:g} s is not a multiple of the checkpoint interval {every:g} s",
                hint="Choose a commit interval that is a multiple of the checkpoint interval.",
            )
        replay = _word(SinkOptions.RECOVERY, recovery) == "replay"
        spec = self.spec
        if commits or every:
            window_ms = round(commits * 1000) if commits and not replay else None
            spec = replace(spec, window_ms=window_ms, pace=Pace.of(commits, every, replay=replay))
        if spec.commit_bytes is not None and spec.window_ms is None:
            raise InvalidInput(
                "a commit size needs a commit interval", hint="The interval limits how long smaller amounts wait."
            )
        if spec.stages and replay:
            raise InvalidInput(
                'recovery="replay" stages nothing', hint="Leave out the commit size and event times, or recovery."
            )
        return replace(self, spec=spec)


_GROUPS = ("options", "commits", "times", "start", "partition_by")
_OTHER_NAMES = {("commits", "size"): "commit_size", ("times", "column"): "time_column"}


@cache
def _setting_names() -> dict[str, tuple[str, str]]:
    """Names of settings: the method of `Sink` that sets each, and the name of its parameter."""
    found = {"partition_by": ("partition_by", "fields")}
    for group in ("options", "commits", "times", "start"):
        for name in signature(getattr(Sink, group)).parameters:
            if name != "self":
                found[_OTHER_NAMES.get((group, name), name)] = (group, name)
    return found


def _start_with_retries(sink: Sink, state: str | None) -> Query:
    backoff = Backoff(FIRST_WAIT)
    for _ in range(START_TRIES - 1):
        try:
            return sink.start_once(state)
        except TransientError as error:
            wait = backoff.next()
            _log.warning("sink %s could not start, retrying in %g s: %s", sink.spec.name, wait, error)
        time.sleep(wait)
    try:
        return sink.start_once(state)
    except TransientError as error:
        raise TransientError(
            f'sink "{sink.spec.name}" was not started: {error.primary}',
            detail=f"{error.detail} Tried {START_TRIES} times.".strip(),
            hint=f"{error.hint} The sink is not running: call start() again.".strip(),
        ) from error


def _positive(name: str, value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidInput(f"{name} must be at least 1", detail=f"Got {value!r}.")
    return value


N = TypeVar("N")


def _number(option: Setting[Decimal], value: object, before: N) -> float | N:
    """Check a number against the bounds of its option; None leaves what was there before."""
    if value is None:
        return before
    low, high = option.low, option.high
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not isfinite(value)
        or (isinstance(low, int) and value < low)
        or (isinstance(high, int) and value > high)
    ):
        raise InvalidInput(
            f"{option.keyword} is out of range", detail=f"Got {value!r}.", hint=f"It takes: {option.type_text}."
        )
    return float(value)


def _small_files(value: object) -> int:
    option = SinkOptions.SMALL_FILES
    if not isinstance(value, int) or isinstance(value, bool) or value < 2:
        raise InvalidInput(f"{option.keyword} must be at least 2", detail=f"Got {value!r}.")
    return value


Age = str | timedelta | float


def _retention(
    before: RetentionOptions, ages: tuple[Age | None, Age | None], min_snapshots: int | None, thin: str | None
) -> RetentionOptions:
    """Return other options of retention; those that are None stay. `ages` are the retention and the grace."""
    kept, grace = ages
    return RetentionOptions(
        before.max_age_ms if kept is None else _age_ms(SinkOptions.SNAPSHOT_RETENTION, kept),
        _positive(SinkOptions.MIN_SNAPSHOTS.keyword, min_snapshots) or before.min_snapshots,
        before.thin if thin is None else _parse_choice(SinkOptions.THIN_SNAPSHOTS, thin) is ThinSnapshots.HOURLY,
        before.grace_ms if grace is None else _age_ms(SinkOptions.REMOVAL_GRACE, grace),
    )


def _age_ms(option: Setting[timedelta], value: Age) -> int:
    seconds, low = _seconds(option, value), option.low
    if isinstance(low, timedelta) and seconds < low.total_seconds():
        raise InvalidInput(
            f"{option.keyword} is out of range", detail=f"Got {value!r}.", hint=f"It takes: {option.type_text}."
        )
    return round(seconds * 1000)


def _bytes(option: Setting[int], size: int | str | None) -> int | None:
    return _positive(option.keyword, parse_size(size) if isinstance(size, str) else size)


def _format_version(value: int | None) -> int | None:
    option = SinkOptions.FORMAT_VERSION
    if value is not None and value not in {option.low, option.high}:
        raise InvalidInput(f"invalid format_version {value!r}", detail=f"Expected {option.low} or {option.high}.")
    return value


def _word(option: Setting[str], value: str | None) -> str | None:
    if value is not None and value not in option.choices:
        raise _invalid_choice(option, value)
    return value


def _partition_field(text: str) -> PartitionBy:
    field = parse_partition_field(text)
    return PartitionBy(field.transform.value, tuple(part.name for part in field.column.parts), field.width)


C = TypeVar("C", bound=StrEnum)


def _parse_choice(option: Setting[C], value: str) -> C:
    try:
        return option.value_type(value)
    except ValueError:
        raise _invalid_choice(option, value) from None


def _invalid_choice(option: Setting[C] | Setting[str], value: str) -> InvalidInput:
    expected = ", ".join(map(repr, option.choices))
    return InvalidInput(f'invalid value {option.keyword}="{value}"', hint=f"Expected one of {expected}.")


def _dead_letters(table: TableName, policy: str) -> TableName | None:
    return None if _word(SinkOptions.ON_BAD_ROW, policy) == "halt" else table.dead_letters


def _default_late_rows(append: bool) -> LateRows:  # noqa: FBT001 - which of two defaults
    """Return the default: a log accepts late rows; by key, an old row must not overwrite a newer one."""
    return LateRows.ADVANCE if append else LateRows.ERROR


def _seconds(option: Setting[timedelta], value: object) -> float:
    """Parse a duration to seconds: zero (also for None), or at least a millisecond."""
    if value is None:
        return 0.0
    duration = parse_duration(value) if isinstance(value, str) else value
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    seconds = seconds if isinstance(seconds, int | float) and not isinstance(seconds, bool) else -1
    if seconds == 0 or _LEAST_SECONDS <= seconds < _MOST_SECONDS:
        return float(seconds)
    raise InvalidInput(
        f"{option.keyword} is not a duration", detail=f"Got {value!r}.", hint="Write '10s', '20m' or '1h'."
    )
