"""Sessions of Spark Connect, whose driver is another process: a server, and a client that uses calve."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from calve.spark.java import find_java
from tests.support.readers import ROOT

SCRIPT = """
import json
import sys

from pyspark.sql import SparkSession

import calve
from calve.errors import InvalidInput

spark = SparkSession.builder.remote("local[1]").getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect")
assert spark.range(3).count() == 3
lake = calve.connect(home=sys.argv[1])
table = lake.table("a.b")
uses = {
    "a frame": lambda: calve.sink(spark.range(3), name="s", into=table, key=["id"]),
    "a stream": lambda: calve.sink(spark.readStream.format("rate").load(), name="s", into=table, key=["value"]),
    "the session": lambda: calve.sink(calve.orders(rows=1), name="s", into=table, key=["id"]).start(),
    "reading": lambda: calve.read(spark, table),
}
told = {}
for name, use in uses.items():
    try:
        use()
    except InvalidInput as error:
        told[name] = [error.primary, error.hint]
print(json.dumps(told))
spark.stop()
"""


@pytest.mark.slow
def test_everything_of_spark_connect_is_refused_with_a_hint(tmp_path: Path) -> None:
    java = {"JAVA_HOME": str(find_java(tmp_path / "java", os.environ))}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "home")]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **java},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    refused = [
        "Spark Connect is not supported",
        "Use a classic session: without SPARK_REMOTE, builder.remote(...) or spark.api.mode = connect.",
    ]
    assert told == dict.fromkeys(["a frame", "a stream", "the session", "reading"], refused)
    assert not (tmp_path / "home" / "warehouse").exists()
