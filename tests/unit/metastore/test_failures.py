"""Answers that get lost, processes that die, files that stay behind."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from calve import faults
from calve.errors import CommitUnknown, TransientError
from calve.metastore import filters as f
from calve.metastore.component import Component
from calve.metastore.tables import TableUnit, open_tables
from tests.unit.metastore.sample import (
    DELETE_AFTER_COMMIT,
    GENERAL,
    SEGMENT,
    VERSIONS_MAX,
    SetClock,
    files_below,
    metastore_at,
    segment,
)
from tests.unit.metastore.test_expiry import referred, there

ROOT = Path(__file__).parents[3]
Tables = Component[TableUnit]


class Broken:
    """Raises an OSError where a point is reached, as often as asked."""

    def __init__(self, point: str, times: int) -> None:
        self._point = point
        self.left = times

    def __call__(self, point: str) -> None:
        if point == self._point and self.left:
            self.left -= 1
            raise OSError("the connection is gone")


@pytest.fixture(autouse=True)
def _nothing_breaks_afterwards() -> Iterator[None]:
    yield
    faults.install(None)


def test_a_commit_whose_answer_is_lost_is_found_and_not_repeated(tables: Tables, tmp_path: Path) -> None:
    tables.modify().overwrite(GENERAL).execute()
    faults.install(Broken("metastore.after", 1))
    assert tables.modify().overwrite(SEGMENT).delete(f.eq("metadata_key", "GENERAL_INFO")).execute() == 2
    assert tables.read() == [SEGMENT]
    assert len(tables.see().table.metadata.snapshots) == 2
    assert there(tmp_path) == referred(tables)


def test_a_commit_that_was_lost_on_its_way_is_sent_again(tables: Tables) -> None:
    faults.install(Broken("metastore.before", 3))
    assert tables.modify().overwrite(SEGMENT).execute() == 1
    assert tables.read() == [SEGMENT]


def test_a_catalog_that_never_answers_leaves_it_open_and_keeps_the_files(tables: Tables, tmp_path: Path) -> None:
    faults.install(Broken("metastore.before", 10**6))
    with pytest.raises(CommitUnknown, match=r"the response to the change of metastore\.tables was lost"):
        tables.modify().overwrite(SEGMENT).execute()
    assert len(files_below(tmp_path, "*.parquet")) == 1


def test_a_store_that_cannot_be_written_changes_nothing(tables: Tables, tmp_path: Path) -> None:
    tables.modify().overwrite(GENERAL).execute()
    files = there(tmp_path)
    faults.install(Broken("metastore.files", 1))
    with pytest.raises(OSError, match="the connection is gone"):
        tables.modify().overwrite(SEGMENT, segment("dir0")).execute()
    assert there(tmp_path) == files
    assert tables.read() == [GENERAL]


def test_a_manifest_that_is_lost_is_an_error(tmp_path: Path) -> None:
    with metastore_at(tmp_path) as one:
        open_tables(one).modify().overwrite(GENERAL).execute()
    for file in files_below(tmp_path, "calve-*.avro"):
        file.unlink()
    with metastore_at(tmp_path) as other:
        with pytest.raises(TransientError, match='reading component "tables" failed') as caught:
            open_tables(other).modify().overwrite(SEGMENT).execute()
        assert "FileNotFoundError" in caught.value.detail
        with pytest.raises(TransientError, match='reading component "tables" failed'):
            open_tables(other).read()


def test_metadata_that_is_lost_is_an_error(tmp_path: Path) -> None:
    with metastore_at(tmp_path) as one:
        open_tables(one).modify().overwrite(GENERAL).execute()
    for file in files_below(tmp_path, "*.metadata.json"):
        file.unlink()
    with (
        metastore_at(tmp_path) as other,
        pytest.raises(TransientError, match=r'loading table "metastore\.tables" failed'),
    ):
        open_tables(other).read()


KEEPING_ONE = {DELETE_AFTER_COMMIT: "true", VERSIONS_MAX: "1"}
KILLS = ("metastore.files", "metastore.before", "metastore.after", "metastore.expiry")
MODIFY = """
import os, sys
from pathlib import Path
from calve import faults
from calve.metastore.tables import open_tables
from tests.unit.metastore.sample import GENERAL, SEGMENT, metastore_at
from tests.unit.metastore.test_failures import KEEPING_ONE
for point in sys.argv[2:]:
    process = os.fork()
    if process == 0:
        faults.install(faults.parse(f"{point}=kill"))
        with metastore_at(Path(sys.argv[1], point), common=KEEPING_ONE) as metastore:
            open_tables(metastore).modify().overwrite(GENERAL, SEGMENT).execute()
        os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""


@pytest.mark.long
def test_a_process_that_is_killed_did_all_or_nothing_and_its_files_can_be_found(tmp_path: Path) -> None:
    for point in KILLS:
        with metastore_at(tmp_path / point, common=KEEPING_ONE) as one:
            open_tables(one).modify().overwrite(segment("dir0"), SEGMENT).execute()
    command = [sys.executable, "-c", MODIFY, str(tmp_path), *KILLS]
    killed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert killed.stdout.split() == ["-9"] * len(KILLS), killed.stderr
    for point in KILLS:
        with metastore_at(tmp_path / point, clock=SetClock(2**42), common=KEEPING_ONE) as other:
            tables = open_tables(other)
            applied = point in {"metastore.after", "metastore.expiry"}
            keys = {unit.metadata_key for unit in tables.read()}
            assert keys == {"dir0", "DEFAULT_SEGMENT"} | ({"GENERAL_INFO"} if applied else set()), point
            assert there(tmp_path / point) > referred(tables)
            orphans = tables.remove_orphans()
            assert orphans
            assert there(tmp_path / point) == referred(tables)
            assert {unit.metadata_key for unit in tables.read()} == keys
            assert tables.remove_orphans() == []


def test_young_files_are_no_orphans_yet(tables: Tables, tmp_path: Path) -> None:
    tables.modify().overwrite(GENERAL).execute()
    (tmp_path / "metastore/tables/dfs/tmp/nation/young.parquet").touch()
    (tmp_path / "metastore/tables/dfs/tmp/nation/notes.txt").touch()
    assert tables.remove_orphans() == []
    assert tables.remove_orphans(timedelta(hours=-1)) == [
        str(tmp_path / "metastore/tables/dfs/tmp/nation/young.parquet")
    ]
    assert (tmp_path / "metastore/tables/dfs/tmp/nation/notes.txt").exists()
