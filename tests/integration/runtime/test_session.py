from pyspark.sql import SparkSession


def test_a_query_runs(spark: SparkSession) -> None:
    assert spark.range(10).count() == 10
