"""Commits to a catalog of Iceberg's own with its files in S3, whose answers are lost or wrong on the way."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow.fs import FileSelector
from pyiceberg.catalog import Catalog

from calve.catalog.connect import open_catalog
from calve.clock import SystemClock
from calve.iceberg.snapshot import draft
from calve.storage.filesystems import filesystem_of, io_properties_of
from tests.support import senders
from tests.support.senders import SENDERS, check
from tests.support.servers.lakehouse import BUCKET, Lakehouse
from tests.support.servers.proxy import Act, Fault, commits, lost, lost_with, repeated, unparsable
from tests.unit.iceberg.sample import NAME, Sample, SetClock

ANSWERS: dict[str, Act] = {
    "lost": lost,
    "unparsable": unparsable,
    "repeated on the way": repeated,
    "conflict": lost_with(409),
    "server error": lost_with(500),
    "not available": lost_with(503),
    "token refused": lost_with(401),
}
USUAL = {("conflict", "compaction"), ("unparsable", "compaction"), ("repeated on the way", "batch")}
WIRE = [(answer, sender) for answer in ANSWERS for sender in ("batch", "compaction")]
WIRE += [("lost", sender) for sender in SENDERS if sender not in {"batch", "compaction", "declared_table"}]


@pytest.fixture(autouse=True)
def early_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "FAN_IN", senders.MANIFESTS)


@pytest.fixture
def catalog(lakehouse: Lakehouse) -> Iterator[Catalog]:
    """Without a table, and without a file of one."""
    opened = open_catalog(lakehouse.properties)
    if opened.namespace_exists(NAME.namespace):
        for name in opened.list_tables(NAME.namespace):
            opened.drop_table(name)
    place = f"s3://{BUCKET}/tables/{NAME.namespace[0]}"
    filesystem, path = filesystem_of(place, io_properties_of(lakehouse.properties))
    for file in filesystem.get_file_info(FileSelector(path, recursive=True, allow_not_found=True)):
        if file.is_file:
            filesystem.delete_file(file.path)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("answer", "sender"),
    [pytest.param(*one, marks=[] if one in USUAL else pytest.mark.slow, id=" ".join(one)) for one in WIRE],
)
def test_a_commit_to_a_rest_catalog_is_sent_once_and_found_in_the_table_whatever_the_answer(
    lakehouse: Lakehouse, catalog: Catalog, tmp_path: Path, answer: str, sender: str
) -> None:
    act = SENDERS[sender](Sample(tmp_path, opened=catalog, clock=SetClock(SystemClock().now_ms())), catalog)
    before = len(catalog.load_table(act.table).metadata.snapshots)
    proxy = lakehouse.catalog_proxy
    proxy.seen.clear()
    proxy.faults.append(Fault(commits, ANSWERS[answer], after=act.commits - 1))
    act.make()
    assert sum(map(commits, proxy.seen)) == act.commits
    check(catalog, act, before, lakehouse.duckdb)
