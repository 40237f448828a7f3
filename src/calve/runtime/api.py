"""The Python interface: `calve.connect`, `calve.sink(...).start()`.

lake = calve.connect()
query = calve.sink(changes, name="orders", into=lake.table("shop.orders"), key=["id"]).start()
"""

import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import TypeVar

from pyspark.sql import DataFrame

from calve.clock import sink_id_of
from calve.errors import InvalidInput, TransientError
from calve.model.pace import Pace
from calve.model.partitioning import PartitionBy
from calve.model.spec import (
    HEARTBEAT_MS,
    Adopt,
    Deletes,
    Diff,
    Envelope,
    KeyIndexUse,
    LateRows,
    Maintenance,
    NoEnvelope,
    OnForeignCommit,
    OnKeyViolation,
    OnSchemaChange,
    RowTimes,
    SinkSpec,
    TableName,
    WriteOptions,
)
from calve.plan.catalogue import SINK
from calve.runtime.executors import refuse_connect
from calve.runtime.lake import Lake, TableRef
from calve.runtime.query import Query
from calve.runtime.start import Start
from calve.runtime.views import ViewOver
from calve.source.frames import extensions_of
from calve.source.port import SourceDefinition
from calve.sql.parser import parse_partition_field
from calve.sql.values import parse_duration, parse_size

START_TRIES = 4
"""How often a start is tried where a catalog or a store fails."""
FIRST_WAIT = 0.5
"""Seconds between the first two of them, doubled each time."""

_LEAST_SECONDS, _MOST_SECONDS = 0.001, 1e9
"""Of durations: times are milliseconds."""
_LEAST_HEARTBEAT_MS = 1000

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


Changes = DataFrame | SourceDefinition


def sink(
    changes: Changes,
    *,
    name: str,
    into: TableRef,
    key: Sequence[str] = (),
    envelope: Envelope | None = None,
    mode: str = "upsert",
) -> "Sink":
    """A sink that keeps the table `into` equal to `changes`, by `key`. Nothing happens before `start`.

    `changes` is a streaming or bounded DataFrame, or one of calve's own sources (`calve.files`, `calve.orders`),
    which bring their envelope with them. With `mode="append"` the table is a log of all changes, with columns
    `_calve_diff` and `_calve_time`; it has no key then, and `key` is only for envelopes that need one.
    """
    if not isinstance(into, TableRef):
        raise InvalidInput(
            "into is a table of a lake",
            detail=f"Got {into!r}.",
            hint=f'Write into=calve.connect().table("{into}").' if isinstance(into, str) else "Use lake.table(...).",
        )
    refuse_connect(changes)  # before the next check: its frames are of another class in Spark 3.5
    if not isinstance(changes, DataFrame) and not hasattr(changes, "envelope"):
        raise InvalidInput(
            "changes are a DataFrame or a source",
            detail=f"Got {changes!r}.",
            hint="Use a DataFrame of Spark, calve.files(...), calve.kafka(...) or calve.orders(...).",
        )
    if mode not in ("upsert", "append"):
        raise InvalidInput(f'unknown mode "{mode}"', hint="Use 'upsert' or 'append'.")
    if mode == "upsert" and not key:
        raise InvalidInput(f'sink "{name}" has no key', hint="Give key=[...], or mode='append' to keep every change.")
    named: object = name
    if not (isinstance(named, str) and _NAME.fullmatch(named)):
        raise InvalidInput(
            f'"{name}" is not a name for a sink', hint="Use letters, digits, and the characters _ . - after the first."
        )
    _check_key(key)
    if envelope is not None and not isinstance(envelope, Envelope):
        raise InvalidInput(
            "unknown envelope",
            detail=f"Got {envelope!r}.",
            hint="Use calve.NoEnvelope(), calve.Upsert(...), calve.Debezium(...) or calve.Diff(...).",
        )
    natural = None if isinstance(changes, DataFrame) else changes.envelope
    chosen = envelope or natural or NoEnvelope()
    append = mode == "append"
    times = RowTimes(_late(append), by_progress=chosen.progress is not None) if isinstance(chosen, Diff) else None
    write = WriteOptions(extensions=extensions_of(changes.schema) if isinstance(changes, DataFrame) else ())
    identity = (name, sink_id_of(name, str(into)), into.name, () if append else tuple(key))
    spec = SinkSpec(*identity, chosen, append=append, times=times, write=write)
    return Sink(changes, into.lake, spec, record_key=tuple(key))


