"""Engines that read a table, each in a process of its own.

    python benchmarks/peer_reader.py <engine> <home> <jar of the Iceberg runtime>

Standard input has a request per line: `hello`, `scan <metadata> <lake>`, `rows <metadata> <lake> <file>`. An engine
that cannot read a table answers with its error. Nothing is kept in memory from one scan to the next but what the
engine itself keeps.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from peer_merge import session_with_runtime
from pyiceberg.table import StaticTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from workload import COLUMNS

import calve
from calve.spark.session import embedded_session

NEEDED = ("id", "amount")
TOTALS = "count(*) AS n, sum(amount) AS total"
CHDB = Path(__file__).resolve().parents[1] / ".cache" / "chdb"
"""ClickHouse as a Python package, if `encodings.py` could install it."""

Totals = tuple[int, float]
"""Rows, and the sum of their amounts."""


class Engine(Protocol):
    """Reads tables by the location of their metadata file; `lake` is the home of the sink that wrote it."""

    version: str

    def scan(self, table: str, lake: str) -> Totals:
        """Count the rows and sum a column."""
        ...

    def rows(self, table: str, lake: str) -> pa.Table:
        """All rows with all columns."""
        ...


@cache
def duckdb_with_iceberg() -> duckdb.DuckDBPyConnection:
    """One connection with the extensions of PyPI's packages."""
    connection = duckdb.connect(":memory:")
    for name in ("avro", "iceberg"):
        folder = Path(str(files(f"duckdb_extension_{name}")), f"extensions/v{duckdb.__version__}")
        connection.execute(f"LOAD '{folder / f'{name}.duckdb_extension'}'")
    connection.execute("SET TimeZone = 'UTC'; SET GLOBAL enable_external_file_cache = false")
    return connection


def read_by_duckdb(table: str) -> Totals:
    """The totals of a table."""
    found = duckdb_with_iceberg().execute(f"SELECT {TOTALS} FROM iceberg_scan(?)", [table]).fetchone()
    assert found is not None
    return int(found[0]), float(found[1])


def read_by_pyiceberg(table: str) -> Totals:
    """The totals of a table."""
    found = StaticTable.from_metadata(table).scan(selected_fields=("amount",)).to_arrow()
    return found.num_rows, float(pc.sum(found["amount"]).as_py())


class _Spark:
    def __init__(self, home: Path, jar: Path) -> None:
        self._spark = session_with_runtime(home, jar)
        self.version = f"{self._spark.version}, Iceberg runtime {jar.stem.rpartition('-')[2]}"

    def scan(self, table: str, _lake: str) -> Totals:
        return _spark_totals(self._frame(table))

    def rows(self, table: str, _lake: str) -> pa.Table:
        return self._frame(table).toArrow()

    def _frame(self, table: str) -> DataFrame:
        return self._spark.read.format("iceberg").load(table)


class _Calve:
    def __init__(self, home: Path, _jar: Path) -> None:
        self._spark = embedded_session(home / "spark", master="local[2]", conf={"spark.driver.memory": "6g"})
        self.version = f"{version('calve')}, in Spark {self._spark.version}"

    def scan(self, _table: str, lake: str) -> Totals:
        return _spark_totals(self._frame(lake, NEEDED))

    def rows(self, _table: str, lake: str) -> pa.Table:
        return self._frame(lake, COLUMNS).toArrow()

    def _frame(self, lake: str, columns: tuple[str, ...]) -> DataFrame:
        return calve.read(self._spark, calve.connect(home=lake).table("b.orders"), columns=list(columns))


def _spark_totals(frame: DataFrame) -> Totals:
    rows, total = frame.agg(F.count("*"), F.sum("amount")).collect()[0]
    return int(rows), float(total)


class _DuckDB:
    version = duckdb.__version__

    def __init__(self, _home: Path, _jar: Path) -> None:
        pass

    def scan(self, table: str, _lake: str) -> Totals:
        return read_by_duckdb(table)

    def rows(self, table: str, _lake: str) -> pa.Table:
        return duckdb_with_iceberg().execute("SELECT * FROM iceberg_scan(?)", [table]).to_arrow_table()


