"""Where sinks are tested: the embedded catalog with local files, or a REST catalog with everything in S3."""

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import calve
from calve.runtime.lake import Lake
from tests.support.readers import Rows, duckdb_rows, spark_iceberg_rows, spark_rest_rows
from tests.support.servers.lakehouse import BUCKET, Lakehouse

TABLE = "shop.orders"
_VARIABLE = "CALVE_TEST_WHERE"


@dataclass(frozen=True)
class Where:
    """A catalog and a state location; nothing at all means the embedded ones."""

    properties: Mapping[str, str] = field(default_factory=dict)
    state: str | None = None
    duckdb: Mapping[str, str] | None = None
    spark: Mapping[str, str] | None = None

    @classmethod
    def of(cls, lakehouse: Lakehouse) -> Self:
        """The servers, without the table of the last test."""
        where = cls(lakehouse.properties, f"s3://{BUCKET}/state/{uuid.uuid4()}", lakehouse.duckdb, lakehouse.spark)
        catalog = where.lake(Path()).open()
        if catalog.namespace_exists(TABLE.split(".", maxsplit=1)[0]) and catalog.table_exists(TABLE):
            catalog.drop_table(TABLE)
        return where

    @classmethod
    def told(cls) -> Self:
        """As the process that started this one says."""
        properties, state = json.loads(os.environ.get(_VARIABLE) or "[{}, null]")
        return cls(properties, state)

    @property
    def environment(self) -> dict[str, str]:
        """For `told` of another process."""
        return {_VARIABLE: json.dumps([dict(self.properties), self.state])}

    def lake(self, home: Path) -> Lake:
        return calve.connect(home=home, **self.properties)

    def rows(self, metadata_location: str, snapshot_id: int | None = None) -> Rows:
        """What DuckDB reads."""
        return duckdb_rows(metadata_location, snapshot_id=snapshot_id, s3=self.duckdb)

    def spark_rows(self, metadata_location: str) -> Rows:
        """What Spark with the Iceberg runtime reads, through the catalog where it has one."""
        return spark_rest_rows(self.spark, TABLE) if self.spark else spark_iceberg_rows(metadata_location)