def _check_key(key: object) -> None:
    if isinstance(key, str):
        raise InvalidInput("key is a list of columns", detail=f'Got "{key}".', hint=f'Write key=["{key}"].')
    if not isinstance(key, Sequence) or not all(isinstance(name, str) and name for name in key):
        raise InvalidInput("key is a list of columns", detail=f"Got {key!r}.", hint='Write key=["id"].')
    twice = next((name for name in key if list(key).count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(f'column "{twice}" is in the key twice')


@dataclass(frozen=True)
class Sink:
    """A sink that is defined and not started."""

    changes: Changes
    lake: Lake
    spec: SinkSpec
    view: ViewOver | None = None
    """What the sink keeps instead of the changes themselves; then `spec.key` may be empty: that of the view."""
    record_key: tuple[str, ...] = ()
    """Of the records, where the table has none."""

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
        on_bad_row: str | None = None,
        key_index: str | None = None,
        maintenance: str | None = None,
        max_pending_batches: int | None = None,
        max_staged_size: int | str | None = None,
        adopt: bool | str | None = None,
    ) -> "Sink":
        """The same sink with other options. Dead letters go to the table `<table>_dead_letters`.

        `adopt=True` takes over a table that has rows: they count as the collection so far, once they were read to see
        that no key is null or there twice; `adopt="trust"` leaves that out.
        """
        if branch == "":
            raise InvalidInput("branch is empty", hint="Leave it out for main.")
        before = self.spec.write
        write = replace(
            before,
            target_file_size=_bytes("target_file_size", target_file_size) or before.target_file_size,
            row_group_size=_bytes("row_group_size", row_group_size) or before.row_group_size,
            compression=_codec(compression) or before.compression,
            bloom_filter=before.bloom_filter if bloom_filter is None else bloom_filter,
        )
        spec = replace(self.spec, write=write, branch=branch or self.spec.branch)
        spec = replace(
            spec,
            version=_positive("version", version) or spec.version,
            max_pending_batches=_positive("max_pending_batches", max_pending_batches) or spec.max_pending_batches,
            max_staged_size=_bytes("max_staged_size", max_staged_size) or spec.max_staged_size,
        )
        if on_foreign_commit is not None:
            policy = _chosen(OnForeignCommit, on_foreign_commit, "on_foreign_commit")
            spec = replace(spec, on_foreign_commit=policy)
        if deletes is not None:
            spec = replace(spec, deletes=_encoding(deletes))
        if on_bad_row is not None:
            spec = replace(spec, dead_letters=_dead_letters(spec.table, on_bad_row))
        if key_index is not None:
            spec = replace(spec, key_index=_chosen(KeyIndexUse, key_index, "key_index"))
        if adopt is not None:
            spec = replace(spec, adopt=_chosen(Adopt, str(adopt).lower(), "adopt"))
        if maintenance is not None:
            spec = replace(spec, maintenance=_chosen(Maintenance, maintenance, "maintenance"))
        if on_key_violation is not None:
            spec = replace(spec, on_key_violation=_chosen(OnKeyViolation, on_key_violation, "on_key_violation"))
        if on_schema_change is not None:
            spec = replace(spec, on_schema_change=_chosen(OnSchemaChange, on_schema_change, "on_schema_change"))
        return replace(self, spec=spec)

    def commits(
        self,
        *,
        size: int | str | None = None,
        coalesce: bool = True,
        heartbeat: str | timedelta | float | None = None,
    ) -> "Sink":
        """The same sink with other rules of when to commit.

        `size`: as soon as so much is staged. `coalesce=False`: one snapshot for every window, or every time, even when
        several are complete. `heartbeat`: an empty snapshot so long after the last one (by default an hour).
        """
        beat = HEARTBEAT_MS if heartbeat is None else round(_seconds("heartbeat", heartbeat) * 1000)
        if beat < _LEAST_HEARTBEAT_MS:
            raise InvalidInput("heartbeat must be at least a second", detail=f"Got {heartbeat!r}.")
        spec = replace(self.spec, commit_bytes=_bytes("size", size), coalesce=coalesce, heartbeat_ms=beat)
        return replace(self, spec=spec)

    def times(
        self,
        column: str | None = None,
        *,
        watermark_delay: str | timedelta | float | None = None,
        idle_timeout: str | timedelta | float | None = None,
        late_rows: str | None = None,
    ) -> "Sink":
        """The same sink, whose rows have times of their own: those in `column`, or those of the envelope DIFF."""
        if isinstance(self.spec.envelope, Diff) == bool(column):
            raise InvalidInput("a time is either a column's or that of the envelope DIFF")
        times = RowTimes(
            late=_chosen(LateRows, late_rows, "late_rows") if late_rows else _late(self.spec.append),
            field=column,
            by_progress=isinstance(self.spec.envelope, Diff) and self.spec.envelope.progress is not None,
            delay_ms=round(_seconds("watermark_delay", watermark_delay) * 1000),
            idle_ms=round(_seconds("idle_timeout", idle_timeout) * 1000) if idle_timeout is not None else None,
        )
        return replace(self, spec=replace(self.spec, times=times))

    def partition_by(self, *fields: str) -> "Sink":
        """The same sink into a table with these partitions, written as in SQL: `"bucket(16, id)"`, `"day(at)"`."""
        return replace(self, spec=replace(self.spec, partition_by=tuple(map(_partition_field, fields))))

    def start_once(self, state: str | None = None) -> Query:
        """As `start`, for those who try again themselves: the first failure is an error."""
        return Start(self, state).query()

    def start(
        self,
        *,
        state: str | None = None,
        commit_interval: str | timedelta | float | None = None,
        checkpoint_interval: str | timedelta | float | None = None,
        recovery: str | None = None,
    ) -> Query:
        """Create the table when it is missing, and run until stopped. Returns once the sink knows where to go on.

        A catalog or a store that fails is tried a few times, and then an error: a sink that runs keeps on trying.

        `state` is a folder or URI for calve's records (default: below the home folder). With a `commit_interval`
        snapshots are made at its multiples; all that comes before is read at once, and staged checkpoint by checkpoint.
        `checkpoint_interval`, of which it is a multiple, is the least time between two checkpoints of a source that is
        read to its end; by default they follow the data. `recovery="replay"` stages nothing: one checkpoint, and one
        snapshot, for every commit interval.
        """
        commits = _seconds("commit_interval", commit_interval)
        every = _seconds("checkpoint_interval", checkpoint_interval)
        if recovery not in {None, "stage", "replay"}:
            raise InvalidInput(f'unknown policy recovery="{recovery}"', hint="Use 'stage' or 'replay'.")
        if commits and every and round(commits * 1000) % round(every * 1000):
            raise InvalidInput(
                f"the commit interval {commits:g} s is no multiple of the checkpoint interval {every:g} s",
                hint="Choose a commit interval that is a whole number of checkpoint intervals.",
            )
        replay = recovery == "replay"
        spec = self.spec
        if commits or every:
            window_ms = round(commits * 1000) if commits and not replay else None
            spec = replace(spec, window_ms=window_ms, pace=Pace.of(commits, every, replay=replay))
        if spec.commit_bytes is not None and spec.window_ms is None:
            raise InvalidInput("a commit size needs a commit interval", hint="It says how long less may wait.")
        if spec.stages and replay:
            raise InvalidInput(
                'recovery="replay" stages nothing', hint="Leave out the commit size and times of rows, or recovery."
            )
        return _started(replace(self, spec=spec), state)


def _started(sink: Sink, state: str | None) -> Query:
    wait = FIRST_WAIT
    for _ in range(START_TRIES - 1):
        try:
            return sink.start_once(state)
        except TransientError as error:
            _log.warning("sink %s could not start, next try in %g s: %s", sink.spec.name, wait, error)
        time.sleep(wait)
        wait *= 2
    try:
        return sink.start_once(state)
    except TransientError as error:
        raise TransientError(
            f'sink "{sink.spec.name}" was not started: {error.primary}',
            detail=f"{error.detail} Tried {START_TRIES} times.".strip(),
            hint=f"{error.hint} This one does not run: call start() again.".strip(),
        ) from error


def _positive(name: str, value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidInput(f"{name} must be at least 1", detail=f"Got {value!r}.")
    return value


def _bytes(name: str, size: int | str | None) -> int | None:
    return _positive(name, parse_size(size) if isinstance(size, str) else size)


def _codec(name: str | None) -> str | None:
    known = next(setting.choices for setting in SINK.settings if setting.name == "COMPRESSION")
    if name is not None and name not in known:
        raise InvalidInput(f'unknown codec compression="{name}"', hint=f"Use one of {', '.join(map(repr, known))}.")
    return name


def _partition_field(text: str) -> PartitionBy:
    field = parse_partition_field(text)
    return PartitionBy(field.transform.value, tuple(part.name for part in field.column.parts), field.width)


C = TypeVar("C", bound=StrEnum)


def _chosen(choices: type[C], text: str, name: str) -> C:
    try:
        return choices(text)
    except ValueError:
        allowed = ", ".join(repr(choice.value) for choice in choices)
        raise InvalidInput(f'unknown policy {name}="{text}"', hint=f"Use one of {allowed}.") from None


def _dead_letters(table: TableName, policy: str) -> TableName | None:
    if policy not in {"halt", "dead letter"}:
        raise InvalidInput(f'unknown policy on_bad_row="{policy}"', hint="Use 'halt' or 'dead letter'.")
    return None if policy == "halt" else TableName(table.namespace, f"{table.name}_dead_letters")


def _late(append: bool) -> LateRows:  # noqa: FBT001 - which of two defaults
    """A log takes late rows; by key, an old row must not overwrite a newer one."""
    return LateRows.ADVANCE if append else LateRows.ERROR


def _encoding(text: str) -> Deletes:
    try:
        return Deletes(text)
    except ValueError:
        problem = 'deletes="vector" is not supported yet' if text == "vector" else f'unknown encoding deletes="{text}"'
        raise InvalidInput(problem, hint=f"Use one of {', '.join(repr(d.value) for d in Deletes)}.") from None


def _seconds(name: str, value: object) -> float:
    """A duration in seconds: zero (also for None), or at least a millisecond."""
    if value is None:
        return 0.0
    duration = parse_duration(value) if isinstance(value, str) else value
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    seconds = seconds if isinstance(seconds, int | float) and not isinstance(seconds, bool) else -1
    if seconds == 0 or _LEAST_SECONDS <= seconds < _MOST_SECONDS:
        return float(seconds)
    raise InvalidInput(f"{name} is not a duration", detail=f"Got {value!r}.", hint="Write '10s', '20m' or '1h'.")
