"""What differs between the supported versions of Spark, 3.5 to 4.3, and access to Spark's internals.

Spark 4 has classic sessions beside those of Spark Connect, with separate classes in the JVM; a type VARIANT; frames
with `toArrow`; and a logger of PySpark. Spark 3.5 has none of these.

A write needs settings of its own (timestamps as 64-bit microseconds, the size of Arrow batches). `in_own_session` sets
them in a copy of the frame's session, so that neither the user's session nor another sink's write ever sees them.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
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

from calve.errors import InvalidInput

_VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))
_OLD = _VERSION < (4, 0)
_CLASSIC = "org.apache.spark.sql" if _OLD else "org.apache.spark.sql.classic"
_SHORT_NAMES = ("PythonRDD", "PythonSQLUtils", "PythonUtils", "SerDeUtil", "SimplePythonFunction")
"""Classes of packages that PySpark imports into its view of the JVM."""
_ZONE: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
_VARIANT: type | None = getattr(T, "VariantType", None)
_INTERVALS: tuple[type, ...] = (T.AnsiIntervalType, *filter(None, [getattr(T, "CalendarIntervalType", None)]))


def is_variant(data_type: T.DataType) -> bool:
    """Whether a type is VARIANT."""
    return _VARIANT is not None and isinstance(data_type, _VARIANT)


def is_interval(data_type: T.DataType) -> bool:
    """Whether a type is an interval."""
    return isinstance(data_type, _INTERVALS)


def condition_of(error: PySparkException) -> str:
    """Spark's name for the kind of an error, such as UNRESOLVED_COLUMN.WITH_SUGGESTION."""
    return (error.getErrorClass() if _OLD else error.getCondition()) or ""


@dataclass(frozen=True)
class SparkFacts:
    """What Spark adds to a Java exception."""

    condition: str = ""
    state: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


def facts_of_throwable(java: Any) -> SparkFacts:
    """Spark's facts about a Java exception; empty for one that is not Spark's."""
    context: Any = SparkContext._active_spark_context  # noqa: SLF001 - the way to the JVM
    if context is None or not is_instance_of(context._gateway, java, "org.apache.spark.SparkThrowable"):  # noqa: SLF001
        return SparkFacts()
    if _VERSION < (4, 1):
        condition = java.getErrorClass() if _OLD else java.getCondition()
        return SparkFacts(condition or "", java.getSqlState() or "", dict(java.getMessageParameters()))
    utils = context._jvm.PythonErrorUtils  # noqa: SLF001 - as above
    return SparkFacts(
        utils.getCondition(java) or "", utils.getSqlState(java) or "", dict(utils.getMessageParameters(java))
    )


def require_python_sources(what: str) -> None:
    """Raise InvalidInput if this Spark has no data sources in Python."""
    if _OLD:
        raise InvalidInput(
            f"{what} needs Spark 4",
            detail=f"This is PySpark {pyspark.__version__}, which has no data sources in Python.",
            hint="Use calve.changes for a range of snapshots, or calve.table_changes as the source of a sink.",
        )


def arrow_schema_of(schema: T.StructType) -> pa.Schema:
    """The Arrow schema of a frame; timestamps are in UTC, which Spark 4.3 needs as an argument."""
    return to_arrow_schema(schema, **_ZONE)


def collected(frame: DataFrame) -> pa.Table:
    """Collect the rows of a frame."""
    if not _OLD:
        return frame.toArrow()
    batches = frame._collect_as_arrow()  # type: ignore[operator]  # noqa: SLF001 - what `toPandas` calls
    return pa.Table.from_batches(batches, schema=None if batches else arrow_schema_of(frame.schema))


def frame_of(spark: SparkSession, rows: pa.Table, schema: T.StructType) -> DataFrame:
    """A frame of local rows. With Spark 3.5 it must be small and without maps."""
    if not _OLD:
        return spark.createDataFrame(rows, schema=schema)
    return spark.createDataFrame([tuple(row.values()) for row in rows.to_pylist()], schema)


def frame_of_rows(spark: SparkSession, rows: Sequence[tuple[object, ...]], schema: T.StructType) -> DataFrame:
    """A frame of a few local rows, without a task in Python.

    Spark would pass rows of Python through workers of RDDs, for which it starts another daemon than for frames.
    """
    arrow = arrow_schema_of(schema)
    columns = [[row[at] for row in rows] for at in range(len(arrow))]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, arrow, strict=True)]
    return frame_of(spark, pa.Table.from_arrays(arrays, schema=arrow), schema)


def schema_of_ddl(text: str) -> T.StructType:
    """Parse declared columns. Needs a session. Raises ParseException."""
    found: T.StructType = T._parse_datatype_string(text)  # type: ignore[assignment]  # noqa: SLF001 - `fromDDL` is new
    return found


