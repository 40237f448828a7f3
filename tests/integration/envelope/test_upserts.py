"""Upserts and plain rows: as columns of a frame, and as JSON from Kafka."""

import json
import random
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as T  # noqa: N812

from calve.envelope.envelopes import changes_of, check_envelope, table_schema
from calve.errors import BadRow, InvalidInput, decode
from calve.model.change import BAD, DELETE, OP, UPSERT, order_columns, table_columns
from calve.model.spec import EpochUnit, NoEnvelope, Upsert

KAFKA = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
ORDERS = "id INT, s STRING, seq INT, op STRING"
BY_SEQ = Upsert(order_by=("seq",), delete_when="op = 'd'", columns="id, s")
COLUMNS = "id INT NOT NULL, amount DECIMAL(12,2), at TIMESTAMP"


def kafka(spark: SparkSession, records: Sequence[tuple[Any, Any]]) -> DataFrame:
    def data(value: Any) -> bytes | None:
        text = value if value is None or isinstance(value, str) else json.dumps(value)
        return None if text is None else text.encode()

    rows = [(data(k), data(v), "orders", 0, i, None) for i, (k, v) in enumerate(records)]
    return spark.createDataFrame(rows, KAFKA)


def problems(rows: Sequence[Row]) -> list[str]:
    errors = [decode(r[BAD]) for r in rows if r[BAD] is not None]
    assert all(isinstance(e, BadRow) for e in errors)
    return [str(e) for e in errors]


def last_of_each_key(frame: DataFrame, key: str = "id") -> dict[Any, tuple[Any, ...]]:
    """What a writer keeps, computed in Python."""
    orders, columns = order_columns(frame.columns), table_columns(frame.columns)
    table: dict[Any, tuple[Any, ...]] = {}
    for row in sorted(frame.collect(), key=lambda r: tuple(r[o] for o in orders)):
        assert row[BAD] is None
        if row[OP] == DELETE:
            assert all(row[c] is None for c in columns if c != key)
            table.pop(row[key], None)
        else:
            table[row[key]] = tuple(row[c] for c in columns)
    return table


def test_the_greatest_order_value_wins_and_the_condition_deletes(spark: SparkSession) -> None:
    rows = [(1, "b", 2, "u"), (1, "a", 1, "u"), (2, "x", 3, "u"), (2, "y", 4, "d"), (3, "z", 5, None)]
    changes = changes_of(spark.createDataFrame(rows, ORDERS), BY_SEQ, ["id"])
    assert changes.columns == ["id", "s", OP, "_calve_order_0", "_calve_order_1", BAD]
    assert changes.schema[OP].dataType == T.ByteType()
    assert last_of_each_key(changes) == {1: (1, "b"), 3: (3, "z")}


def test_rows_without_key_or_order_are_bad_and_carry_nothing_else(spark: SparkSession) -> None:
    rows = [(None, "x", 1, "u"), (2, "⟧ \"quoted\" 'twice' \\ ⟦", None, "u"), (None, "z", 3, "d"), (4, "fine", 4, "u")]
    found = changes_of(spark.createDataFrame(rows, ORDERS), BY_SEQ, ["id"]).collect()
    bad = [r for r in found if r[BAD] is not None]
    assert len(bad) == 3
    assert all(r.id is None and r.s is None and r["_calve_order_0"] is None for r in bad)
    texts = problems(found)
    assert 'column "id" is missing or null' in texts[0]
    assert 'order field "seq" is missing or null' in texts[1]
    assert "twice" in texts[1]
    assert [r.id for r in found if r[BAD] is None] == [4]


def test_nested_fields_order_and_stay_out_of_the_table(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(1, "new", (2, True)), (1, "old", (1, False))], "id INT, s STRING, m STRUCT<n: INT, x: BOOLEAN>"
    )
    envelope = Upsert(order_by=("m.n",), delete_when="m.x is null", columns="s, id")
    changes = changes_of(frame, envelope, ["id"])
    assert table_columns(changes.columns) == ["s", "id"]
    assert last_of_each_key(changes) == {1: ("new", 1)}


