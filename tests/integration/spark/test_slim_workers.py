"""Tasks run with the packages that `calve worker-requirements` prints, and no others."""

import sys
import venv
from importlib import import_module
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import calve
from calve.source.generator import expected_orders, orders
from calve.spark import executors
from calve.spark.worker_packages import WorkerExtra, worker_requirements
from tests.faults.harness import rows_of
from tests.support.readers import ROOT, duckdb_rows

pytestmark = pytest.mark.embedded

OF_THE_CLUSTER = ("pyspark", "py4j")
ORDERS = orders(rows=2_000, changes=4_000, per_checkpoint=3_000)


def slim_environment(place: Path) -> Path:
    """The Python of an environment that has these packages, calve and Spark, linked from this one."""
    venv.create(place, with_pip=False)
    (site,) = (place / "lib").glob("python*/site-packages")
    names = [line.partition("==")[0] for line in worker_requirements([WorkerExtra.KAFKA])]
    for name in (*names, *OF_THE_CLUSTER, "calve"):
        found = distribution(name)
        for top in sorted({file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}):
            if not top.endswith(".pth") and not (site / top).exists():
                (site / top).symlink_to(str(found.locate_file(top)))
    (site / "calve.pth").write_text(f"{ROOT / 'src'}\n")
    return place / "bin" / "python"


def test_batches_reads_and_changes_need_no_other_packages(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calve.write.batch.DRIVER_ROWS", 10)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(slim_environment(tmp_path / "slim")))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    executors.check_executors(spark)

    def imports(_: int) -> list[str]:  # nested: sent by value, since this module needs pytest
        for module in ("source.kafka.reader", "source.kafka.avro", "maintain.rewrite", "analyze.file_statistics"):
            import_module(f"calve.{module}")
        return [sys.prefix, *(name for name in ("pandas", "typer", "prompt_toolkit", "duckdb") if find_spec(name))]

    (seen,) = {tuple(one) for one in spark.sparkContext.parallelize(range(2), 2).map(imports).collect()}
    assert seen == (str(tmp_path / "slim"),)

    lake = calve.connect(home=tmp_path / "home")
    table = lake.table("shop.orders")
    assert calve.sink(ORDERS, name="orders", into=table, key=["id"]).start().await_termination(200)
    expected = expected_orders(ORDERS, 6_000)
    assert rows_of(duckdb_rows(lake.open().load_table("shop.orders").metadata_location)) == expected
    assert {row.id for row in calve.read(spark, table, where="id >= 0").collect()} == expected.keys()
    assert {row.id for row in calve.changes(spark, table, before=True).collect()} == expected.keys()
