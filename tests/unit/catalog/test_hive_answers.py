"""Commits to Hive's metastore whose answers are lost or wrong, and the locks that they hold meanwhile."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ttypes import ShowLocksRequest, UnlockRequest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.hive import _HiveClient  # with all calls of the metastore, not those of a catalog alone

from calve.catalog.connect import location_of, open_catalog
from calve.errors import CommitConflict, CommitUnknown, TransientError
from calve.iceberg.snapshot import draft
from tests.support import senders
from tests.support.senders import SENDERS, Act, check, check_rows
from tests.support.servers.hive import HiveMetastore
from tests.support.servers.thrift import ACTS, Fault, Forward, HiveTables, ThriftServer, lost, proxy
from tests.unit.iceberg.sample import NAME, Sample

ALTER = "alter_table_with_environment_context"


@dataclass
class Place:
    """A catalog in a metastore behind a proxy."""

    catalog: Catalog
    door: ThriftServer
    upstream: str

    def locks(self, act: Act | None = None) -> list[Any]:
        """Of those who have or want the table."""
        database, name = act.table if act else NAME.identifier
        with _HiveClient(self.upstream) as client:
            shown = client.show_locks(ShowLocksRequest(dbname=database, tablename=name))
        return list(shown.locks or ())

    def unlock(self, number: int) -> None:
        with _HiveClient(self.upstream) as client:
            client.unlock(UnlockRequest(number))


@pytest.fixture(autouse=True)
def early_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "FAN_IN", senders.MANIFESTS)


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveMetastore]:
    server = HiveMetastore.prepared(tmp_path_factory.mktemp("hive"))
    yield server
    server.stop()


@pytest.fixture(params=["small", pytest.param("Hive 3.1", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as ending:
        if request.param == "small":
            behind = ThriftServer(HiveTables().opened)
            ending.callback(behind.stop)
            upstream = behind.uri
        else:
            upstream = request.getfixturevalue("metastore").uri
        door = proxy(upstream)
        ending.callback(door.stop)
        quick = {"lock-check-min-wait-time": "0.01", "lock-check-max-wait-time": "0.05"}
        warehouse = location_of(tmp_path / "warehouse")
        catalog = open_catalog({"type": "hive", "uri": door.uri, "warehouse": warehouse, **quick})
        ending.callback(catalog.close)
        if request.param != "small":
            empty(catalog, warehouse)
        yield Place(catalog, door, upstream)


def empty(catalog: Catalog, place: str) -> None:
    """Leave nothing of the test before; tables go to a place of their own."""
    namespace = NAME.namespace
    if catalog.namespace_exists(namespace):
        for name in catalog.list_tables(namespace):
            catalog.drop_table(name)
        catalog.drop_namespace(namespace)
    catalog.create_namespace(namespace, {"location": place})


def prepared(place: Place, home: Path, sender: str, *faults: Fault) -> tuple[Act, int]:
    """A change that is ready to be made and meets faults with its last commit; how many snapshots there are before."""
    act = SENDERS[sender](Sample(home, opened=place.catalog), place.catalog)
    before = len(place.catalog.load_table(act.table).metadata.snapshots)
    place.door.seen.clear()
    for fault in faults:
        fault.after = act.commits - 1
        place.door.faults.append(fault)
    return act, before


WIRE = [(answer, sender) for answer in ACTS for sender in ("batch", "compaction")]
WIRE += [("lost", sender) for sender in SENDERS if sender not in {"batch", "compaction"}]


@pytest.mark.parametrize(("answer", "sender"), WIRE)
def test_a_commit_to_a_metastore_is_sent_once_and_found_in_the_table_whatever_the_answer(
    place: Place, tmp_path: Path, answer: str, sender: str
) -> None:
    act, before = prepared(place, tmp_path, sender, Fault(ALTER, ACTS[answer]))
    act.make()
    assert place.door.seen.count(ALTER) == act.commits
    check(place.catalog, act, before)
    assert not place.locks(act), "the next one can commit"


@pytest.mark.parametrize("call", ["lock", "unlock"])
@pytest.mark.parametrize("sender", ["batch", "compaction"])
def test_a_lock_whose_answer_was_lost_is_given_back(place: Place, tmp_path: Path, call: str, sender: str) -> None:
    act, before = prepared(place, tmp_path, sender, Fault(call, lost))
    if call == "lock":
        with pytest.raises(CommitUnknown):
            act.make()
        assert not place.locks(act)
        act.make()
        check_rows(place.catalog, act)
    else:
        act.make()
        check(place.catalog, act, before)
    assert not place.locks(act)


@pytest.mark.long
def test_a_table_stays_locked_while_the_metastore_may_be_at_work_on_a_commit(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else another one commits, and what comes late takes its place: metastores of Hive 3 compare nothing."""
    sample = Sample(tmp_path, opened=place.catalog)
    sample.commit({1: "a"})
    goes_on, is_done = threading.Event(), threading.Event()

    def late(forward: Forward) -> None:
        goes_on.wait()
        forward()
        is_done.set()

    place.door.faults.append(Fault(ALTER, late))
    monkeypatch.setattr("calve.catalog.hive.ANSWER_SECONDS", 3)
    with pytest.raises(CommitUnknown):
        sample.commit({2: "b"})
    assert len(place.locks()) == 1
    with pytest.raises(TransientError) as raised:
        sample.commit({3: "c"})
    assert type(raised.value) is TransientError, "it was not sent"
    assert raised.value.hint.startswith("Another process holds the lock on the table")
    goes_on.set()
    is_done.wait()
    sample.commit({4: "d"})
    assert sample.rows() == {1: "a", 2: "b", 4: "d"}
    assert not place.locks()


def test_a_table_is_not_replaced_after_its_lock_expired(place: Place, tmp_path: Path) -> None:
    sample = Sample(tmp_path, opened=place.catalog)
    sample.commit({1: "a"})
    before = place.door.seen.count(ALTER)

    def expired(forward: Forward) -> Any:
        (lock,) = place.locks()
        place.unlock(lock.lockid)
        return forward()

    place.door.faults.append(Fault("check_lock", expired))
    with pytest.raises(CommitConflict, match="conflicted with another change of the table") as raised:
        sample.commit({2: "b"})
    assert "the lock expired before the table could be replaced" in raised.value.detail
    assert place.door.seen.count(ALTER) == before
    sample.commit({3: "c"})
    assert sample.rows() == {1: "a", 3: "c"}
