"""The views between a source and a sink, as a run opens them."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from calve.model.spec import Envelope
from calve.plan.sinks import SinkPlan
from calve.source.envelope import check_envelope, table_schema
from calve.view.analysis import plan_view
from calve.view.plan import Changes, Resolve, ViewInput, ViewPlan, ViewQuery


@dataclass(frozen=True)
class ViewOver:
    """Views over a source, in the order of their dependencies; the last one is what a sink reads."""

    queries: tuple[ViewQuery, ...]
    source_name: str
    source_key: tuple[str, ...]
    resolve: Resolve | None = None

    def record_key(self, envelope: Envelope) -> tuple[str, ...]:
        """The key by which records become changes; rows that are only inserted need none."""
        return () if Changes.of(envelope) is Changes.INSERTS else self.source_key

    def planned(
        self, spark: SparkSession, schema: StructType, envelope: Envelope, key: Sequence[str] | None
    ) -> ViewPlan:
        """The view on frames of this schema, for a sink with this key (None: the view's own)."""
        key_of_records = self.record_key(envelope)
        check_envelope(schema, envelope, key_of_records)
        columns = table_schema(schema, envelope, key_of_records)
        source = ViewInput(self.source_name, columns, self.source_key, Changes.of(envelope))
        return plan_view(spark, self.queries, source, key, self.resolve)


def view_over(plan: SinkPlan, resolve: Resolve | None = None) -> ViewOver:
    """The views of a sink."""
    relation = plan.source.relation
    return ViewOver(tuple(ViewQuery(v.name, v.query) for v in plan.views), relation.name, relation.key, resolve)
