"""Adopting a table that contains rows: whether a sink can, where it starts reading, and whether the rows are valid.

The sink builds on these rows, so each has to be unique by its key, and no key may be null. Spark tasks check that in
the snapshot of the sink's claim, with all deletes applied.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from calve.errors import InvalidInput, KeyViolation
from calve.iceberg.sink_table import IcebergTable
from calve.keylookup.search import SparkJobs
from calve.model.checkpoint import Offsets
from calve.model.spec import Adopt, SinkSpec
from calve.model.table import TableState
from calve.reader.frame import frame_of
from calve.source.kafka.definition import Kafka
from calve.source.port import Source
from calve.spark.failures import failure_of
from calve.spark.sqltext import quoted
from calve.view.plan import Mode, ViewPlan

if TYPE_CHECKING:
    from calve.pipeline.sink import Sink

KEYS_IN_ERROR = 10
"""Number of keys that an error lists."""
_LONGEST = 60
_ROWS = "_calve_rows"


def check_adoption(sink: "Sink") -> None:
    """Check by its definition alone whether a sink can adopt rows. Raises InvalidInput."""
    spec, changes = sink.spec, sink.changes
    if not spec.adopts:
        return
    if isinstance(changes, DataFrame) and changes.isStreaming:
        raise InvalidInput(
            f'sink "{spec.name}" cannot adopt a table from a streaming DataFrame',
            detail="Its start offsets are not known before it is started.",
            hint="Read the topic with calve.kafka(...), or the folder with calve.files(...).",
        )
    if spec.append and not (isinstance(changes, Kafka) and changes.beginning.offsets):
        raise InvalidInput(
            f'sink "{spec.name}" keeps every change, so it can adopt a table only at exact offsets',
            detail="Changes that the table already contains would be duplicated.",
            hint="""Read from Kafka with START OFFSETS = '{"0": 17, ...}': the first offsets that the table lacks.""",
        )


def check_adopted_view(spec: SinkSpec, view: ViewPlan) -> None:
    """Check whether a sink on this view can adopt rows. Raises InvalidInput."""
    if spec.adopts and view.mode is Mode.GROUP:
        raise InvalidInput(
            f'a sink on view "{view.name}" cannot adopt a table, since the view aggregates',
            detail="Its totals are computed from all rows of the source.",
            hint="Use WITH (SNAPSHOT = true): the table becomes equal to the view.",
        )


class TableRows:
    """Implements the port `ExistingRows`."""

    def __init__(self, spec: SinkSpec, table: IcebergTable, source: Source | None, jobs: SparkJobs) -> None:
        self._spec, self._table, self._source, self._jobs = spec, table, source, jobs

    def begin(self) -> Offsets:
        return self._source.begin() if self._source else None

    def check(self, state: TableState, snapshot_id: int) -> None:
        """Check the keys; with ADOPT = 'trust', or without a key, only whether the files are readable."""
        scan = self._table.scan_keys(state, snapshot_id)
        plan = scan.plan()
        if not plan.files or not self._spec.key or self._spec.adopt is Adopt.TRUST:
            return
        try:
            frame = frame_of(self._jobs.session(), scan, None, None).frame
            invalid = _invalid_keys(frame)
            count = invalid.count()
            found = invalid.orderBy(*map(quoted, frame.columns)).take(KEYS_IN_ERROR) if count else []
        except (PySparkException, Py4JError) as error:
            raise failure_of(error, "the rows of the table could not be read") from error
        if found:
            raise self._violation(snapshot_id, frame.columns, found, count)

    def _violation(self, snapshot_id: int, key: Sequence[str], found: Sequence[Row], count: int) -> KeyViolation:
        named = "; ".join(_describe(key, row) for row in found)
        more = f"; and {count - len(found)} more" if count > len(found) else ""
        return KeyViolation(
            f'the rows of table "{self._spec.table}" cannot be adopted: keys are null or duplicated',
            detail=f"Key ({', '.join(key)}), snapshot {snapshot_id}: {named}{more}.",
            hint="Correct these rows with the tool that wrote them, then restart the sink: it checks again.",
        )


def _invalid_keys(frame: DataFrame) -> DataFrame:
    """Return keys that are null or duplicated, with their number of rows."""
    keys = [quoted(name) for name in frame.columns]
    invalid = F.col(_ROWS) > 1
    for key in keys:
        invalid = invalid | key.isNull()
    return frame.groupBy(*keys).agg(F.count(F.lit(1)).alias(_ROWS)).where(invalid)


def _describe(key: Sequence[str], row: Row) -> str:
    values = ", ".join(f"{name} = {_value(row[name])}" for name in key)
    return f"{values} ({row[_ROWS]} row{'s' if row[_ROWS] > 1 else ''})"


def _value(value: object) -> str:
    if value is None:
        return "NULL"
    text = value.hex() if isinstance(value, bytes | bytearray) else str(value)
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return f"'{cut}'" if isinstance(value, str) else cut
