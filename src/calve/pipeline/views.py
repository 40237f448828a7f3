"""The views between a source and a sink, and which files of a source they let it skip.

A file source skips files that cannot contain rows of the view, by the metastore's statistics. That is possible for
views that map single rows of a source of inserts: a row that does not meet the view's condition yields no change. The
files have to be Parquet: text files may contain bad rows, which must not be skipped.
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
    """Selects the files of a folder that a sink needs."""

    home: Path
    location: str
    condition: Condition
    schema: str
    """Schema of the rows that the condition applies to."""
    spark: SparkSession

    def __call__(self, files: list[KnownFile]) -> list[KnownFile]:
        """Return the files that may contain rows of the view; all of them if the metastore fails."""
        try:
            with Metastore(MetastoreConfig.load(self.home, os.environ)) as metastore:
                opened = FileListing.of(absolute(self.location))
                reading = FolderFormat("parquet")
                folder = FolderSubject(absolute(self.location), reading, opened, tuple(files), lambda: self.spark)
                known = known_of(open_tables(metastore), folder)
                chosen = {file.path for file in known.choose(self.condition, self.schema).files}
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the metastore, all files can be read
            _log.warning("could not query the metastore about %s: %s", self.location, error)
            return files
        if len(chosen) < len(files):
            _log.info("skipped %d of %d files of %s", len(files) - len(chosen), len(files), self.location)
        return [file for file in files if file.path in chosen]


def narrow(source: object, definition: object, plan: ViewPlan, home: Path, spark: SparkSession) -> None:
    """Let a file source skip files that a view does not need, if that can be decided."""
    if not isinstance(source, FileSource) or not isinstance(definition, Files) or not definition.typed:
        return
    condition = condition_on_source(spark, plan)
    if condition != EVERYTHING:
        source.narrow(Narrowing(home, definition.path, condition, str(plan.source.schema.json()), spark))


def condition_on_source(spark: SparkSession, plan: ViewPlan) -> Condition:
    """Return the condition that every source row of the view meets, as far as it can be derived."""
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
    except (PySparkException, Py4JError):  # it refers to objects of the user's session
        return EVERYTHING


@dataclass(frozen=True)
class ViewOver:
    """Views over a source, in order of dependency; the sink reads the last one."""

    queries: tuple[ViewQuery, ...]
    source_name: str
    source_key: tuple[str, ...]
    resolve: Resolve | None = None

    def record_key(self, envelope: Envelope) -> tuple[str, ...]:
        """Return the key by which records become changes; insert-only rows need none."""
        return () if Changes.of(envelope) is Changes.INSERTS else self.source_key

    def planned(
        self, spark: SparkSession, schema: StructType, envelope: Envelope, key: Sequence[str] | None
    ) -> ViewPlan:
        """Plan the view on frames of this schema, for a sink with this key (None: the view's own)."""
        key_of_records = self.record_key(envelope)
        check_envelope(schema, envelope, key_of_records)
        columns = table_schema(schema, envelope, key_of_records)
        source = ViewInput(self.source_name, columns, self.source_key, Changes.of(envelope))
        return plan_view(spark, self.queries, source, key, self.resolve)

    def columns(self, spark: SparkSession, schema: StructType, envelope: Envelope) -> StructType:
        """The columns of the view, whether or not it has a key. Raises Spark's errors."""
        session = spark.newSession()
        columns = table_schema(schema, envelope, self.record_key(envelope))
        unread_frame(session, columns).createOrReplaceTempView(ident(self.source_name))
        found = columns
        with quiet_analysis():
            for query in self.queries:
                frame = session.sql(spark_text(query.text))
                frame.createOrReplaceTempView(ident(query.name))
                found = frame.schema
        return found


def view_over(plan: SinkPlan, resolve: Resolve | None = None) -> ViewOver:
    """Return the views of a sink."""
    relation = plan.source.relation
    return ViewOver(tuple(ViewQuery(v.name, v.query) for v in plan.views), relation.name, relation.key, resolve)
