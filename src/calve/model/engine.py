"""Engines: of queries, and those that read tables elsewhere."""

from enum import StrEnum


class Engine(StrEnum):
    """What executes queries: `auto` is DuckDB if it is installed, else Spark."""

    AUTO = "auto"
    DUCKDB = "duckdb"
    SPARK = "spark"


class ReadingEngine(StrEnum):
    """Engines that `calve connect-info` has recipes for."""

    DUCKDB = "duckdb"
    SPARK = "spark"
    TRINO = "trino"
    PYICEBERG = "pyiceberg"
    POLARS = "polars"
    CLICKHOUSE = "clickhouse"
