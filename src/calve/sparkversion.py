"""What differs between the versions of Spark that calve runs with, 3.5 to 4.3: the only file that knows.

Spark 4 has classic sessions beside those of Spark Connect, with classes of their own in the JVM; a type VARIANT; frames
that become Arrow tables by themselves; and a logger of PySpark. Spark 3.5 has none of these.
"""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import pyarrow as pa
import pyspark
from py4j.java_gateway import is_instance_of
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

_OLD = int(pyspark.__version__.split(".", maxsplit=1)[0]) < 4
_ZONE: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
_VARIANT: type | None = getattr(T, "VariantType", None)
_INTERVALS: tuple[type, ...] = (T.AnsiIntervalType, *filter(None, [getattr(T, "CalendarIntervalType", None)]))


def is_variant(data_type: T.DataType) -> bool:
    """Whether a type is VARIANT."""
    return _VARIANT is not None and isinstance(data_type, _VARIANT)


def is_interval(data_type: T.DataType) -> bool:
    """Whether a type is one of intervals."""
    return isinstance(data_type, _INTERVALS)


def condition_of(error: PySparkException) -> str:
    """What Spark calls the kind of an error: UNRESOLVED_COLUMN.WITH_SUGGESTION, say."""
    return (error.getErrorClass() if _OLD else error.getCondition()) or ""


@dataclass(frozen=True)
class SparkFacts:
    """What Spark adds to an exception of Java."""

    condition: str = ""
    state: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


def facts_of_throwable(java: Any) -> SparkFacts:
    """Those of a Java exception; empty for one that is not Spark's."""
    context: Any = SparkContext._active_spark_context  # noqa: SLF001 - the way to the JVM
    if context is None or not is_instance_of(context._gateway, java, "org.apache.spark.SparkThrowable"):  # noqa: SLF001
        return SparkFacts()
    if _OLD:
        return SparkFacts(java.getErrorClass() or "", java.getSqlState() or "", dict(java.getMessageParameters()))
    utils = context._jvm.PythonErrorUtils  # noqa: SLF001 - as above
    return SparkFacts(
        utils.getCondition(java) or "", utils.getSqlState(java) or "", dict(utils.getMessageParameters(java))
    )


def arrow_schema_of(schema: T.StructType) -> pa.Schema:
    """The columns of a frame as Arrow has them; timestamps are of UTC, which Spark 4.3 has to be told."""
    return to_arrow_schema(schema, **_ZONE)


def collected(frame: DataFrame) -> pa.Table:
    """The rows of a frame, in this process."""
    if not _OLD:
        return frame.toArrow()
    batches = frame._collect_as_arrow()  # type: ignore[operator]  # noqa: SLF001 - what `toPandas` calls
    return pa.Table.from_batches(batches, schema=None if batches else arrow_schema_of(frame.schema))


def frame_of(spark: SparkSession, rows: pa.Table, schema: T.StructType) -> DataFrame:
    """A table of this process as a frame. Of Spark 3.5: one without maps, and not too large."""
    if not _OLD:
        return spark.createDataFrame(rows, schema=schema)
    return spark.createDataFrame([tuple(row.values()) for row in rows.to_pylist()], schema)


def schema_of_ddl(text: str) -> T.StructType:
    """The columns that a text declares. Needs a session. Raises ParseException."""
    found: T.StructType = T._parse_datatype_string(text)  # type: ignore[assignment]  # noqa: SLF001 - `fromDDL` is new
    return found


def valid_utf8(text: str) -> str:
    """An expression of SQL: another one's string, with a sign in the place of bytes that are no UTF-8."""
    return f"decode(cast({text} as binary), 'UTF-8')" if _OLD else f"make_valid_utf8({text})"


def is_utf8(text: str) -> str:
    """An expression of SQL: whether another one's string is UTF-8; null for null."""
    return f"({text} = {valid_utf8(text)})" if _OLD else f"is_valid_utf8({text})"


@contextmanager
def quiet_analysis() -> Iterator[None]:
    """PySpark 4 logs every analysis error with its stack; here such an error is an answer."""
    if _OLD:
        yield
        return
    logger = importlib.import_module("pyspark.logger").PySparkLogger.getLogger("SQLQueryContextLogger")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


# ---- the JVM


def frames_of(jvm: Any) -> Any:
    """The class of frames, which makes one out of a plan: `ofRows`."""
    sql = jvm.org.apache.spark.sql
    return sql.Dataset if _OLD else sql.classic.Dataset


def expression_of(jvm: Any, column: Column) -> Any:
    """The expression of a column."""
    java: Any = column._jc  # noqa: SLF001 - the way to the plans
    return java.expr() if _OLD else jvm.org.apache.spark.sql.classic.ExpressionUtils.expression(java)


def column_of(jvm: Any, expression: Any) -> Column:
    """An expression as a column."""
    if _OLD:
        return Column(jvm.org.apache.spark.sql.Column(expression))
    classic = importlib.import_module("pyspark.sql.classic.column")
    found: Column = classic.Column(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))
    return found


def inlined_ctes(jvm: Any) -> Any:
    """The rule that puts common table expressions into their places."""
    name = "org.apache.spark.sql.catalyst.optimizer.InlineCTE"
    (constructor,) = jvm.java.lang.Class.forName(name).getConstructors()
    always, others = True, [False] * (constructor.getParameterCount() - 1)  # of 3.5 to 4.3: none, one, two
    return jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(always, *others)
