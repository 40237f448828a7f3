"""`calve verify`: compares a table with its source.

Everything that the source has up to the table's progress is read at once, passed through envelope and view as in a run,
and reduced to the latest change of each key; the table is read as of the same progress. If the order of changes does
not grow over checkpoints, the table has the change that arrived last, and this comparison the greatest one: such keys
differ. Append tables are compared row by row, with the number of copies of each row; those that began with the rows of
an Iceberg table by what their rows add up to.

`verify_changes` compares a table with its own history: the rows of its oldest snapshot (none, if the history reaches
back to the empty table), and all changes since, must add up to its rows now. The source is not read.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from calve.changelog.frame import changes_frame
from calve.changelog.request import ChangeRequest
from calve.clock import SystemClock
from calve.definitions.workplace import Workplace
from calve.errors import BadRow, InvalidInput, UnreadableFile, decode
from calve.iceberg.loading import LoadedTable, load_table
from calve.iceberg.planning.change_range import ChangeRange
from calve.iceberg.planning.change_steps import TableShape, newest_place, oldest_place, shape_of
from calve.iceberg.planning.table_scan import Scan
from calve.iceberg.planning.travel import AsOf
from calve.iceberg.schema.creation import iceberg_schema
from calve.iceberg.schema.fitting import needs_of
from calve.iceberg.snapshot.history import stated_progress
from calve.model.change import BAD, DIFF, OP, PROGRESS, TIME, UPSERT, order_columns
from calve.model.changelog import CHANGE_COLUMNS, CHANGE_TYPE, ChangeType, TablePlace
from calve.model.checkpoint import CheckpointIdentity
from calve.pipeline.build import sink_of
from calve.pipeline.lakes import lake_of
from calve.pipeline.sink import Sink
from calve.pipeline.start import reading_of, source_store
from calve.plan.lookup import required
from calve.plan.sinks import plan_sink
from calve.reader.frame import frame_of
from calve.reader.read import read
from calve.records.frames import WHOLE_TIMES
from calve.source.files.definition import FileSource
from calve.source.port import SourceDefinition
from calve.source.table import TableSource
from calve.spark.executors import asked_first
from calve.spark.failures import told_as
from calve.spark.sqltext import quoted
from calve.sql.names import Identifier
from calve.sql.statements import ObjectKind
from calve.storage.state import StateStore, open_state
from calve.write.consolidate import last_rows, log_rows

SAMPLE = 5
_WANTED, _FOUND = "_calve_wanted", "_calve_found"


@dataclass(frozen=True)
class Differences:
    """The result of a comparison; the samples are keys with both rows as JSON texts."""

    rows: int
    """Rows that the table should have."""
    missing: int = 0
    unexpected: int = 0
    different: int = 0
    repeated: int = 0
    """Keys that the table has more than once."""
    samples: tuple[tuple[str, str, str], ...] = ()

    @property
    def none(self) -> bool:
        """True if the table equals its source."""
        return not (self.missing or self.unexpected or self.different or self.repeated)


def verify(place: Workplace, name: str) -> Differences:
    """Compare a sink's table with its source."""
    definitions = place.definitions()
    definition = required(definitions, Identifier.exact(name), ObjectKind.SINK)
    plan = plan_sink(definition, definitions)
    sink = sink_of(place.home, plan, definitions, place.vault)
    if not isinstance(sink.changes, SourceDefinition):
        raise InvalidInput(f'the source of sink "{name}" cannot be read again')
    state = sink.lake.state(plan.state, plan.spec.sink_id)
    comparison = _Comparison(asked_first(place.spark)(), sink, sink.changes, state)
    while True:
        try:
            with told_as("the table could not be compared with its source"):
                return comparison.run()
        except UnreadableFile as error:
            if plan.spec.dead_letters is None or not comparison.leave_out(error.file):
                raise


def verify_changes(place: Workplace, name: str) -> Differences:
    """Compare a sink's table with the sum of its changes, every step of them, since its oldest reachable snapshot."""
    definitions = place.definitions()
    plan = plan_sink(required(definitions, Identifier.exact(name), ObjectKind.SINK), definitions)
    lake = lake_of(place.home, plan.catalog, plan.store, definitions, place.vault)
    spark = asked_first(place.spark)()
    with told_as("the table could not be compared with its changes"):
        return sum_of_changes(spark, load_table(lake.open(), plan.spec.table), plan.spec.branch)


