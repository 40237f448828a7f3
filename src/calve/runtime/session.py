"""Starts the embedded Spark: local, on loopback, quiet."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

_CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.shuffle.partitions": "2",
    "spark.scheduler.mode": "FAIR",
}


def embedded_session(home: Path, *, master: str = "local[*]", conf: Mapping[str, str] | None = None) -> SparkSession:
    """The active session, or a new local one."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master)
    settings = _CONF | {"spark.sql.warehouse.dir": (home / "warehouse").as_uri()} | dict(conf or {})
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