def valid_utf8(text: str) -> str:
    """SQL: a string with replacement characters for bytes that are not UTF-8."""
    return f"decode(cast({text} as binary), 'UTF-8')" if _OLD else f"make_valid_utf8({text})"


def is_utf8(text: str) -> str:
    """SQL: whether a string is valid UTF-8; null for null."""
    return f"({text} = {valid_utf8(text)})" if _OLD else f"is_valid_utf8({text})"


@contextmanager
def quiet_analysis() -> Iterator[None]:
    """Silence PySpark 4, which logs every analysis error with its stack; here such errors are expected."""
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


def java_class(jvm: Any, name: str) -> Any:
    """A class by its full name, in one request.

    Of `jvm.org.apache.spark.C` the JVM would look for a class `org`, then for `org.apache` and so on, each in all jars.
    """
    return getattr(jvm, name)


def remember_classes(jvm: Any) -> None:
    """Look up once what PySpark asks for by short names with nearly every frame: each time takes about half a ms."""
    vars(jvm).update({name: getattr(jvm, name) for name in _SHORT_NAMES})


def frames_of(jvm: Any) -> Any:
    """The JVM class whose `ofRows` makes a frame from a plan."""
    return java_class(jvm, f"{_CLASSIC}.Dataset")


def expression_of(jvm: Any, column: Column) -> Any:
    """The expression of a column."""
    java: Any = column._jc  # noqa: SLF001 - the way to the plans
    return java.expr() if _OLD else java_class(jvm, f"{_CLASSIC}.ExpressionUtils").expression(java)


def column_of(jvm: Any, expression: Any) -> Column:
    """An expression as a column."""
    if _OLD:
        return Column(java_class(jvm, "org.apache.spark.sql.Column")(expression))
    classic = importlib.import_module("pyspark.sql.classic.column")
    found: Column = classic.Column(java_class(jvm, f"{_CLASSIC}.ExpressionUtils").column(expression))
    return found


def inlined_ctes(jvm: Any) -> Any:
    """The rule that inlines common table expressions."""
    name = "org.apache.spark.sql.catalyst.optimizer.InlineCTE"
    (constructor,) = java_class(jvm, "java.lang.Class").forName(name).getConstructors()
    always, others = True, [False] * (constructor.getParameterCount() - 1)  # of 3.5 to 4.3: none, one, two
    return java_class(jvm, name)(always, *others)


def in_own_session(frame: DataFrame, settings: Mapping[str, str]) -> DataFrame:
    """The same frame in a copy of its session with other settings. Takes about ten milliseconds."""
    session = frame.sparkSession
    jvm: Any = session._jvm  # noqa: SLF001 - there is no other way into another session
    jvm_session = session._jsparkSession.cloneSession()  # noqa: SLF001 - newSession would lose the user's settings
    for name, value in settings.items():
        jvm_session.conf().set(name, value)
    to_frame = RDD.toDF  # a new session object replaces this for the whole process
    copy = SparkSession(session.sparkContext, jvm_session)
    RDD.toDF = to_frame  # type: ignore[method-assign]
    plan = frame._jdf.logicalPlan()  # noqa: SLF001 - as above
    return DataFrame(frames_of(jvm).ofRows(jvm_session, plan), copy)


def constant_of(frame: DataFrame, column: str) -> Any:
    """The value that a column has in every row, if the plan says so; None where it may vary."""
    plan = frame.select(column)._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - plans have no Python API
    if plan.nodeName() != "Project":
        return None
    expression = plan.projectList().apply(0)
    if expression.nodeName() != "Alias" or expression.child().nodeName() != "Literal":
        return None
    return expression.child().value()


def murmur3(value: Column) -> Column:
    """The 32-bit Murmur3 hash of a binary column as Iceberg defines it, unlike Spark's own function."""
    java = _Java()
    owner = java.jvm.java.lang.Class.forName("org.apache.commons.codec.digest.MurmurHash3")
    arguments = java.sequence(java.expression(value))
    found = java.objects.StaticInvoke(
        owner, java.types.IntegerType, "hash32x86", arguments, java.sequence(), *_NULL_IN_NULL_OUT, java.none
    )
    return java.column(found)


def murmur3_of_long(value: Column) -> Column:
    """The same hash of the eight bytes of a long column without nulls."""
    java = _Java()
    hashes = java.jvm.org.apache.spark.sql.catalyst.expressions.Murmur3Hash
    return java.column(hashes(java.sequence(java.expression(value)), 0))


def unscaled_bytes(value: Column, *, multiple_of: int = 1) -> Column:
    """The unscaled integer of a decimal column, or the multiple at or below it, in the fewest bytes."""
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
"""Nulls are not passed to the method; the result may be null; the call is deterministic."""


class _Java:
    """Expressions that PySpark has no function for: calls of Java methods."""

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
