"""SELECT in Spark's SQL: the tables that a query names become views of a new session, created for one query."""

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from calve.definitions.workplace import Workplace
from calve.errors import InvalidInput
from calve.metastore.information import VIEWS
from calve.reader.read import FrameRead, read
from calve.spark.sqltext import ident
from calve.spark.version import frame_of_rows, quiet_analysis, schema_of_ddl
from calve.sql.names import FieldPath, Identifier, is_plain
from calve.sql.statements import SelectQuery
from calve.statements.answers import QueryAnswer
from calve.statements.information_schema import lines_of
from calve.statements.moments import replace_moments
from calve.statements.select import replace_names
from calve.statements.tables import table_named
from calve.view.plan import ViewQuery
from calve.view.scope import spark_text, tables_read


def query(place: Workplace, statement: SelectQuery) -> QueryAnswer:
    """Execute a query. Raises InvalidInput if Spark refuses it."""
    timed, moments = replace_moments(statement.text)
    text, asked = replace_names(timed, "`")
    session = place.spark().newSession()
    for name, lines in lines_of(place, asked).items():
        columns = schema_of_ddl(", ".join(f"{column} {kind}" for column, kind in VIEWS[name].columns))
        frame_of_rows(session, lines, columns).createOrReplaceTempView(name)
    for moment in moments:
        read(session, table_named(place, moment.path).ref, **moment.at).createOrReplaceTempView(moment.alias)
    known = {*asked, *(moment.alias.upper() for moment in moments)}
    tables = [parts for parts in tables_read(session, ViewQuery("query", text)) if parts[0].upper() not in known]
    for parts in tables:
        _register(place, session, parts)
    try:
        with quiet_analysis():
            frame = session.sql(spark_text(text, [parts for parts in tables if len(parts) > 1]))
    except (PySparkException, Py4JError) as error:
        raise InvalidInput("Spark refuses the query", detail=str(error).strip().splitlines()[0]) from error
    return QueryAnswer(FrameRead(frame))


def _register(place: Workplace, session: SparkSession, parts: tuple[str, ...]) -> None:
    path = FieldPath(tuple(Identifier(part, quoted=not is_plain(part)) for part in parts))
    read(session, table_named(place, path).ref).createOrReplaceTempView(ident(".".join(parts)))
