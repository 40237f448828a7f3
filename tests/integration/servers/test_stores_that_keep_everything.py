"""Sinks into stores that let nobody delete, as S3 Tables does: what is needed for a while only goes elsewhere."""

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow.fs import FileSelector
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from calve.catalog.connect import location_of, open_catalog
from calve.errors import InvalidInput
from calve.iceberg.files.manifest_cache import ManifestCache, references
from calve.iceberg.loading import PROPERTIES
from calve.iceberg.schema.creation import iceberg_schema
from calve.model.files import KeyPlace
from calve.storage.filesystems import APART, filesystem_of, io_properties_of
from calve.storage.state import check_apart
from tests.faults.where import files_of
from tests.support.readers import duckdb_rows
from tests.support.runs import COLUMNS, NAME, Run, spec_of
from tests.support.servers.lakehouse import BUCKET, Lakehouse
from tests.support.servers.listening import Answer, Request
from tests.support.servers.proxy import Fault

TABLES = f"{uuid.uuid4()}--table-s3"
"""A bucket named as those of S3 Tables are."""
REFUSAL = Answer(
    403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>", {"Content-Type": "application/xml"}
)


@pytest.fixture(scope="module")
def table_bucket(servers: Lakehouse) -> str:
    servers.store.make_bucket(TABLES)
    return TABLES


@pytest.fixture
def catalog(lakehouse: Lakehouse) -> Iterator[Catalog]:
    opened = open_catalog(lakehouse.properties)
    opened.create_namespace_if_not_exists(NAME.namespace)
    if opened.table_exists(NAME.identifier):
        opened.drop_table(NAME.identifier)
    yield opened
    opened.close()


def make_table(catalog: Catalog, bucket: str) -> str:
    """At a place of its own; nobody may delete there from now on."""
    place = f"s3://{bucket}/kept/{uuid.uuid4()}"
    catalog.create_table(NAME.identifier, iceberg_schema(COLUMNS, ["id"]), place, properties=dict(PROPERTIES))
    return place


def refuse(lakehouse: Lakehouse, place: str) -> list[Request]:
    """Deletions in a place, all of which are refused; filled as they come."""
    asked: list[Request] = []
    folder = place.removeprefix("s3:/")

    def deletions(request: Request) -> bool:
        found = request.method == "DELETE" and request.path.startswith(folder)
        if found:
            asked.append(request)
        return found

    lakehouse.store.proxy.faults.append(Fault(deletions, lambda _request, _forward: REFUSAL, times=1_000_000))
    return asked


def left(table: Table) -> set[str]:
    """Files in the location of a table that no snapshot of it names."""
    named = references(table.io, ManifestCache(), table.metadata.snapshots)
    there = {path for path in files_of(table) if path.endswith((".parquet", ".avro"))}
    return there - {location.removeprefix("s3://") for location in named}


def files_at(place: KeyPlace) -> list[str]:
    filesystem, path = filesystem_of(place.location, place.io_properties)
    found = filesystem.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    return [file.path for file in found if file.is_file]


def key_place(kind: str, lakehouse: Lakehouse, home: Path) -> KeyPlace:
    if kind == "local":
        return KeyPlace(location_of(home / "state" / "keys"))
    return KeyPlace(f"s3://{BUCKET}/state/{uuid.uuid4()}/keys", io_properties_of(lakehouse.properties))


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_nothing_is_left_in_a_bucket_of_tables(
    lakehouse: Lakehouse, catalog: Catalog, table_bucket: str, tmp_path: Path, kind: str
) -> None:
    place = make_table(catalog, table_bucket)
    asked = refuse(lakehouse, place)
    keys_at = key_place(kind, lakehouse, tmp_path)
    sink = Run(tmp_path, spec_of("s"), catalog, keys_at=keys_at)
    sink.commit({1: "a", 2: "b"})
    sink.record({2: "B", 3: "c"})
    assert len(files_at(keys_at)) == 2, "keys and their manifest"
    successor = Run(tmp_path, spec_of("s"), catalog, keys_at=keys_at)
    successor.run.claims.claim()
    assert successor.run.commits.commit_next()
    successor.commit({3: "C"})
    rows = duckdb_rows(sink.now.metadata_location, s3=lakehouse.duckdb)
    assert {row["id"]: row["v"] for row in rows} == {1: "a", 2: "B", 3: "C"}
    assert len(rows) == 3
    assert left(sink.now) == set()
    assert files_at(keys_at) == []
    assert asked == [], "it is known before"


def test_a_store_that_refuses_to_delete_gets_no_more_files_of_keys(
    lakehouse: Lakehouse, catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = refuse(lakehouse, make_table(catalog, BUCKET))
    keys_at = key_place("s3", lakehouse, tmp_path)
    sink = Run(tmp_path, spec_of("s"), catalog, keys_at=keys_at)
    assert APART not in sink.table.write_target(sink.spec.write).io_properties, "tasks get no more than they need"
    with caplog.at_level(logging.WARNING):
        for batch in ({1: "a"}, {1: "b"}, {1: "c", 2: "d"}):
            sink.commit(batch)
    rows = duckdb_rows(sink.now.metadata_location, s3=lakehouse.duckdb)
    assert sorted((row["id"], row["v"]) for row in rows) == [(1, "c"), (2, "d")]
    assert len(left(sink.now)) == 2, "keys of the first batch, and their manifest"
    assert files_at(keys_at) == []
    assert {request.path for request in asked} == {asked[0].path}
    assert caplog.text.count("refuses to delete key files") == 1
    sink.record({2: "e"})
    assert len(files_at(keys_at)) == 2, "keys and their manifest"
    successor = Run(tmp_path, spec_of("s"), catalog, keys_at=keys_at)
    successor.run.claims.claim()
    assert successor.run.commits.commit_next()
    rows = duckdb_rows(successor.now.metadata_location, s3=lakehouse.duckdb)
    assert sorted((row["id"], row["v"]) for row in rows) == [(1, "c"), (2, "e")]
    assert files_at(keys_at) == []


def test_a_state_location_is_not_in_a_bucket_of_tables() -> None:
    with pytest.raises(InvalidInput, match="the state location cannot be in a bucket of S3 Tables") as raised:
        check_apart(f"s3://{TABLES}/state", "s3://elsewhere/table")
    assert raised.value.hint == "Choose a STATE LOCATION in a general purpose bucket."
