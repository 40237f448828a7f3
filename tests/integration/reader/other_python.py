"""A session of a user whose workers have another Python; a process of its own, for a process has one Spark."""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import calve
from calve.errors import CalveError
from calve.spark.executors import asked_first
from tests.support.jvm import QUICK


def main(folder: Path) -> None:
    settings: dict[str, bool | float | int | str | None] = {**QUICK, "spark.ui.enabled": "false"}
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    table = calve.connect(home=folder).table("shop.orders")
    for ask in (lambda: calve.read(spark, table), asked_first(lambda: spark)):
        try:
            ask()
        except CalveError as error:
            sys.stdout.write(f"{type(error).__name__}: {error.primary} / {error.hint}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
