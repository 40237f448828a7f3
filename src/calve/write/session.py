"""The only module of this stage that touches Spark's internals.

A write needs settings of its own (timestamps as 64-bit microseconds, the size of Arrow batches). They are set in a copy
of the frame's session, so that neither the user's session nor another sink's write ever sees them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark import RDD
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

_RANK = "_calve_rank"
_GROUP_LIMIT = "WindowGroupLimit"


def in_own_session(frame: DataFrame, settings: Mapping[str, str]) -> DataFrame:
    """The same frame in a copy of its session with other settings. Costs some ten milliseconds."""
    session = frame.sparkSession
    jvm_session = session._jsparkSession.cloneSession()  # noqa: SLF001 - newSession would lose the user's settings
    for name, value in settings.items():
        jvm_session.conf().set(name, value)
    to_frame = RDD.toDF  # a new session object takes this over for the whole process
    copy = SparkSession(session.sparkContext, jvm_session)
    RDD.toDF = to_frame  # type: ignore[method-assign]
    return _frame_of(frame._jdf.logicalPlan(), copy)  # noqa: SLF001 - there is no other way into another session


def first_per_key(frame: DataFrame, key: Sequence[Column], order: Sequence[Column]) -> DataFrame:
    """The first row of every key by `order`, in key order within each partition.

    Spark plans `row_number() = 1` as a limit per group (cheap: it compares neighbours) below a window (dear: it copies
    every row) that only computes the number nobody needs. The limit alone is taken out of the plan; a Spark that plans
    otherwise gets the whole.
    """
    rank = F.row_number().over(Window.partitionBy(*key).orderBy(*order))
    ranked = frame.withColumn(_RANK, rank).where(F.col(_RANK) == 1)
    node = ranked._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - the plan has no Python API
    while node.nodeName() != _GROUP_LIMIT:
        if node.children().size() != 1:
            return ranked.drop(_RANK)
        node = node.children().apply(0)
    return _frame_of(node, frame.sparkSession)


def _frame_of(plan: JavaObject, session: SparkSession) -> DataFrame:
    jvm: Any = session._jvm  # noqa: SLF001 - as above
    dataset = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)  # noqa: SLF001
    return DataFrame(dataset, session)