class _PyIceberg:
    version = version("pyiceberg")

    def __init__(self, _home: Path, _jar: Path) -> None:
        pass

    def scan(self, table: str, _lake: str) -> Totals:
        return read_by_pyiceberg(table)

    def rows(self, table: str, _lake: str) -> pa.Table:
        return StaticTable.from_metadata(table).scan().to_arrow()


class _Polars:
    version = pl.__version__

    def __init__(self, _home: Path, _jar: Path) -> None:
        os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"  # the default, which it warns about

    def scan(self, table: str, _lake: str) -> Totals:
        frame = pl.scan_iceberg(StaticTable.from_metadata(table))
        found = frame.select(pl.len().alias("n"), pl.col("amount").sum().alias("total")).collect()
        return int(found["n"][0]), float(found["total"][0])

    def rows(self, table: str, _lake: str) -> pa.Table:
        return pl.scan_iceberg(StaticTable.from_metadata(table)).collect().to_arrow()


class _DataFusion:
    version = f"{version('datafusion')}, pyiceberg-core {version('pyiceberg-core')}"

    def __init__(self, _home: Path, _jar: Path) -> None:
        pass

    def scan(self, table: str, _lake: str) -> Totals:
        found = self._query(f"SELECT {TOTALS} FROM t", table).to_pylist()[0]
        return int(found["n"]), float(found["total"])

    def rows(self, table: str, _lake: str) -> pa.Table:
        return self._query("SELECT * FROM t", table)

    def _query(self, query: str, table: str) -> pa.Table:
        context = datafusion.SessionContext()
        context.register_table("t", StaticTable.from_metadata(table))
        return context.sql(query).to_arrow_table()


class _ClickHouse:
    def __init__(self, _home: Path, _jar: Path) -> None:
        os.chdir("/")  # it reads nothing outside of the working directory
        sys.path.append(str(CHDB))
        self._session: Any = import_module("chdb.session").Session()
        self.version = str(self._query("SELECT version() AS v")["v"][0].as_py())

    def scan(self, table: str, _lake: str) -> Totals:
        found = self._query(f"SELECT {TOTALS} FROM {self._source(table)}").to_pylist()[0]
        return int(found["n"]), float(found["total"])

    def rows(self, table: str, _lake: str) -> pa.Table:
        return self._query(f"SELECT * FROM {self._source(table)}")

    def _source(self, table: str) -> str:
        metadata = Path(table.removeprefix("file://"))
        chosen = f"SETTINGS iceberg_metadata_file_path = 'metadata/{metadata.name}'"
        return f"icebergLocal('{metadata.parents[1]}/', {chosen})"

    def _query(self, query: str) -> pa.Table:
        options = " SETTINGS output_format_parquet_string_as_string = 1"
        return pq.read_table(pa.BufferReader(self._session.query(query + options, "Parquet").bytes()))


ENGINES: dict[str, Callable[[Path, Path], Engine]] = {
    "spark": _Spark,
    "calve": _Calve,
    "duckdb": _DuckDB,
    "pyiceberg": _PyIceberg,
    "polars": _Polars,
    "datafusion": _DataFusion,
    "clickhouse": _ClickHouse,
}


def _answer(engine: Engine, request: list[str]) -> dict[str, object]:
    began = time.perf_counter()
    match request:
        case ["hello"]:
            return {"version": engine.version}
        case ["scan", table, lake]:
            rows, total = engine.scan(table, lake)
            return {"seconds": time.perf_counter() - began, "rows": rows, "sum": total}
        case ["rows", table, lake, file]:
            found = engine.rows(table, lake).select(list(COLUMNS))
            pq.write_table(found, file, compression="none")
            return {"seconds": time.perf_counter() - began, "rows": found.num_rows}
        case _:
            raise ValueError(f"unknown request {request}")


def main() -> None:
    """Answer requests from standard input."""
    name, home, jar = sys.argv[1:]
    engine = ENGINES[name](Path(home), Path(jar))
    for line in sys.stdin:
        try:
            answer = _answer(engine, line.split())
        except Exception as error:  # noqa: BLE001 - whatever an engine raises is its answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
