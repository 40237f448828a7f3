"""Orphan files in S3, of a table in a REST catalog."""

from datetime import timedelta
from pathlib import Path

import pytest

from calve.iceberg.files.names import own_name, table_mark
from calve.iceberg.files.store import absent, io_properties_of, open_output
from calve.lake import TableRef
from calve.maintain.orphans import OrphanOptions, OrphanReport, remove_orphans
from calve.storage import aws
from tests.faults.where import Where
from tests.support.readers import duckdb_rows
from tests.support.runs import NAME, Run, spec_of
from tests.support.servers.lakehouse import Lakehouse

NOW = OrphanOptions(timedelta(0), force=True)


@pytest.mark.parametrize("lister", ["botocore", "pyarrow"])
def test_orphans_of_a_store_go_and_work_in_flight_stays(
    lakehouse: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lister: str
) -> None:
    monkeypatch.setattr(aws, "is_available", lambda: lister == "botocore")
    where = Where.of(lakehouse)
    lake = where.lake(tmp_path)
    run = Run(tmp_path, spec_of("5e9a2d0c-0000-4000-8000-00000000000a"), lake.open())
    run.commit({1: "a"})
    run.record({2: "b"})
    table = run.now
    properties = io_properties_of(table.io.properties)
    left = f"{table.location()}/data/{own_name(table_mark(table.metadata.table_uuid), '00000-left.parquet')}"
    with open_output(left, properties) as out:
        out.write(b"left behind")

    def clean() -> OrphanReport:
        return remove_orphans(TableRef(lake, NAME), NOW)

    first = clean()
    assert (first.orphans.files, first.removed.files, first.warnings) == (1, 0, [])
    assert clean().removed.files == 1
    assert absent([left], properties) == (left,)
    assert run.run.commits.commit_next() is not None
    rows = duckdb_rows(run.now.metadata_location, s3=where.duckdb)
    assert {row["id"]: row["v"] for row in rows} == {1: "a", 2: "b"}
