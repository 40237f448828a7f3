"""A streaming source whose offsets are like Kafka's, `{"orders": {"0": n}}`: they describe its position completely.

It serves the Parquet files of a folder in the order of their names, one file per step of the offset, one per
micro-batch.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType


class FilePartition(InputPartition):
    def __init__(self, path: str) -> None:
        self.path = path


class PartitionsReader(DataSourceStreamReader):
    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._given = 0

    def _files(self) -> list[str]:
        return sorted(str(p) for p in self._folder.glob("*.parquet"))

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"orders": {"0": 0}}

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        self._given = min(len(self._files()), self._given + 1)
        return {"orders": {"0": self._given}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = start["orders"]["0"], end["orders"]["0"]
        self._given = max(self._given, last)
        return [FilePartition(path) for path in self._files()[first:last]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FilePartition)
        yield from pq.read_table(partition.path).to_batches()


class Partitions(DataSource):
    @classmethod
    def name(cls) -> str:
        return "partitions"

    def schema(self) -> str:
        raise NotImplementedError("the schema is given by the reader")

    def streamReader(self, schema: StructType) -> PartitionsReader:  # noqa: N802 - Spark's name
        del schema
        return PartitionsReader(self.options["folder"])


def register_partitions(spark: SparkSession) -> None:
    spark.dataSource.register(Partitions)
