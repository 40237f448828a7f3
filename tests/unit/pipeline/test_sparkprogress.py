"""What Spark says of a running query, as Spark 3.5 and Spark 4 tell it."""

from typing import Any

import pytest

from calve.pipeline.spark_log import unread_of, waits_for_data


@pytest.mark.parametrize(
    ("end", "latest", "unread"),
    [
        ({"t": {"0": 5, "1": 7}}, {"t": {"0": 9, "1": 7}}, 4),
        ('{"t":{"0":5}}', '{"t":{"0":5}}', 0),
        ('{"t":{"0":5}}', '{"t":{"0":6,"1":3}}', 4),
        ('{"offset":3}', '{"offset":9}', 1),
        ("3", "3", 0),
        ("{not json", "{not json", 0),
        ('{"logOffset":3}', "None", None),
        ({"logOffset": 3}, None, None),
    ],
)
def test_what_a_source_has_beside_a_batch_is_known_if_it_says_so(end: Any, latest: Any, unread: int | None) -> None:
    assert unread_of([{"endOffset": end, "latestOffset": latest}]) == unread


def test_one_source_that_says_nothing_leaves_it_unknown() -> None:
    known, unknown = {"endOffset": "1", "latestOffset": "1"}, {"endOffset": "1", "latestOffset": None}
    assert unread_of([known, known]) == 0
    assert unread_of([known, unknown]) is None


@pytest.mark.parametrize(
    ("message", "available", "waits"),
    [
        ("Waiting for data to arrive", False, True),
        ("Waiting for next trigger", False, True),
        ("Waiting for next trigger", True, False),
        ("Getting offsets from KafkaV2[Subscribe[t]]", False, False),
        ("Initializing sources", False, False),
        ("Processing new data", True, False),
    ],
)
def test_spark_waits_for_data_only_after_its_sources_had_none(message: str, *, available: bool, waits: bool) -> None:
    assert waits_for_data({"message": message, "isDataAvailable": available}) == waits
