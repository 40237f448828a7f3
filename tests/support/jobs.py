"""Counts the jobs of Spark."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def jobs_counted(spark: SparkSession) -> Iterator[list[int]]:
    """Adds the number of Spark jobs that the block started."""
    store = spark._jsc.sc().statusStore()
    before, found = store.jobsList(None).size(), list[int]()
    yield found
    spark._jsc.sc().listenerBus().waitUntilEmpty()
    found.append(store.jobsList(None).size() - before)
