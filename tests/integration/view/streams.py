"""Change streams for views, and a table in a dictionary that they are applied to."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DecimalType, IntegerType, LongType, StringType, StructField, StructType

from calve.errors import decode
from calve.model.change import BAD, DELETE, OP, UPSERT, order_columns
from calve.model.checkpoint import UNKNOWN, CheckpointIdentity, SizeHint, canonical_offsets
from calve.storage.state import StateStore
from calve.view.plan import Changes, Resolve, ViewInput, ViewPlan, ViewQuery
from calve.view.planning import plan_view
from calve.view.run import View
from calve.view.totals import TotalsLimits

SCHEMA = StructType(
    [
        StructField("id", LongType(), nullable=False),
        StructField("customer", IntegerType()),
        StructField("amount", DecimalType(12, 2)),
        StructField("status", StringType()),
    ]
)
ORDERS = ViewInput("orders", SCHEMA, ("id",), Changes.UPSERTS)
IMAGES = ViewInput("orders", SCHEMA, ("id",), Changes.IMAGES)
INSERTS = ViewInput("orders", SCHEMA, (), Changes.INSERTS)

Row = tuple[Any, ...]
Change = tuple[int, Row | None, Row | None]
"""Its place in the order, the row before and the row after."""

_CHANGES = "id BIGINT, customer INT, amount DECIMAL(12,2), status STRING, _calve_op TINYINT, _calve_order_0 BIGINT, "
_BEFORE = "_calve_before STRUCT<id: BIGINT, customer: INT, amount: DECIMAL(12,2), status: STRING>"


def frame_of(spark: SparkSession, changes: Iterable[Change], *, before: bool = False) -> DataFrame:
    """A frame of changes, as envelopes make it."""
    rows = []
    for order, old, new in changes:
        deleted = (old[0], None, None, None) if old else ()
        images = [old] if before else []
        rows.append((*(new or deleted), UPSERT if new else DELETE, order, None, *images))
    return spark.createDataFrame(rows, _CHANGES + "_calve_bad STRING" + (f", {_BEFORE}" if before else ""))


def queries_of(*texts: str) -> list[ViewQuery]:
    """Views v0, v1, ... by their texts."""
    return [ViewQuery(f"v{i}", text) for i, text in enumerate(texts)]


@dataclass
class Target:
    """A table that a view's changes are applied to, checkpoint by checkpoint."""

    spark: SparkSession
    plan: ViewPlan
    state: StateStore | None = None
    resolve: Resolve | None = None
    rows: dict[Row, Row] = field(default_factory=dict)
    position: int = 0
    limits: TotalsLimits | None = None

    def __post_init__(self) -> None:
        self.view = View(self.spark, self.plan, state=self.state, resolve=self.resolve, limits=self.limits)

    def take(self, changes: Sequence[Change], *, commit: bool = True, size: SizeHint = UNKNOWN) -> None:
        """One checkpoint."""
        frame = frame_of(self.spark, changes, before=self.plan.needs_before)
        self.apply(self.view.changes(frame, self.identity, size=size))
        if commit:
            self.position += 1
            self.view.committed(canonical_offsets(self.position))

    @property
    def identity(self) -> CheckpointIdentity:
        start = canonical_offsets(self.position) if self.position else None
        return CheckpointIdentity("q", self.position, start, canonical_offsets(self.position + 1))

    def apply(self, changes: DataFrame) -> None:
        """As a writer does: the last change of each key counts; a bad row is raised."""
        order = order_columns(changes.columns)
        assert changes.columns == [*self.plan.schema.names, OP, *order, BAD]
        found = changes.collect()
        for row in found:
            if row[BAD] is not None:
                raise cast("Exception", decode(row[BAD]) or AssertionError(row[BAD]))
        for row in sorted(found, key=lambda r: tuple(r[name] for name in order)):
            key = tuple(row[name] for name in self.plan.key)
            self.rows.pop(key, None)
            if row[OP] == UPSERT:
                self.rows[key] = tuple(row[name] for name in self.plan.schema.names)

    def contents(self) -> list[Row]:
        return sorted(self.rows.values(), key=repr)


def target(
    spark: SparkSession,
    *texts: str,
    source: ViewInput = ORDERS,
    key: Sequence[str] | None = None,
    state: StateStore | None = None,
    resolve: Resolve | None = None,
    limits: TotalsLimits | None = None,
) -> Target:
    """A view over `orders`, and its table."""
    plan = plan_view(spark, queries_of(*texts), source, key, resolve)
    return Target(spark, plan, state, resolve, limits=limits)


def selected(spark: SparkSession, rows: Iterable[Row], *texts: str) -> list[Row]:
    """What Spark says that the view holds, given all rows of its input."""
    spark.createDataFrame(list(rows), SCHEMA).createOrReplaceTempView("orders")
    try:
        for i, text in enumerate(texts):
            spark.sql(text).createOrReplaceTempView(f"v{i}")
        return sorted((tuple(r) for r in spark.table(f"v{len(texts) - 1}").collect()), key=repr)
    finally:
        for name in ("orders", *(f"v{i}" for i in range(len(texts)))):
            spark.catalog.dropTempView(name)
