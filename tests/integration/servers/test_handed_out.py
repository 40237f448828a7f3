"""What a catalog hands out with a table: credentials of its files, and a location that may be odd."""

from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from calve.catalog.connect import Catalog
from calve.clock import RandomIds, SystemClock
from calve.iceberg.files.store import open_output
from calve.iceberg.sink_table import IcebergTable
from calve.lake import connect
from calve.model.files import WriteTarget
from calve.model.spec import WriteOptions
from tests.support.servers.lakehouse import Lakehouse, new_namespace
from tests.support.servers.listening import Request
from tests.support.servers.proxy import Fault, edited
from tests.support.servers.store import KEY, REGION, SECRET

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True))
HANDED_OUT = {"s3.access-key-id": KEY, "s3.secret-access-key": SECRET, "s3.session-token": "for-an-hour"}


def loads(request: Request) -> bool:
    return request.method == "GET" and "/tables/" in request.path


def create(lakehouse: Lakehouse) -> str:
    catalog, namespace = connect(**lakehouse.properties).open(), new_namespace()
    catalog.create_namespace(namespace)
    catalog.create_table(f"{namespace}.t", SCHEMA)
    return f"{namespace}.t"


def hand_out(lakehouse: Lakehouse, change: Callable[[dict[str, Any]], None]) -> None:
    lakehouse.catalog_proxy.faults.append(Fault(loads, edited(change), times=100))


def target_of(catalog: Catalog, table: str) -> WriteTarget:
    return IcebergTable(catalog.load_table(table), "sink", ["id"], SystemClock(), RandomIds()).write_target(
        WriteOptions()
    )


def write(target: WriteTarget) -> None:
    with open_output(f"{target.data_location}/x", target.io_properties) as out:
        out.write(b"x")


@pytest.fixture
def without_keys(lakehouse: Lakehouse) -> dict[str, str]:
    return {"type": "rest", "uri": lakehouse.catalog_proxy.uri, "s3.endpoint": lakehouse.store.uri, "s3.region": REGION}


def test_credentials_that_the_catalog_hands_out_open_the_store(
    lakehouse: Lakehouse, without_keys: dict[str, str]
) -> None:
    table = create(lakehouse)
    hand_out(lakehouse, lambda answer: answer.update(config=HANDED_OUT))
    lakehouse.store.signatures.session_tokens |= {"for-an-hour"}
    write(target_of(connect(**without_keys).open(), table))


def test_credentials_of_the_user_win_over_those_that_are_handed_out(
    lakehouse: Lakehouse, without_keys: dict[str, str]
) -> None:
    table = create(lakehouse)
    hand_out(lakehouse, lambda answer: answer.update(config=HANDED_OUT))
    own = {"s3.access-key-id": KEY, "s3.secret-access-key": SECRET}
    target = target_of(connect(**without_keys, **own).open(), table)
    assert "for-an-hour" not in target.io_properties.values()
    write(target)


@pytest.mark.parametrize(("lifetime_ms", "questions"), [(60_000, 2), (3_600_000, 1)])
def test_credentials_that_expire_soon_are_asked_for_again(
    lifetime_ms: int, questions: int, lakehouse: Lakehouse, without_keys: dict[str, str]
) -> None:
    table = create(lakehouse)
    end = str(SystemClock().now_ms() + lifetime_ms)
    hand_out(lakehouse, lambda answer: answer.update(config={**HANDED_OUT, "s3.session-token-expires-at-ms": end}))
    lakehouse.catalog_proxy.seen.clear()
    target_of(connect(**without_keys).open(), table)
    assert sum(map(loads, lakehouse.catalog_proxy.seen)) == questions


class LaterClock(SystemClock):
    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@pytest.mark.parametrize(("age_ms", "questions"), [(660_000, 2), (500_000, 1)])
def test_credentials_whose_end_is_not_told_are_asked_for_again_after_a_while(
    age_ms: int, questions: int, lakehouse: Lakehouse, without_keys: dict[str, str]
) -> None:
    name, clock = create(lakehouse), LaterClock()
    hand_out(lakehouse, lambda answer: answer.update(config=HANDED_OUT))
    lakehouse.catalog_proxy.seen.clear()
    table = IcebergTable(connect(**without_keys).open().load_table(name), "sink", ["id"], clock, RandomIds())
    clock.ahead_ms = age_ms
    table.write_target(WriteOptions())
    assert sum(map(loads, lakehouse.catalog_proxy.seen)) == questions


def test_a_catalog_that_names_the_metadata_file_as_the_location_gets_files_beside_it(lakehouse: Lakehouse) -> None:
    table = create(lakehouse)
    catalog = connect(**lakehouse.properties).open()
    location = catalog.load_table(table).location()
    hand_out(lakehouse, lambda answer: answer["metadata"].update(location=answer["metadata-location"]))
    assert target_of(catalog, table).data_location == f"{location}/data"


def test_a_small_file_is_one_request(lakehouse: Lakehouse) -> None:
    target = target_of(connect(**lakehouse.properties).open(), create(lakehouse))
    lakehouse.store.proxy.seen.clear()
    write(target)
    assert [request.method for request in lakehouse.store.proxy.seen] == ["PUT"]
