"""Sources of files read only what a view needs, where the metastore knows of the others.

That is so for views that take each row by itself from a source of inserts: a row that does not meet the view's
condition becomes no change. Files have to be Parquet: lines of text may hold bad rows, which must not be passed over.

The views between a source and a sink, as a run opens them.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from calve.analyze.file_pruning import known_of
from calve.analyze.folder_subject import FolderFormat, FolderSubject
from calve.envelope.envelopes import check_envelope, table_schema
from calve.metastore.config import MetastoreConfig
from calve.metastore.metastore import Metastore
from calve.metastore.tables import open_tables
from calve.model.scan import EVERYTHING, Condition
from calve.model.spec import Envelope
from calve.plan.sinks import SinkPlan
from calve.reader.conditions import filter_of, unread_frame
from calve.source.files.definition import Files, FileSource
from calve.spark.sqltext import ident
from calve.spark.version import quiet_analysis
from calve.storage.listing import FileListing, KnownFile, absolute
from calve.view.plan import Changes, Mode, Resolve, ViewInput, ViewPlan, ViewQuery
from calve.view.planning import plan_view
from calve.view.scope import spark_text

_log = logging.getLogger("calve")


@dataclass(frozen=True)
class Narrowing:
    """What of a folder a sink needs."""

    home: Path
    location: str
    condition: Condition
    schema: str
    """Of the rows that the condition speaks of."""
    spark: SparkSession

    def __call__(self, files: list[KnownFile]) -> list[KnownFile]:
        """Those of these files that may hold rows that the view takes. A metastore that fails leaves nothing out."""
        try:
            with Metastore(MetastoreConfig.load(self.home, os.environ)) as metastore:
                opened = FileListing.of(absolute(self.location))
                reading = FolderFormat("parquet")
                folder = FolderSubject(absolute(self.location), reading, opened, tuple(files), lambda: self.spark)
                known = known_of(open_tables(metastore), folder)
                chosen = {file.path for file in known.choose(self.condition, self.schema).files}
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the metastore, all files can be read
            _log.warning("the metastore could not be asked of %s: %s", self.location, error)
            return files
        if len(chosen) < len(files):
            _log.info("%d of %d files of %s are left out", len(files) - len(chosen), len(files), self.location)
        return [file for file in files if file.path in chosen]


def narrow(source: object, definition: object, plan: ViewPlan, home: Path, spark: SparkSession) -> None:
    """Let a source of files leave out what a view does not need, if that can be told."""
    if not isinstance(source, FileSource) or not isinstance(definition, Files) or not definition.typed:
        return
    condition = condition_on_source(spark, plan)
    if condition != EVERYTHING:
        source.narrow(Narrowing(home, definition.path, condition, str(plan.source.schema.json()), spark))


def condition_on_source(spark: SparkSession, plan: ViewPlan) -> Condition:
    """What every row of the source has to meet to be a row of the view, as far as it is understood."""
    if plan.mode is not Mode.INSERT or plan.joins:
        return EVERYTHING
    session = spark.newSession()
    source = unread_frame(session, plan.source.schema)
    source.createOrReplaceTempView(ident(plan.source.name))
    frame = source
    try:
        with quiet_analysis():
            for query in plan.queries:
                frame = session.sql(spark_text(query.text))
                frame.createOrReplaceTempView(ident(query.name))
            return filter_of(frame, plan.source.schema.names)
    except (PySparkException, Py4JError):  # it uses what only the user's session has
        return EVERYTHING


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
