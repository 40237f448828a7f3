"""Upserts as JSON, in plain Python: random histories against a dictionary."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T  # noqa: N812

from calve.envelope.fields import LATEST_MS
from calve.envelope.upsert_records import UpsertReader
from calve.errors import decode
from calve.model.change import letter_of
from calve.records.scalars import Settings

TABLE = T.StructType(
    [
        T.StructField("v", T.IntegerType()),
        T.StructField("a", T.LongType(), nullable=False),
        T.StructField("b", T.StringType(), nullable=False),
    ]
)
KEY = ("a", "b")


def read(*records: tuple[Any, Any], order_by: tuple[str, ...] = (), timed: bool = False) -> list[list[Any]]:
    """Rows as (v, a, b, text of op, gone, order..., offset, partition, error of key, error of the rest)."""
    reader = UpsertReader(TABLE, KEY, (("op",),), order_by, Settings(), ("offset", "partition"), timed=timed)
    count = len(records)

    def data(value: Any) -> bytes | None:
        return None if value is None else json.dumps(value).encode()

    columns: dict[str, list[Any]] = {
        "key": [data(k) for k, _ in records],
        "value": [data(v) for _, v in records],
        "topic": ["t"] * count,
        "partition": [0] * count,
        "offset": list(range(count)),
    }
    return list(reader.rows()(columns, count))


def test_columns_stand_in_the_tables_order_wherever_the_key_is() -> None:
    (row,) = read((None, {"b": "x", "a": 1, "v": 5, "op": "u"}))
    assert row == [5, 1, "x", "u", False, 0, 0, None, None]


def test_a_null_value_deletes_by_all_columns_of_the_key() -> None:
    found = read(({"a": 1, "b": "x"}, None), ({"a": 1}, None), (7, None))
    assert found[0] == [None, 1, "x", None, True, 0, 0, None, None]
    assert ['"b" is missing' in str(decode(found[1][-2])), '"a" is missing' in str(decode(found[2][-2]))] == [
        True,
        True,
    ]


def test_an_error_outside_the_key_is_kept_apart_for_deletes() -> None:
    (row,) = read((None, {"a": 1, "b": "x", "v": "five", "op": "d"}))
    assert row[1:4] == [1, "x", "d"]
    assert row[-2] is None
    assert '"v" is "five"' in str(decode(row[-1]))


def test_texts_of_the_condition_are_texts_whatever_json_says() -> None:
    values: list[Any] = ["d", 1, 1.50, True, None, {"x": [1]}]
    found = read(*((None, {"a": 1, "b": "x", "op": value}) for value in values))
    assert [row[3] for row in found] == ["d", "1", "1.5", "true", None, '{"x":[1]}']


def test_order_fields_are_typed_when_they_are_declared() -> None:
    (row,) = read((None, {"a": 1, "b": "x", "v": 3, "n": "17"}), order_by=("v", "n"))
    assert row[5:-2] == [3, Decimal("17.000000000"), "", 0, 0]


@pytest.mark.parametrize("time", [None, "soon", True, [1], LATEST_MS + 1, 2**63, -(2**63) - 1])
def test_a_record_from_kafka_without_a_usable_time_is_a_letter_with_its_place(time: Any) -> None:
    record = {"a": 1, "b": "x", "at": time}
    (row,) = read((None, record), order_by=("at",), timed=True)
    found = letter_of(row[-2])
    assert found is not None
    assert (found.origin.topic, found.origin.offset, found.origin.value) == ("t", 0, json.dumps(record).encode())
    assert 'the time "at" of a record is not a' in str(found.error) or time is None
    assert row[:3] == [None] * 3, "nothing of it is left that could move a frontier"


def test_times_may_be_undeclared_declared_or_texts_of_numbers() -> None:
    records = [{"a": 1, "b": "x", "at": time} for time in (0, "17", LATEST_MS)]
    assert all(row[-2] is None for row in read(*[(None, r) for r in records], order_by=("at",), timed=True))
    good, bad = read((None, {"a": 17, "b": "x"}), (None, {"a": LATEST_MS + 1, "b": "x"}), order_by=("a",), timed=True)
    assert (good[-2], "up to the year 9999" in str(decode(bad[-2]))) == (None, True)


STEPS = st.lists(
    st.tuples(
        st.integers(1, 3), st.sampled_from("xy"), st.one_of(st.integers(0, 9), st.sampled_from(["null", "flag"]))
    ),
    max_size=30,
)


@given(STEPS, st.randoms(use_true_random=False))
def test_the_rows_of_any_history_give_its_table(steps: list[tuple[int, str, Any]], shuffled: Any) -> None:
    model: dict[tuple[int, str], int] = {}
    records: list[tuple[Any, Any]] = []
    for a, b, what in steps:
        key = {"a": a, "b": b}
        if isinstance(what, int):
            records.append((key, key | {"v": what, "op": "u"}))
            model[a, b] = what
        else:
            records.append((key, None if what == "null" else key | {"op": "d"}))
            model.pop((a, b), None)
    rows = read(*records)
    shuffled.shuffle(rows)
    table: dict[tuple[int, str], int] = {}
    for v, a, b, op, gone, *_ in sorted(rows, key=lambda r: r[5:7]):
        if gone or op == "d":
            table.pop((a, b), None)
        else:
            table[a, b] = v
    assert table == model
    assert all(row[-2:] == [None, None] for row in rows)
