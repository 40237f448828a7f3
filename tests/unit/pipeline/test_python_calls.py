"""Calls of the Python interface that cannot work: each says what is wrong and how to write it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import calve
from calve.errors import InvalidInput
from calve.lake import connect


def test_a_table_by_its_name_alone_is_refused() -> None:
    with pytest.raises(InvalidInput, match="into must be a table of a lake") as raised:
        calve.sink(calve.orders(rows=1), name="r", into=cast("Any", "shop.r"), key=["id"])
    assert raised.value.hint == 'Write into=calve.connect().table("shop.r").'


@pytest.mark.parametrize("envelope", [calve.NoEnvelope, calve.Upsert, calve.Debezium])
def test_an_order_is_not_a_text(envelope: Any) -> None:
    with pytest.raises(InvalidInput, match="order_by is a tuple of fields") as raised:
        envelope(order_by="seq")
    assert (raised.value.detail, raised.value.hint) == ('Got "seq".', 'Write order_by=("seq",).')


def test_columns_that_are_not_a_text_are_refused_at_once() -> None:
    for wrong, hint in ((3, ""), (["id", "amount"], 'Write columns="id, amount".')):
        for envelope in (calve.Upsert, calve.Debezium, lambda columns: calve.Diff("t", "d", columns=columns)):
            with pytest.raises(InvalidInput, match="columns must be a string") as raised:
                envelope(columns=wrong)  # type: ignore[arg-type]
            assert raised.value.hint == hint


def test_an_unknown_type_of_catalogs_is_refused_at_once() -> None:
    with pytest.raises(InvalidInput, match='invalid catalog type "rst"') as raised:
        calve.connect(type="rst", uri="http://localhost")
    assert raised.value.hint == 'Did you mean "rest"?'


def test_an_unknown_property_of_a_catalog_is_refused_with_the_one_that_was_meant(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match='unknown property "typ" of a catalog') as raised:
        connect(typ="rest", uri="http://localhost")
    assert raised.value.hint == 'Did you mean "type"?'
    with pytest.raises(InvalidInput, match="a catalog needs a type or an address"):
        connect(warehouse="s3://bucket")
    found = connect(home=tmp_path, type="rest", uri="http://localhost", oauth2_server_uri="x", **{"s3.anything": "1"})
    assert found.properties["oauth2-server-uri"] == "x"


def test_a_home_and_properties_of_wrong_types_are_refused_and_not_shown() -> None:
    wrong: Any = 3
    with pytest.raises(InvalidInput, match="home must be a folder"):
        connect(home=wrong)
    with pytest.raises(InvalidInput, match='property "token" of a catalog must be a string') as raised:
        connect(type="rest", uri="http://localhost", token=wrong)
    assert raised.value.detail == "Got a value of type int."


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidInput) as raised:
        call()
    return raised.value.primary


def test_changes_are_a_frame_or_a_source(tmp_path: Path) -> None:
    into = connect(home=tmp_path).table("shop.r")
    wrong: list[Any] = [None, "in/orders", 5]
    for changes in wrong:
        primary = refused(partial(calve.sink, changes, name="r", into=into, key=["id"]))
        assert primary == "changes must be a DataFrame or a source"


@pytest.mark.parametrize(
    ("wrong", "primary"),
    [
        ({"key": 5}, "key must be a list of columns"),
        ({"key": [5]}, "key must be a list of columns"),
        ({"key": [""]}, "key must be a list of columns"),
        ({"key": ["id", "id"]}, 'the key contains column "id" twice'),
        ({"name": None}, "calve.sink: name must be a string"),
        ({"name": "a b"}, '"a b" is not a valid name for a sink'),
        ({"mode": ["upsert"]}, "calve.sink: mode must be a string"),
        ({"mode": "insert"}, 'unknown mode "insert"'),
    ],
)
def test_what_makes_a_sink_is_looked_at(tmp_path: Path, wrong: dict[str, Any], primary: str) -> None:
    right: dict[str, Any] = {"name": "r", "into": connect(home=tmp_path).table("shop.r"), "key": ["id"]}
    assert refused(lambda: calve.sink(calve.orders(rows=1), **right | wrong)) == primary


@pytest.mark.parametrize("duration", [-1, float("nan"), float("inf"), 1e12, 0.0001, True, [], "soon"])
def test_a_duration_is_a_time_of_at_least_a_millisecond(tmp_path: Path, duration: Any) -> None:
    sink = calve.sink(calve.orders(rows=1), name="r", into=connect(home=tmp_path).table("shop.r"), key=["id"])
    assert "is not a duration" in refused(lambda: sink.start(commit_interval=duration))
    assert "is not a duration" in refused(lambda: sink.start(commit_interval="20m", checkpoint_interval=duration))
    assert "is not a duration" in refused(lambda: sink.commits(heartbeat=duration))
    assert "is not a duration" in refused(lambda: sink.times("at", watermark_delay=duration))
    assert "is not a duration" in refused(lambda: sink.times("at", idle_timeout=duration))


def test_a_heartbeat_is_not_a_stream_of_snapshots(tmp_path: Path) -> None:
    sink = calve.sink(calve.orders(rows=1), name="r", into=connect(home=tmp_path).table("shop.r"), key=["id"])
    assert refused(lambda: sink.commits(heartbeat=0)) == "heartbeat must be at least a second"


@pytest.mark.parametrize(
    "option",
    ["version", "target_file_size", "row_group_size", "max_pending_batches", "max_staged_size"],
)
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_numbers_and_sizes_are_whole_and_positive(tmp_path: Path, option: str, value: Any) -> None:
    sink = calve.sink(calve.orders(rows=1), name="r", into=connect(home=tmp_path).table("shop.r"), key=["id"])
    assert refused(lambda: sink.options(**{option: value})) == f"{option} must be at least 1"


def test_a_codec_is_one_that_the_options_name(tmp_path: Path) -> None:
    sink = calve.sink(calve.orders(rows=1), name="r", into=connect(home=tmp_path).table("shop.r"), key=["id"])
    assert refused(lambda: sink.options(compression="foo")) == 'invalid value compression="foo"'
    assert sink.options(compression="lz4").spec.write.compression == "lz4"


def test_tables_and_files_are_named_by_texts(tmp_path: Path) -> None:
    lake = connect(home=tmp_path)
    assert refused(lambda: lake.table(cast("Any", 5))) == "Lake.table: name must be a string"
    primary = "path must be a folder, a pattern or a URI"
    assert refused(lambda: calve.files(cast("Any", b"in"), format="text")) == primary
    assert refused(lambda: calve.files("", format="text")) == primary
    most = cast("Any", "5")
    refused(lambda: calve.files("in", format="text", max_files_per_checkpoint=most))
    session = cast("Any", None)
    primary = "calve.read takes a Spark session and a table of a lake"
    assert refused(lambda: calve.read(session, lake.table("shop.r"))) == primary


def test_spark_connect_is_refused_with_a_hint(tmp_path: Path) -> None:
    class Frame:
        __module__ = "pyspark.sql.connect.dataframe"

    lake = calve.connect(home=tmp_path)
    with pytest.raises(InvalidInput, match="Spark Connect is not supported") as caught:
        calve.sink(Frame(), name="s", into=lake.table("a.b"), key=["id"])  # type: ignore[arg-type]
    assert "classic" in caught.value.hint