def sum_of_changes(spark: SparkSession, table: LoadedTable, branch: str = "main") -> Differences:
    """Compare the rows of a table at the head of a branch with those that its changes add up to."""
    oldest, newest = oldest_place(table, branch), newest_place(table, branch)
    if newest.snapshot_id is None:
        return Differences(0)
    found = ChangeRange.of(table, oldest.snapshot_id, newest.snapshot_id, net=False)
    shape = shape_of(table)
    request = ChangeRequest.of(found.read_as(shape.schema_id), key=None, columns=None, net=False, before=True)
    changes = changes_frame(spark, request, None).frame
    columns = [name for name in changes.columns if name not in CHANGE_COLUMNS]
    whole = _text_of(columns).alias("row")
    added = F.col(CHANGE_TYPE).isin(ChangeType.INSERT.value, ChangeType.UPDATE_POSTIMAGE.value)
    summed = changes.select(whole, F.when(added, 1).otherwise(-1).alias("n"))
    if oldest.snapshot_id is not None:
        summed = summed.unionByName(_rows_at(spark, table, oldest, shape).select(whole, F.lit(1).alias("n")))
    return _compare_counts(summed, _rows_at(spark, table, newest, shape).select(whole))


def _rows_at(spark: SparkSession, table: LoadedTable, place: TablePlace, shape: TableShape) -> DataFrame:
    scan = Scan.of(table, AsOf(snapshot_id=place.snapshot_id)).read_as(shape.schema_id)
    return frame_of(spark, scan, None, None).frame


class _Comparison:
    def __init__(self, spark: SparkSession, sink: Sink, source: SourceDefinition, state: StateStore) -> None:
        self._spark, self._sink = spark, sink
        self._source = source.open(source_store(state, sink.spec), SystemClock())

    def leave_out(self, file: str) -> bool:
        """Skip a file that is a dead letter; False if that is not possible."""
        return isinstance(self._source, FileSource) and self._source.leave_out(file)

    def run(self) -> Differences:
        spec = self._sink.spec
        table = load_table(self._sink.lake.open(), spec.table)
        progress = stated_progress(table.properties, spec.sink_id)
        if progress is None:
            raise InvalidInput(f'sink "{spec.name}" has not committed anything yet', hint="Run it first: calve run.")
        if progress.generation < spec.generation:
            raise InvalidInput(
                f'sink "{spec.name}" has not filled its table again yet',
                detail="The rows of its table are of the source that it read before.",
                hint="Run it first: calve run.",
            )
        if progress.adopted is not None or progress.adopting is not None:
            raise InvalidInput(
                f'sink "{spec.name}" adopted a table with rows',
                detail="Its source does not contain all rows of the table, so they cannot be compared.",
            )
        if progress.ahead:
            raise InvalidInput(
                f'checkpoints of sink "{spec.name}" are only partly in the table',
                detail="Some of their rows have times that are not complete yet.",
                hint="Run it with --until-caught-up first.",
            )
        with tempfile.TemporaryDirectory(prefix="calve-verify-") as scratch:
            reading = reading_of(
                self._sink, self._spark, self._source.schema(self._spark), open_state(str(Path(scratch)))
            )
            identity = CheckpointIdentity(self._source.name, 0, None, progress.offsets)
            frame = self._source.contents(self._spark, progress.offsets)
            given = iceberg_schema(reading.columns, reading.spec.key, spec.uuids)
            changes = reading.intake.changes(frame, identity, needs=needs_of(table.metadata, given))
            if spec.dead_letters is not None:
                changes = changes.where(F.col(BAD).isNull())
            key, columns = reading.spec.key, reading.columns.fieldNames()
            found = read(
                self._spark, self._sink.lake.table(str(spec.table)), columns=columns, snapshot_id=progress.snapshot_id
            )
            if PROGRESS in changes.columns:
                _totals(changes)
                changes = changes.where(~F.col(PROGRESS)).drop(PROGRESS)
                changes = log_rows(changes) if spec.append else last_rows(changes, key)
                changes = changes.withColumn(BAD, F.lit(None).cast("string"))
            if not spec.append:
                return _compare_by_key(changes, found, key, columns)
            if isinstance(self._source, TableSource) and self._source.starts_with_rows:
                return _compare_sums(changes, found)
            kept = [name for name in columns if name != TIME or spec.times]  # the times of checkpoints are unknown here
            return _compare_logs(changes.select(*map(quoted, kept), BAD), found.select(*map(quoted, kept)))


def _compare_logs(wanted: DataFrame, found: DataFrame) -> Differences:
    """Compare append tables, in which the same row may occur several times."""
    columns = found.columns
    once = F.lit(1)
    counted = wanted.select(_text_of(columns).alias("row"), once.alias("n"), F.col(BAD))
    return _compare_counts(counted, found.select(_text_of(columns).alias("row")))


