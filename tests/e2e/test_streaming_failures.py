"""A streaming source that fails temporarily: the sink waits for it, and continues by itself."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import calve
from calve.errors import TerminalError
from tests.faults.partitions import Partitions, PartitionsReader
from tests.support.pipelines import eventually, until_stalled
from tests.support.readers import duckdb_rows


class UnsteadyReader(PartitionsReader):
    """Fails as the file `fails` in its folder says, while that is there."""

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        fails = self._folder / "fails"
        if fails.exists():
            raise {"reset": ConnectionResetError, "broken": ValueError}[fails.read_text()]("the source is away")
        return super().latestOffset()


class Unsteady(Partitions):
    @classmethod
    def name(cls) -> str:
        return "unsteady"

    def streamReader(self, schema: StructType) -> UnsteadyReader:  # noqa: N802 - Spark's name
        del schema
        return UnsteadyReader(self.options["folder"])


@pytest.mark.parametrize("arrives", ["afterwards", pytest.param("meanwhile", marks=pytest.mark.soak)])
def test_a_streaming_source_that_fails_is_waited_for_and_nothing_is_lost_or_repeated(
    spark: SparkSession, tmp_path: Path, arrives: str
) -> None:
    spark.dataSource.register(Unsteady)
    folder = tmp_path / "in"
    folder.mkdir()
    fails = folder / "fails"

    def fail(how: str) -> None:
        (folder / ".fails").write_text(how)
        (folder / ".fails").rename(fails)

    def put(number: int) -> None:
        pq.write_table(pa.table({"id": [number]}), tmp_path / "part")
        (tmp_path / "part").rename(folder / f"{number}.parquet")

    def ids() -> list[int]:
        location = table.lake.open().load_table(table.name.identifier).metadata_location
        return sorted(row["id"] for row in duckdb_rows(location))

    table = calve.connect(home=tmp_path / "home").table("shop.t")
    frame = spark.readStream.format("unsteady").schema("id BIGINT").option("folder", str(folder)).load()
    fail("reset")
    put(1)
    query = calve.sink(frame, name="s", into=table, key=["id"]).start()
    until_stalled(query, "the source is away")
    fails.unlink()
    query.await_caught_up(120)
    assert ids() == [1]

    fail("reset")
    until_stalled(query, "the source is away")
    if arrives == "meanwhile":
        put(2)
    fails.unlink()
    eventually(lambda: query.status().health == "running")  # though the source may have nothing new
    if arrives == "afterwards":
        put(2)
    query.await_caught_up(120)
    assert ids() == [1, 2]
    assert sum(commit.changes for commit in query.recent_commits()) == 2

    fail("broken")
    eventually(lambda: not query.active)
    assert isinstance(query.failure, TerminalError)
    assert "the source is away" in query.failure.detail
