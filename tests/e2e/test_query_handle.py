"""The handle of a running sink: a context manager with a readable repr."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import calve


def test_leaving_the_context_stops_the_sink_and_the_handle_says_what_happened(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert spark.version
    lake = calve.connect(home=tmp_path)
    changes = calve.orders(rows=20, changes=0, per_checkpoint=20)
    with calve.sink(changes, name="orders", into=lake.table("shop.orders"), key=["id"]).start() as query:
        query.await_caught_up(60)
        assert "shop.orders" in repr(query)
        assert "1" in repr(query)
        assert query.status().last_commit is not None
    assert not query.active
    assert repr(query).startswith("<Query orders: ")
    assert "<td>shop.orders</td>" in query._repr_html_()
    again = calve.sink(changes, name="orders", into=lake.table("shop.orders"), key=["id"])
    with pytest.raises(ZeroDivisionError), again.start() as other:
        _ = 1 // 0
    assert not other.active