def _compare_sums(wanted: DataFrame, found: DataFrame) -> Differences:
    """Compare what logs add up to: a source that gives its rows of now does not tell how they came about."""
    row = _text_of([name for name in found.columns if name not in {DIFF, TIME}]).alias("row")
    copies = F.col(DIFF).alias("n")
    return _compare_counts(wanted.select(row, copies, F.col(BAD)), found.select(row, copies))


def _compare_counts(wanted: DataFrame, found: DataFrame) -> Differences:
    """Compare the number of copies of each row.

    `wanted` has rows, numbers of copies, and maybe bad rows; `found` has rows, and maybe numbers of copies.
    """
    bad = F.col(BAD) if BAD in wanted.columns else F.lit(None).cast("string")
    copies = F.col("n") if "n" in found.columns else F.lit(1)
    theirs = found.select("row", F.lit(0).alias(_WANTED), copies.alias(_FOUND), F.lit(None).cast("string").alias(BAD))
    both = wanted.select("row", F.col("n").alias(_WANTED), F.lit(0).alias(_FOUND), bad.alias(BAD)).unionAll(theirs)
    rows = both.groupBy("row").agg(F.sum(_WANTED).alias(_WANTED), F.sum(_FOUND).alias(_FOUND), F.max(BAD).alias(BAD))
    less, more = (F.sum(F.greatest(F.lit(0), F.col(a) - F.col(b))) for a, b in ((_WANTED, _FOUND), (_FOUND, _WANTED)))
    wanted_rows, missing, unexpected = _totals(rows, F.sum(_WANTED), less, more)
    result = Differences(wanted_rows, missing=missing, unexpected=unexpected)
    wrong = rows.where(F.col(_WANTED) != F.col(_FOUND))
    if result.none:
        return result
    samples = wrong.select("row", _WANTED, _FOUND).take(SAMPLE)
    return replace(result, samples=tuple((text, str(ours), str(theirs)) for text, ours, theirs in samples))


def _compare_by_key(changes: DataFrame, found: DataFrame, key: tuple[str, ...], columns: list[str]) -> Differences:
    """Compare the latest change of each key, unless it deletes, with the row of the key, in one pass over both."""
    names = [f"_calve_key_{i}" for i in range(len(key))]
    keys = [quoted(name).alias(alias) for name, alias in zip(key, names, strict=True)]
    whole, none = _text_of(columns), F.lit(None)
    orders = [F.col(name).alias(f"_{i}") for i, name in enumerate(order_columns(changes.columns))]
    last = F.struct(*orders, F.when(F.col(OP) == UPSERT, whole).alias(_WANTED))
    ours = changes.select(
        *keys, F.when(F.col(BAD).isNull(), last).alias("last"), none.cast("string").alias(_FOUND), BAD
    )
    theirs = found.select(*keys, none.cast(ours.schema["last"].dataType), whole, none.cast("string"))
    rows = (
        ours.unionAll(theirs)
        .groupBy(*names)
        .agg(
            F.max("last")[_WANTED].alias(_WANTED),
            F.min(_FOUND).alias(_FOUND),
            F.count(_FOUND).alias("copies"),
            F.max(BAD).alias(BAD),
        )
    )
    is_wanted, is_found = F.col(_WANTED).isNotNull(), F.col(_FOUND).isNotNull()
    differs = ~F.col(_WANTED).eqNullSafe(F.col(_FOUND))
    wanted, missing, unexpected, different, repeated = _totals(
        rows,
        F.count_if(is_wanted),
        F.count_if(is_wanted & ~is_found),
        F.count_if(is_found & ~is_wanted),
        F.count_if(is_wanted & is_found & differs),
        F.count_if(F.col("copies") > 1),
    )
    result = Differences(wanted, missing, unexpected, different, repeated)
    if result.none:
        return result
    samples = rows.where(differs).select(F.to_json(F.struct(*names)), _WANTED, _FOUND).take(SAMPLE)
    return replace(result, samples=tuple((_values(row[0]), row[1] or "-", row[2] or "-") for row in samples))


def _totals(rows: DataFrame, *totals: Column) -> list[int]:
    """Compute totals of rows in one job, which also refuses the first bad one. Raises BadRow."""
    bad, *numbers = rows.agg(F.min(BAD), *totals).collect()[0]
    if bad is not None:
        raise decode(bad) or BadRow("the source has a record that cannot be converted to a change", detail=bad)
    return [number or 0 for number in numbers]


def _text_of(columns: Sequence[str]) -> Column:
    """The JSON text of a row; null fields are part of it."""
    return F.to_json(F.struct(*map(quoted, columns)), {"ignoreNullFields": "false", **WHOLE_TIMES})


def _values(key: str) -> str:
    return ", ".join(str(value) for value in json.loads(key).values())
