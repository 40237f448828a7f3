"""Other writers on the same table: foreign commits, newer epochs, zombies, races."""

import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchTableError

import calve
from calve.clock import RandomIds, SystemClock, sink_id_of
from calve.errors import CheckpointGap, FencedError, ForeignCommit, TableRecreated, TableRolledBack
from calve.iceberg.sink_table import IcebergTable
from calve.lake import Lake
from calve.model.frontier import Frontier
from calve.model.progress import Fence, Progress, property_key
from calve.model.table import Proposal
from calve.pipeline.query import Query, exit_code
from calve.pipeline.sink import Sink as Definition
from calve.source.generator import OrderRow, expected_orders, orders
from tests.faults.conftest import MakeSink
from tests.faults.harness import Sink, finished, rows_of
from tests.faults.where import Where
from tests.support.changes import at

ORDERS = orders(rows=300, changes=700, per_checkpoint=200)


def definition(lake: Lake, where: Where, on_foreign_commit: str | None = None) -> Definition:
    sink = calve.sink(ORDERS, name="orders", into=lake.table("shop.orders"), key=["id"])
    return sink.options(deletes=where.deletes, format_version=where.format_version, on_foreign_commit=on_foreign_commit)


def append_row(lake: Lake, key: int) -> None:
    table = lake.open().load_table("shop.orders")
    schema = table.schema().as_arrow()
    row = {"id": key, "customer": 1, "amount": None, "status": "foreign", "updated_at": None}
    table.append(pa.Table.from_pylist([row], schema=schema))


def rewrite_manifests(lake: Lake) -> None:
    """A foreign `replace`: the same rows under merged manifests."""
    other = as_sink(lake, "somebody-else")
    assert other.merge_manifests(other.load())


def as_sink(lake: Lake, sink_id: str) -> IcebergTable:
    return IcebergTable(lake.open().load_table("shop.orders"), sink_id, ["id"], SystemClock(), RandomIds())


SINK_ID = sink_id_of("orders", "shop.orders")


def contents(lake: Lake, where: Where) -> dict[int, OrderRow]:
    return rows_of(where.rows(lake.open().load_table("shop.orders").metadata_location))


def completed(query: Query) -> None:
    assert query.await_termination(120)


