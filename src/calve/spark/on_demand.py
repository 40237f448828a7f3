"""Starts Spark when it is first needed, and imports it no earlier: importing PySpark takes longer than a command."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_on_demand(
    home: Path, *, master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> "Callable[[], SparkSession]":
    """A function that returns the session of this process, or a new one that keeps its files in `home`."""

    def start() -> "SparkSession":
        from calve.spark.session import embedded_session  # noqa: PLC0415 - see above

        return embedded_session(home, master=master, conf=conf)

    return start
