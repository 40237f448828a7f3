"""Where the names of a view are looked up: a copy of the user's session, in which the input and the views have theirs.

The copy has the user's tables, temporary views and functions; what is registered here does not show outside. Every call
of `analysed` looks anew, so that a folder of files is listed once per call: that is how static tables are read once
per checkpoint.
"""

from collections.abc import Sequence

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from calve.errors import InvalidInput
from calve.sparktext import ident
from calve.sparkversion import condition_of, quiet_analysis
from calve.view.catalyst import Catalyst, Node, kind
from calve.view.names import Parts, check_exact, quoted_names, relations_in, spark_text
from calve.view.plan import Resolve, ViewInput, ViewQuery

_SETTINGS = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.parser.escapedStringLiterals": "false",  # calve's lexer and Spark agree on where a string ends
}


class Scope:
    """Analyses the queries of one view."""

    def __init__(
        self, spark: SparkSession, source: ViewInput, queries: Sequence[ViewQuery], resolve: Resolve | None
    ) -> None:
        _check_names(source, queries)
        self._source, self._queries, self._resolve = source, tuple(queries), resolve
        session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())  # noqa: SLF001 - no public way
        for name, value in _SETTINGS.items():
            session.conf.set(name, value)
        self.catalyst = Catalyst(session)
        # Rows of deletes and of errors have nulls everywhere: to Spark, every column is nullable.
        columns = StructType([StructField(f.name, f.dataType) for f in source.schema.fields])
        session.createDataFrame([], columns).createOrReplaceTempView(ident(source.name))

    def is_input(self, node: Node) -> bool:
        """Whether an operator of an analysed plan is the input."""
        if kind(node) != "View" or not node.isTempView():
            return False
        return str(node.desc().identifier().table()).lower() == self._source.name.lower()

    def analysed(self) -> Node:
        """The analysed plan of the view."""
        *inner, last = self._queries
        for query in inner:
            self.catalyst.frame(self._analysed(query)).createOrReplaceTempView(ident(query.name))
        return self._analysed(last)

    def _analysed(self, query: ViewQuery) -> Node:
        try:
            with quiet_analysis():
                parsed = self.catalyst.parsed(spark_text(query.text))
                tables = self._resolved(parsed)
                plan = self.catalyst.analysed(
                    self.catalyst.parsed(spark_text(query.text, tables)) if tables else parsed
                )
        except (AnalysisException, ParseException) as error:
            raise _not_understood(query, error) from error
        check_exact(quoted_names(query.text), plan, [self._source.name, *(q.name for q in self._queries)])
        return plan

    def _resolved(self, parsed: Node) -> list[Parts]:
        """Registers what the hook knows; the names of several parts among it."""
        if self._resolve is None:
            return []
        own = {self._source.name.lower(), *(q.name.lower() for q in self._queries)}
        found = []
        for parts in relations_in(parsed):
            frame = None if len(parts) == 1 and parts[0].lower() in own else self._resolve(parts)
            if frame is not None:
                plan = self.catalyst.plan_of(frame)
                self.catalyst.frame(plan).createOrReplaceTempView(ident(".".join(parts)))
                found.append(parts)
        return [parts for parts in found if len(parts) > 1]


def tables_read(spark: SparkSession, query: ViewQuery) -> list[Parts]:
    """The tables, sources and views that a query names, by the parts of their names, each one once."""
    try:
        with quiet_analysis():
            return relations_in(Catalyst(spark).parsed(spark_text(query.text)))
    except ParseException as error:
        raise _not_understood(query, error) from error


def _check_names(source: ViewInput, queries: Sequence[ViewQuery]) -> None:
    names = [source.name, *(q.name for q in queries)]
    for name in names:
        if sum(other.lower() == name.lower() for other in names) > 1:
            raise InvalidInput(f'two inputs of a view are called "{name}"', hint="Rename one of them.")


def _not_understood(query: ViewQuery, error: AnalysisException | ParseException) -> InvalidInput:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    texts = condition_of(error).startswith("UNRESOLVED_COLUMN") and '"' in query.text
    return InvalidInput(
        f'view "{query.name}" is not understood',
        detail=lines[0] if lines else type(error).__name__,
        hint="Texts are in single quotes; double quotes are for names." if texts else "",
    )
