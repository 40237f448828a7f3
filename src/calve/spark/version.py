"""What differs between the versions of Spark that calve runs with, 3.5 to 4.3: the only file that knows.

Spark 4 has classic sessions beside those of Spark Connect, with classes of their own in the JVM; a type VARIANT; frames
that become Arrow tables by themselves; and a logger of PySpark. Spark 3.5 has none of these.

The only module of this stage that touches Spark's internals.

A write needs settings of its own (timestamps as 64-bit microseconds, the size of Arrow batches). They are set in a copy
of the frame's session, so that neither the user's session nor another sink's write ever sees them.
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
from pyspark import RDD, SparkContext
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


def in_own_session(frame: DataFrame, settings: Mapping[str, str]) -> DataFrame:
    """The same frame in a copy of its session with other settings. Costs some ten milliseconds."""
    session = frame.sparkSession
    jvm: Any = session._jvm  # noqa: SLF001 - there is no other way into another session
    jvm_session = session._jsparkSession.cloneSession()  # noqa: SLF001 - newSession would lose the user's settings
    for name, value in settings.items():
        jvm_session.conf().set(name, value)
    to_frame = RDD.toDF  # a new session object takes this over for the whole process
    copy = SparkSession(session.sparkContext, jvm_session)
    RDD.toDF = to_frame  # type: ignore[method-assign]
    plan = frame._jdf.logicalPlan()  # noqa: SLF001 - as above
    return DataFrame(frames_of(jvm).ofRows(jvm_session, plan), copy)


def constant_of(frame: DataFrame, column: str) -> Any:
    """The value that the column has in every row, as far as the plan itself says so; None where it may vary."""
    plan = frame.select(column)._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - plans have no Python API
    if plan.nodeName() != "Project":
        return None
    expression = plan.projectList().apply(0)
    if expression.nodeName() != "Alias" or expression.child().nodeName() != "Literal":
        return None
    return expression.child().value()


def murmur3(value: Column) -> Column:
    """The 32-bit Murmur3 hash of a binary column as Iceberg defines it. Spark's own function is another one."""
    java = _Java()
    owner = java.jvm.java.lang.Class.forName("org.apache.commons.codec.digest.MurmurHash3")
    arguments = java.sequence(java.expression(value))
    found = java.objects.StaticInvoke(
        owner, java.types.IntegerType, "hash32x86", arguments, java.sequence(), *_NULL_IN_NULL_OUT, java.none
    )
    return java.column(found)


def murmur3_of_long(value: Column) -> Column:
    """The same of the eight bytes of a long column, without its nulls."""
    java = _Java()
    hashes = java.jvm.org.apache.spark.sql.catalyst.expressions.Murmur3Hash
    return java.column(hashes(java.sequence(java.expression(value)), 0))


def unscaled_bytes(value: Column, *, multiple_of: int = 1) -> Column:
    """The unscaled integer of a decimal column, or the multiple at or below it: as few bytes as it takes."""
    java = _Java()
    big = java.jvm.org.apache.spark.sql.types.ObjectType(java.jvm.java.lang.Class.forName("java.math.BigDecimal"))
    whole = java.jvm.org.apache.spark.sql.types.ObjectType(java.jvm.java.lang.Class.forName("java.math.BigInteger"))
    number = java.invoke(java.expression(value), "toJavaBigDecimal", big)
    integer = java.invoke(number, "unscaledValue", whole)
    if multiple_of > 1:
        width = java.jvm.org.apache.spark.sql.catalyst.expressions.Literal(
            java.jvm.java.math.BigInteger.valueOf(multiple_of), whole
        )
        integer = java.invoke(integer, "subtract", whole, java.invoke(integer, "mod", whole, width))
    return java.column(java.invoke(integer, "toByteArray", java.types.BinaryType))


_NULL_IN_NULL_OUT = (True, True, True)
"""Nulls are not passed on; the result may be null; the same arguments give the same result."""


class _Java:
    """Expressions that no function of PySpark makes: calls of methods of Java's library and of Spark's own."""

    def __init__(self) -> None:
        context: Any = SparkContext._active_spark_context  # noqa: SLF001 - there is one, or there would be no columns
        self.jvm = context._jvm  # noqa: SLF001 - as above
        self.objects = self.jvm.org.apache.spark.sql.catalyst.expressions.objects
        self.types = self.jvm.org.apache.spark.sql.types.DataTypes
        self.none = self.jvm.scala.Option.empty()

    def expression(self, column: Column) -> Any:
        return expression_of(self.jvm, column)

    def column(self, expression: Any) -> Column:
        return column_of(self.jvm, expression)

    def sequence(self, *items: Any) -> Any:
        return self.jvm.PythonUtils.toSeq(list(items))

    def invoke(self, on: Any, method: str, kind: Any, *arguments: Any) -> Any:
        return self.objects.Invoke(on, method, kind, self.sequence(*arguments), self.sequence(), *_NULL_IN_NULL_OUT)