def test_declared_types_are_kept_exactly_or_the_row_is_bad(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(1, 1.5, "7", 1), (2, 1.555, "7", 2), (3, 1.0, "x", 3), (4, None, None, 4)],
        "id INT, amount DOUBLE, n STRING, seq INT",
    )
    envelope = Upsert(order_by=("seq",), columns="id BIGINT NOT NULL, amount DECIMAL(12,2), n INT NOT NULL")
    check_envelope(frame.schema, envelope, ["id"])
    assert table_schema(frame.schema, envelope, ["id"])["n"].nullable is False
    found = changes_of(frame, envelope, ["id"]).collect()
    assert [(r.id, r.amount, r.n) for r in found if r[BAD] is None] == [(1, Decimal("1.50"), 7)]
    texts = problems(found)
    assert ["1.555" in texts[0], '"x"' in texts[1], '"n" is missing' in texts[2]] == [True, True, True]


def test_without_an_envelope_every_row_is_an_upsert_and_the_last_to_arrive_wins(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, "a"), (2, "b"), (1, "c")], "id INT, s STRING").coalesce(1)
    changes = changes_of(frame, NoEnvelope(), ["id"])
    assert last_of_each_key(changes) == {1: (1, "c"), 2: (2, "b")}
    assert table_schema(frame.schema, NoEnvelope(), []).names == ["id", "s"]
    assert table_schema(frame.schema, NoEnvelope(), ["id"])["id"].nullable is False


def test_a_streaming_frame_gives_the_changes_of_a_static_one(spark: SparkSession, tmp_path: Path) -> None:
    record = '{"id": %d, "s": "x", "seq": %d, "op": "u"}'
    (tmp_path / "a.json").write_text("\n".join(record % (n % 3, n) for n in range(9)))
    streaming = changes_of(spark.readStream.schema(ORDERS).json(str(tmp_path)), BY_SEQ, ["id"])
    assert streaming.isStreaming
    query = streaming.writeStream.format("memory").queryName("upserts").trigger(availableNow=True).start()
    query.awaitTermination()
    static = changes_of(spark.read.schema(ORDERS).json(str(tmp_path)), BY_SEQ, ["id"])
    kept = ["id", "s", OP, "_calve_order_0", BAD]
    assert sorted(spark.table("upserts").select(kept).collect()) == sorted(static.select(kept).collect())