@pytest.mark.representative
@pytest.mark.parametrize("nth", [4, pytest.param(5, marks=pytest.mark.soak)])
def test_a_rewrite_between_load_and_commit_is_a_conflict_that_is_retried(
    lake: Lake, where: Where, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calve.iceberg.snapshot.draft.FAN_IN", 2)
    at("commit.before", nth, lambda: rewrite_manifests(lake))
    completed(definition(lake, where).start())
    assert contents(lake, where) == expected_orders(ORDERS, 1000)


@pytest.mark.version_2  # pyiceberg, the other writer, does not write version 3
@pytest.mark.filterwarnings("ignore:Merge on read is not yet supported")
@pytest.mark.parametrize("operation", ["append", "delete", "overwrite"])
def test_a_foreign_change_of_rows_halts_the_sink_and_names_the_snapshot(
    lake: Lake, where: Where, operation: str
) -> None:
    def interfere() -> None:
        table = lake.open().load_table("shop.orders")
        if operation == "append":
            append_row(lake, 10**9)
        elif operation == "delete":
            table.delete("id >= 0")
        else:
            schema = table.schema().as_arrow()
            row = {"id": 1, "customer": 1, "amount": None, "status": "foreign", "updated_at": None}
            table.overwrite(pa.Table.from_pylist([row], schema=schema), overwrite_filter="id = 1")

    at("commit.before", 3, interfere)  # after the first batch: pyiceberg refuses tables with equality deletes
    query = definition(lake, where).start()
    with pytest.raises(ForeignCommit, match="was not committed by this sink"):
        completed(query)
    assert (query.status().health, exit_code(query)) == ("halted", 1)


@pytest.mark.version_2  # pyiceberg, the other writer, does not write version 3
@pytest.mark.representative
def test_accepted_foreign_rows_stay_and_the_stream_goes_on(lake: Lake, where: Where) -> None:
    at("commit.before", 3, lambda: append_row(lake, 10**9))
    completed(definition(lake, where, on_foreign_commit="accept").start())
    found = contents(lake, where)
    assert found.pop(10**9)[3] == "foreign"
    assert found == expected_orders(ORDERS, 1000)


def forge(lake: Lake, **values: object) -> None:
    """Commit an empty snapshot of this sink, as another run of it would."""
    table = as_sink(lake, SINK_ID)
    state = table.load()
    assert state.stated is not None
    table.commit(state, Proposal(replace(state.stated, **values)))  # type: ignore[arg-type]


@pytest.mark.representative
@pytest.mark.parametrize("nth", [pytest.param(2, marks=pytest.mark.soak), 4])
def test_a_newer_epoch_in_the_table_fences_the_run_at_once(lake: Lake, where: Where, nth: int) -> None:
    at("commit.before", nth, lambda: forge(lake, fence=Fence(1, 99, "newer")))
    query = definition(lake, where).start()
    with pytest.raises(FencedError, match="epoch 99"):
        completed(query)
    assert (query.status().health, exit_code(query)) == ("fenced", 3)
    head = lake.open().load_table("shop.orders").current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.summary["calve.run-id"] == "newer", "a fenced run writes nothing more"


def test_a_peer_that_committed_a_prefix_of_the_batch_fences_it(lake: Lake, where: Where) -> None:
    """Lower < the peer's frontier < upper: the batch must not be committed on top, even under the same fence."""

    def interfere() -> None:
        stated = as_sink(lake, SINK_ID).load().stated
        assert stated is not None
        assert stated.frontier.time is not None
        forge(lake, frontier=Frontier(stated.frontier.time + 1), commit_id="prefix")

    at("commit.before", 3, interfere)
    with pytest.raises(CheckpointGap, match="does not start at the table's frontier"):
        completed(definition(lake, where).start())


@pytest.mark.representative
def test_a_rollback_under_a_running_sink_halts_it(lake: Lake, where: Where) -> None:
    def interfere() -> None:
        table = lake.open().load_table("shop.orders")
        first = table.snapshots()[1].snapshot_id
        table.manage_snapshots().rollback_to_snapshot(first).commit()

    at("commit.before", 4, interfere)
    with pytest.raises(TableRolledBack):
        completed(definition(lake, where).start())


@pytest.mark.version_2  # pyiceberg, the other writer, does not write version 3
def test_a_table_that_was_dropped_and_created_again_halts_the_sink(lake: Lake, where: Where) -> None:
    query = definition(lake, where).start()
    completed(query)
    catalog = lake.open()
    schema = catalog.load_table("shop.orders").schema()
    catalog.drop_table("shop.orders")
    catalog.create_table("shop.orders", schema)
    with pytest.raises(TableRecreated, match="dropped and created again"):
        definition(lake, where).start()


def test_a_lost_property_is_replaced_by_the_records(lake: Lake, where: Where) -> None:
    query = definition(lake, where).start()
    completed(query)
    table = lake.open().load_table("shop.orders")
    key = next(k for k in table.properties if k.startswith(property_key("")))
    assert Progress.from_property(table.properties[key]).frontier.sealed
    with table.transaction() as change:
        change.remove_properties(key)
    again = definition(lake, where).start()
    assert again.status().health == "sealed"


def test_a_zombie_that_wakes_up_after_its_successor_is_fenced_and_writes_nothing(
    make_sink: MakeSink, tmp_path: Path
) -> None:
    sink = make_sink("orders")
    gate = tmp_path / "gate"
    gate.touch()
    zombie = sink.spawn("commit.before:4=pause", CALVE_FAULTS_GATE=str(gate))
    wait_for_commits(sink, 2)
    successor = sink.run()
    assert successor.code == 0, successor.stderr
    before = sink.table().metadata_location
    gate.unlink()
    ended = finished(zombie)
    assert ended.code == 3, ended.stderr
    assert ended.report["error"] == "FencedError"
    assert sink.table().metadata_location == before
    sink.check()


def wait_for_commits(sink: Sink, count: int) -> None:
    """Until the table has that many snapshots with progress beyond the claim."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if len(sink.table().snapshots()) > count:
                return
        except NoSuchTableError:
            pass
        time.sleep(0.2)
    raise AssertionError("the sink did not get going")
