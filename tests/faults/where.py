"""Where sinks are tested: the embedded catalog with local files, or a REST catalog with everything in S3."""

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pyarrow.fs import FileSelector
from pyiceberg.table import Table

import calve
from calve.lake import Lake
from calve.storage.filesystems import filesystem_of, io_properties_of
from tests.support.readers import Rows, duckdb_rows, spark_iceberg_rows, spark_rest_rows
from tests.support.servers.lakehouse import BUCKET, Lakehouse

NAMESPACE = "shop"
TABLE = f"{NAMESPACE}.orders"
_VARIABLE = "CALVE_TEST_WHERE"
_STORE_SECRET = "CALVE_TEST_STORE_SECRET"  # noqa: S105 - the name of a variable


@dataclass(frozen=True)
class Where:
    """A catalog, a state location and an encoding of deletes; nothing at all means the embedded ones, by position."""

    properties: Mapping[str, str] = field(default_factory=dict)
    state: str | None = None
    duckdb: Mapping[str, str] | None = None
    spark: Mapping[str, str] | None = None
    deletes: str = "position"

    @classmethod
    def of(cls, lakehouse: Lakehouse) -> Self:
        """The servers, without the tables of the last test, nor files of theirs."""
        where = cls(lakehouse.properties, f"s3://{BUCKET}/state/{uuid.uuid4()}", lakehouse.duckdb, lakehouse.spark)
        catalog = where.lake(Path()).open()
        if catalog.namespace_exists(NAMESPACE):
            for name in catalog.list_tables(NAMESPACE):
                table = catalog.load_table(name)
                catalog.drop_table(name)
                _remove_files(table)
        lakehouse.calm()  # what cleaned up is nothing that a test saw
        return where

    @classmethod
    def from_environment(cls) -> Self:
        """Read what the parent process passed in the environment."""
        properties, state, deletes = json.loads(os.environ[_VARIABLE])
        return cls(properties, state, deletes=deletes)

    @property
    def format_version(self) -> int | None:
        """Of new tables; None for the usual one."""
        return 3 if self.deletes == "vector" else None

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for `from_environment` in another process."""
        variables = {_VARIABLE: json.dumps([dict(self.properties), self.state, self.deletes])}
        return variables | ({_STORE_SECRET: self.properties["client.secret-access-key"]} if self.properties else {})

    @property
    def connections(self) -> str:
        """Statements that connect to it, as `lake` and `aws`."""
        given = self.properties
        if not given:
            return "CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');"
        keys = f"ACCESS KEY ID = '{given['client.access-key-id']}', REGION = '{given['client.region']}'"
        return f"""
            CREATE SECRET store FROM ENV '{_STORE_SECRET}';
            CREATE CONNECTION aws TO AWS (
              {keys}, SECRET ACCESS KEY = SECRET store, ENDPOINT = '{given["s3.endpoint"]}');
            CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'rest', URI = '{given["uri"]}');
        """

    def sink(self, source: str, table: str, *options: str) -> str:
        """The statement of a sink `s` into a table, after `connections`."""
        namespace, name = table.split(".")
        state = [] if self.state is None else [f"STATE LOCATION = '{self.state}'"]
        version = [] if self.format_version is None else [f"FORMAT VERSION = {self.format_version}"]
        settings = ", ".join([f"DELETES = '{self.deletes}'", *version, *state, *options])
        store = "" if self.state is None else "USING AWS CONNECTION aws"
        target = f'ICEBERG CATALOG lake {store} NAMESPACE "{namespace}" TABLE "{name}"'
        return f"CREATE SINK s FROM {source} TO {target} WITH ({settings});"

    def lake(self, home: Path, **more: str) -> Lake:
        return calve.connect(home=home, **self.properties, **more)

    def rows(self, metadata_location: str, snapshot_id: int | None = None) -> Rows:
        """What DuckDB reads."""
        return duckdb_rows(metadata_location, snapshot_id=snapshot_id, s3=self.duckdb)

    def spark_rows(self, metadata_location: str) -> Rows:
        """What Spark with the Iceberg runtime reads, through the catalog where it has one."""
        return spark_rest_rows(self.spark, TABLE) if self.spark else spark_iceberg_rows(metadata_location)


def files_of(table: Table) -> list[str]:
    """The paths of all files at the location of a table, wherever that is."""
    filesystem, path = filesystem_of(table.location(), io_properties_of(table.io.properties))
    return [file.path for file in filesystem.get_file_info(FileSelector(path, recursive=True))]


def _remove_files(table: Table) -> None:
    """One by one: S3Proxy has no deletion of several at once."""
    filesystem, path = filesystem_of(table.location(), io_properties_of(table.io.properties))
    for file in filesystem.get_file_info(FileSelector(path, recursive=True, allow_not_found=True)):
        if file.is_file:
            filesystem.delete_file(file.path)
