"""The other end of `readers.IcebergProcess`: Spark with the Iceberg runtime, serving queries until disconnected.

    python -m tests.support.iceberg_process <file descriptor> <jar> <home>

A response is an Arrow stream, or a text if the query failed.
"""

import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from calve.spark.session import embedded_session
from tests.support.jvm import QUICK
from tests.support.readers import AWS_JARS


def settings(jar: Path, home: Path) -> dict[str, str]:
    return {
        **QUICK,
        "spark.jars": ",".join(map(str, [jar, *AWS_JARS.glob("*.jar")])),
        "spark.sql.catalog.scratch": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.scratch.type": "hadoop",
        "spark.sql.catalog.scratch.warehouse": (home / "scratch").as_uri(),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    }


_opened: dict[str, Any] = {}
"""Java's tables, in the state in which they were opened."""


def frame(spark: SparkSession, request: tuple[Any, ...]) -> DataFrame:
    match request:
        case ("sql", str(statement)):
            return spark.sql(statement)
        case ("rest", dict(properties), str(table)):
            name = f"rest_{abs(hash(tuple(sorted(properties.items()))))}"
            spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
            fresh = {**properties, "cache-enabled": "false"}  # else it may answer of a table of that name before this
            for key, value in fresh.items():
                spark.conf.set(f"spark.sql.catalog.{name}.{key}", value)
            return spark.table(f"{name}.{table}")
        case ("read", str(location), columns, snapshot_id):
            reader = spark.read.format("iceberg")
            if snapshot_id is not None:
                reader = reader.option("versionAsOf", str(snapshot_id))
            return reader.load(location).select("*" if columns is None else [f"`{name}`" for name in columns])
        case ("open", str(location)):
            tables = spark._jvm.org.apache.iceberg.hadoop.HadoopTables(spark._jsc.hadoopConfiguration())  # type: ignore[union-attr]
            _opened[location] = tables.load(location)
            return spark.range(0)
        case ("compact", str(location)):
            actions = spark._jvm.org.apache.iceberg.spark.actions.SparkActions.get(spark._jsparkSession)  # type: ignore[union-attr]
            done = actions.rewriteDataFiles(_opened[location]).option("rewrite-all", "true").execute()
            return spark.sql(f"SELECT {done.rewrittenDataFilesCount()} AS files")
        case _:
            raise ValueError(f"unknown request {request}")


def answer(spark: SparkSession, request: tuple[Any, ...]) -> bytes | str:
    try:
        table = frame(spark, request).toArrow()
    except (PySparkException, Py4JError, ValueError) as error:
        return str(error)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def main() -> None:
    descriptor, jar, home = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    connection: Connection[Any, Any] = Connection(descriptor)
    with connection:
        spark = embedded_session(home, master="local[2]", conf=settings(jar, home))
        while True:
            try:
                request = connection.recv()
            except EOFError:
                break
            connection.send(answer(spark, request))
        spark.stop()


if __name__ == "__main__":
    main()