def test_json_from_kafka_is_read_strictly_and_ordered_by_offset(spark: SparkSession) -> None:
    schema = {
        "type": "struct",
        "fields": [
            {"field": "amount", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
            {"field": "at", "name": "io.debezium.time.Timestamp"},
        ],
    }
    frame = kafka(
        spark,
        [
            ({"id": 1}, {"id": 1, "amount": "1.50", "at": "2024-01-01T00:00:00Z", "extra": [1]}),
            ({"id": 1}, {"id": 1, "amount": 2}),
            ({"id": 2}, {"id": 2}),
            ({"id": 2}, None),
            ("3", None),
            (None, {"id": 4, "meta": {"op": "d"}, "amount": "garbage"}),
            (None, {"id": 5, "meta": {"op": "u"}}),
            (None, {"schema": schema, "payload": {"id": 6, "amount": "AfQ=", "at": 1_700_000_000_000}}),
        ],
    )
    envelope = Upsert(delete_when="meta.op = 'd'", columns=COLUMNS)
    check_envelope(frame.schema, envelope, ["id"])
    changes = changes_of(frame, envelope, ["id"])
    table = last_of_each_key(changes)
    assert {k: v[1] for k, v in table.items()} == {1: Decimal("2.00"), 5: None, 6: Decimal("5.00")}
    assert table[6][2].timestamp() == 1_700_000_000
    assert [r[OP] for r in changes.collect()] == [UPSERT, UPSERT, UPSERT, DELETE, DELETE, DELETE, UPSERT, UPSERT]


def test_json_that_cannot_become_a_change_says_what_and_where(spark: SparkSession) -> None:
    cases: list[tuple[Any, Any, str]] = [
        (None, "{", "not JSON"),
        (None, '{"id": 1} {"id": 2}', "not JSON"),
        (None, '{"id": 1, "id": 2}', "twice"),
        (None, '{"id": 1, "amount": NaN}', "NaN"),
        (None, "[1]", "not a JSON object"),
        (None, {"amount": 1}, '"id" is missing'),
        (None, {"id": "x"}, '"id" is "x"'),
        (None, {"id": 1, "amount": 1.555}, "1.555"),
        (None, {"id": 1, "at": 1_700_000_000_000}, "epoch_unit"),
        (None, None, '"id" is missing'),
        ("no json", None, "not JSON"),
    ]
    found = changes_of(kafka(spark, [c[:2] for c in cases]), Upsert(columns=COLUMNS), ["id"]).collect()
    texts = problems(found)
    assert len(texts) == len(cases)
    for i, (text, case) in enumerate(zip(texts, cases, strict=True)):
        assert case[2] in text
        assert f"topic orders partition 0 offset {i}" in text


def test_json_may_be_ordered_by_fields_that_are_not_declared(spark: SparkSession) -> None:
    values = [9, 10, "11", "0000012", 12.5, 10**25, "beta", "alpha"]
    records = [(None, {"id": 1, "amount": i, "m": {"scn": v}}) for i, v in enumerate(values)]
    changes = changes_of(kafka(spark, records), Upsert(order_by=("m.scn",), columns=COLUMNS), ["id"])
    ordered = sorted(changes.collect(), key=lambda r: tuple(r[o] for o in order_columns(changes.columns)))
    assert [values[int(r.amount)] for r in ordered] == ["alpha", "beta", 9, 10, "11", "0000012", 12.5, 10**25]
    bad = [{"id": 1}, {"id": 1, "m": {"scn": None}}, {"id": 1, "m": {"scn": [1]}}, None]
    frame = kafka(spark, [({"id": 1}, record) for record in bad])
    texts = problems(changes_of(frame, Upsert(order_by=("m.scn",), columns=COLUMNS), ["id"]).collect())
    assert all('order field "m.scn"' in text for text in texts)
    assert len(texts) == len(bad)


def test_numbers_are_timestamps_in_the_unit_that_was_said(spark: SparkSession) -> None:
    frame = kafka(spark, [(None, {"id": 1, "at": 1_700_000_000_000})])
    (row,) = changes_of(frame, Upsert(columns=COLUMNS, epoch_unit=EpochUnit.MILLIS), ["id"]).collect()
    assert row["at"].timestamp() == 1_700_000_000


def test_filters_on_top_of_an_envelope_stay_cheap(spark: SparkSession) -> None:
    many = ", ".join(f"c{i} TIMESTAMP" for i in range(60))
    frame = kafka(spark, [(None, {"id": i}) for i in range(10)])
    changes = changes_of(frame, Upsert(columns=f"id INT NOT NULL, {many}", delete_when="op = 'd'"), ["id"])
    assert changes.where(f"{BAD} is null and {OP} = 1 and id > 4").count() == 5


@pytest.mark.parametrize(
    ("ddl", "envelope", "key", "words"),
    [
        (ORDERS, Upsert(order_by=("seq",)), ["idd"], 'key column "idd".*[\\s\\S]*Did you mean "id"'),
        (ORDERS, Upsert(order_by=("seq",)), ["ID"], 'Did you mean "id"'),
        (ORDERS, Upsert(order_by=("seq",)), [], "needs a key"),
        (ORDERS, Upsert(order_by=("seq",)), ["id", "id"], "twice"),
        (ORDERS, Upsert(), ["id"], "needs an order"),
        (ORDERS, Upsert(order_by=("sek",)), ["id"], 'order field "sek".*[\\s\\S]*Did you mean "seq"'),
        (ORDERS, Upsert(order_by=("seq.x",)), ["id"], "has no fields"),
        ("id INT, m MAP<STRING, INT>", Upsert(order_by=("m",)), ["id"], "has no order"),
        (ORDERS, Upsert(order_by=("seq",), delete_when="op = = 1"), ["id"], "delete_when is invalid"),
        (ORDERS, Upsert(order_by=("seq",), delete_when="nope = 1"), ["id"], "delete_when is invalid"),
        (ORDERS, Upsert(order_by=("seq",), delete_when="max(seq) = 1"), ["id"], "delete_when is invalid"),
        (ORDERS, Upsert(order_by=("seq",), delete_when="s"), ["id"], "delete_when is invalid"),
        (ORDERS, Upsert(order_by=("seq",), columns="id, x"), ["id"], 'column "x"'),
        (ORDERS, Upsert(order_by=("seq",), columns="id INT, s STRNG"), ["id"], "cannot be parsed"),
        ("id INT, _calve_x INT", NoEnvelope(), ["id"], "reserved"),
        ("id INT, ID INT", NoEnvelope(), ["id"], "same name"),
        (KAFKA, Upsert(), ["id"], "not declared"),
        (KAFKA, Upsert(columns="id, amount"), ["id"], "not declared"),
        (KAFKA, Upsert(columns="id INT, v VARIANT"), ["id"], "not supported in text formats"),
        (KAFKA, Upsert(columns=COLUMNS, delete_when="tags[0].x = 'd'"), ["id"], "delete_when is invalid"),
        ("id INT, t TIMESTAMP", Upsert(order_by=("id",), columns="id INT, t ARRAY<INT>"), ["id"], "does not match"),
    ],
)
def test_an_envelope_that_cannot_work_is_refused(
    spark: SparkSession, ddl: str, envelope: Upsert | NoEnvelope, key: list[str], words: str
) -> None:
    schema = T.StructType.fromDDL(ddl)
    assert isinstance(schema, T.StructType)
    with pytest.raises(InvalidInput) as error:
        check_envelope(schema, envelope, key)
    assert spark.version
    assert re.search(words, str(error.value))


def test_names_with_any_character_work(spark: SparkSession) -> None:
    name = "we'ird `\\ \"näme.x"
    frame = spark.createDataFrame([(1, 5, 1)], T.StructType.fromJson(json.loads(_schema(name))))
    (row,) = changes_of(frame, Upsert(order_by=("seq",)), ["id", name]).collect()
    assert row[name] == 5


def _schema(name: str) -> str:
    fields = [{"name": n, "type": "integer", "nullable": True, "metadata": {}} for n in ("id", name, "seq")]
    return json.dumps({"type": "struct", "fields": fields})


def test_random_histories_give_the_tables_of_a_dictionary(spark: SparkSession) -> None:
    """Many histories in one frame, each with keys of its own; positions are shuffled, `seq` says what is true."""
    draw = random.Random(20_251)
    rows: list[tuple[Any, ...]] = []
    model: dict[tuple[int, str], tuple[Any, ...]] = {}
    for history in range(200):
        for seq in range(draw.randrange(12)):
            key = draw.choice("abc")
            op, value = draw.choice(["u", "u", "u", "d", None]), draw.choice([None, draw.randrange(100)])
            rows.append((history, key, value, seq, op))
            if op == "d":
                model.pop((history, key), None)
            else:
                model[history, key] = (history, key, value)
    draw.shuffle(rows)
    frame = spark.createDataFrame(rows, "h INT, k STRING, v INT, seq INT, op STRING").repartition(5)
    envelope = Upsert(order_by=("seq",), delete_when="op = 'd'", columns="h, k, v")
    changes = changes_of(frame, envelope, ["h", "k"])
    assert changes.count() == len(rows)
    last: dict[tuple[int, str], Row] = {}
    for row in sorted(changes.collect(), key=lambda r: (r["_calve_order_0"], r["_calve_order_1"])):
        assert row[BAD] is None
        last[row.h, row.k] = row
    assert {key: (r.h, r.k, r.v) for key, r in last.items() if r[OP] == UPSERT} == model
