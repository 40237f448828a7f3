"""Numbers that others wrote: a text that Python nearly takes for a number must not stop anything."""

import logging
from dataclasses import replace
from datetime import timedelta

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from calve import metrics
from calve.catalog.rest import ANSWER_MS, CONNECT_MS, _time_outs
from calve.errors import InvalidInput
from calve.iceberg import describe
from calve.iceberg.files.options import file_options
from calve.iceberg.snapshot.history import new_summary
from calve.model import progress
from calve.model.health import Status
from calve.model.instants import instant_ms
from calve.model.numbers import number_property, whole_number
from calve.model.spec import WriteOptions
from calve.pipeline.spark_log import behind
from calve.sql.parser import parse
from calve.sql.values import parse_duration
from calve.storage.filesystems import expires_soon
from calve.view.totals import TotalsPiece

ODD = ["", "²", "5²", "٣", "1_000", "+5", "-5", "--5", "5.0", "0x5", "1e3", "9" * 5000, str(2**63)]
"""`isdigit` accepts the second and third and `int` fails; `int` fails for the long one; both take `٣`."""


def test_a_number_is_ascii_digits_that_fit_into_64_bits() -> None:
    assert [whole_number(text) for text in ODD] == [None] * len(ODD)
    assert [whole_number(text) for text in ("0", "007", str(2**63 - 1))] == [0, 7, 2**63 - 1]


@pytest.mark.parametrize("text", ODD)
def test_an_invalid_property_is_the_default_and_a_warning_once(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = [number_property({"write.some-limit": text}, "write.some-limit", 7) for _ in range(3)]
    assert found == [7, 7, 7]
    assert [r.message for r in caplog.records] == ["invalid property is ignored"]
    assert number_property({}, "write.some-limit", 7) == 7
    assert number_property({"write.some-limit": " 12 "}, "write.some-limit", 7) == 12


@pytest.mark.parametrize("text", ODD)
def test_no_odd_number_stops_its_reader(text: str) -> None:
    assert file_options(WriteOptions(), {"write.target-file-size-bytes": text}) == file_options(WriteOptions(), {})
    assert _time_outs({CONNECT_MS: text, ANSWER_MS: "5000"}) == (10.0, 5.0)
    assert not expires_soon({"s3.session-token-expires-at-ms": text}, since_ms=0, now_ms=0)
    assert "." in text or TotalsPiece.parse(f"end.start.{text}.parquet") is None
    assert behind(f'[{{"t": {{"{text}": 7}}}}]', f'[{{"t": {{"{text}": 6}}}}]') == ""


@pytest.mark.parametrize("text", [text for text in ODD if text != "-5"])
def test_an_odd_number_is_no_point_in_time(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a point in time"):
        instant_ms(text)
    assert replace(Status.unknown("s", 0), frontier=f"[{text}]").committed_up_to is None
    assert metrics._frontier(f"[{text}]") is None


@pytest.mark.parametrize("text", ODD)
def test_an_odd_count_of_another_writer_is_none(text: str) -> None:
    assert describe._count({"deleted-records": text}, "deleted-records") == 0
    assert progress._count(text) == 0


def test_a_total_that_is_no_number_stays_unknown() -> None:
    parent = Snapshot.model_validate(
        {
            "snapshot-id": 1,
            "sequence-number": 1,
            "timestamp-ms": 1,
            "manifest-list": "list",
            "summary": Summary(Operation.APPEND, **{"total-records": "²", "total-data-files": "4"}),
        }
    )
    totals = new_summary(Operation.APPEND, {"added-data-files": 1}, parent, {}).additional_properties
    assert totals["total-data-files"] == "5"
    assert "total-records" not in totals


def test_sql_takes_ascii_digits_only() -> None:
    assert parse_duration("3s") == timedelta(seconds=3)
    for digits in ("٣", "²"):
        with pytest.raises(InvalidInput):
            parse_duration(f"{digits}s")
    with pytest.raises(InvalidInput):
        parse("CREATE SINK s FROM t TO ICEBERG CATALOG lake NAMESPACE n TABLE t WITH (MAX PENDING BATCHES = ٣)")
