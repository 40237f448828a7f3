"""Calls of the Python interface that cannot work: each says what is wrong and how to write it."""

from pathlib import Path
from typing import Any, cast

import pytest

import calve
from calve.errors import InvalidInput
from calve.runtime.lake import connect


def test_a_table_by_its_name_alone_is_refused() -> None:
    with pytest.raises(InvalidInput, match="into is a table of a lake") as raised:
        calve.sink(calve.orders(rows=1), name="r", into=cast("Any", "shop.r"), key=["id"])
    assert raised.value.hint == 'Write into=calve.connect().table("shop.r").'


@pytest.mark.parametrize("envelope", [calve.NoEnvelope, calve.Upsert, calve.Debezium])
def test_an_order_is_not_a_text(envelope: Any) -> None:
    with pytest.raises(InvalidInput, match="order_by is a tuple of fields") as raised:
        envelope(order_by="seq")
    assert (raised.value.detail, raised.value.hint) == ('Got "seq".', 'Write order_by=("seq",).')


def test_an_unknown_property_of_a_catalog_is_refused_with_the_one_that_was_meant(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match='unknown property "typ" of a catalog') as raised:
        connect(typ="rest", uri="http://localhost")
    assert raised.value.hint == 'Did you mean "type"?'
    with pytest.raises(InvalidInput, match="a catalog needs a type or an address"):
        connect(warehouse="s3://bucket")
    found = connect(home=tmp_path, type="rest", uri="http://localhost", oauth2_server_uri="x", **{"s3.anything": "1"})
    assert found.properties["oauth2-server-uri"] == "x"
