"""The only module of this stage that touches Spark's internals.

A write needs settings of its own (timestamps as 64-bit microseconds, the size of Arrow batches). They are set in a copy
of the frame's session, so that neither the user's session nor another sink's write ever sees them.
"""

from collections.abc import Mapping
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.sql import Column, DataFrame, SparkSession

from calve.sparkversion import column_of, expression_of, frames_of


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
