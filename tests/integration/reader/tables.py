"""Tables made by Spark with the Iceberg runtime, and calve's view of them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import calve
from calve.catalog.connect import connect_embedded
from calve.lake import TableRef
from calve.reader.local import read_here
from tests.support.readers import Rows, spark_iceberg_rows, spark_iceberg_sql

MERGE_ON_READ = ", ".join(f"'write.{what}.mode' = 'merge-on-read'" for what in ("delete", "update", "merge"))


class SparkTable:
    """A table in the catalog `scratch` of the other Spark."""

    def __init__(self, home: Path, name: str, columns: str, version: int, layout: str = "") -> None:
        self.home, self.name = home, f"scratch.shop.{name}"
        spark_iceberg_sql(f"DROP TABLE IF EXISTS {self.name}")
        spark_iceberg_sql(
            f"CREATE TABLE {self.name} ({columns}) USING iceberg {layout} "
            f"TBLPROPERTIES ('format-version' = '{version}', {MERGE_ON_READ})"
        )

    def run(self, statement: str) -> None:
        """A statement in which {t} is the table."""
        spark_iceberg_sql(statement.format(t=self.name))

    @property
    def location(self) -> str:
        """Of the newest metadata."""
        files = [str(row["file"]) for row in spark_iceberg_sql(f"SELECT file FROM {self.name}.metadata_log_entries")]
        return max(files, key=lambda file: int(re.findall(r"v(\d+)\.", file)[-1]))

    @property
    def ref(self) -> TableRef:
        """The table as it is now, in a catalog of calve's."""
        return registered(self.home, self.name.rsplit(".", 1)[-1], self.location)

    def rows(self) -> Rows:
        """What the other Spark reads."""
        return spark_iceberg_rows(self.location)


def registered(home: Path, name: str, location: str) -> TableRef:
    """The table of a metadata file, in a catalog of calve's."""
    catalog = connect_embedded(home)
    catalog.create_namespace_if_not_exists("others")
    if catalog.table_exists(f"others.{name}"):
        catalog.drop_table(f"others.{name}")
    catalog.register_table(f"others.{name}", f"file://{location.removeprefix('file:')}")
    catalog.close()
    return calve.connect(home=home).table(f"others.{name}")


def rows_of(frame: DataFrame) -> Rows:
    """All rows of a frame."""
    rows: Rows = frame.toArrow().to_pylist()
    return rows


def in_order(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Rows as comparable texts, sorted."""
    return sorted(repr(row) for row in rows)


def check(spark: SparkSession, ref: TableRef, wanted: Rows) -> None:
    """Both ways of reading have these rows."""
    assert in_order(rows_of(calve.read(spark, ref))) == in_order(wanted)
    here = [row for batch in read_here(ref).rows() for row in batch.to_pylist()]
    assert len(here) == len(wanted)
