"""The only module of this stage that touches Spark's internals.

A write needs settings of its own (timestamps as 64-bit microseconds, the size of Arrow batches). They are set in a copy
of the frame's session, so that neither the user's session nor another sink's write ever sees them.
"""

from collections.abc import Mapping
from typing import Any

from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession


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
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(jvm_session, plan), copy)


def constant_of(frame: DataFrame, column: str) -> Any:
    """The value that the column has in every row, as far as the plan itself says so; None where it may vary."""
    plan = frame.select(column)._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - plans have no Python API
    if plan.nodeName() != "Project":
        return None
    expression = plan.projectList().apply(0)
    if expression.nodeName() != "Alias" or expression.child().nodeName() != "Literal":
        return None
    return expression.child().value()
