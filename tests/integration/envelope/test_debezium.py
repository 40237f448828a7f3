"""Every rule for Debezium's records, on real-looking ones: as JSON from Kafka, inside Connect's wrapper, as columns."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from calve.envelope.envelopes import changes_of, check_envelope, table_schema
from calve.errors import BadRow, InvalidInput, decode
from calve.model.change import BAD, DELETE, OP, UPSERT
from calve.model.spec import Debezium, OnTruncate, OnUnavailableValue

KAFKA = "key STRING, value STRING, topic STRING, partition INT, offset BIGINT"
COLUMNS = "id BIGINT NOT NULL, name STRING, amount DECIMAL(6,2), raw BINARY, tags ARRAY<STRING>"
LEFT_OUT = "__debezium_unavailable_value"
LEFT_OUT_BYTES = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="

Record = dict[str, Any] | str | None


def kafka(spark: SparkSession, *records: tuple[Any, Record], **options: Any) -> list[Row]:
    rows = [
        (None if k is None else json.dumps(k), v if v is None or isinstance(v, str) else json.dumps(v), "shop", 3, i)
        for i, (k, v) in enumerate(records)
    ]
    envelope = Debezium(columns=COLUMNS, **options)
    return changes_of(spark.createDataFrame(rows, KAFKA), envelope, ["id"]).collect()


def short(rows: list[Row]) -> list[tuple[Any, ...]]:
    assert not [r[BAD] for r in rows if r[BAD]]
    return [(r.id, r.name, r[OP]) for r in rows]


def problem(rows: list[Row]) -> BadRow:
    assert len(rows) == 1
    assert rows[0].id is None
    found = decode(rows[0][BAD])
    assert isinstance(found, BadRow)
    return found


def test_create_read_and_update_write_the_row_after_and_delete_removes_the_one_before(spark: SparkSession) -> None:
    after = {"id": 1, "name": "a"}
    found = kafka(
        spark,
        ({"id": 1}, {"op": "c", "before": None, "after": after}),
        ({"id": 1}, {"op": "r", "after": after}),
        ({"id": 1}, {"op": "u", "before": {"id": 1, "name": "old"}, "after": after}),
        ({"id": 1}, {"op": "d", "before": {"id": 1, "name": "a"}, "after": None}),
    )
    assert short(found) == [(1, "a", UPSERT)] * 3 + [(1, None, DELETE)]
    assert [r["_calve_order_0"] for r in found] == [0, 1, 2, 3], "Kafka's offset orders"


def test_an_update_that_changes_the_key_deletes_the_old_row(spark: SparkSession) -> None:
    found = kafka(spark, ({"id": 2}, {"op": "u", "before": {"id": 1}, "after": {"id": 2, "name": "moved"}}))
    assert short(found) == [(1, None, DELETE), (2, "moved", UPSERT)]


def test_tombstones_delete_by_the_key_where_there_is_one(spark: SparkSession) -> None:
    wrapped = {"schema": {"type": "struct", "fields": []}, "payload": {"id": 5}}
    found = kafka(spark, ({"id": 4}, None), (wrapped, None), (None, None), ({"other": 1}, None), (6, None))
    assert short(found) == [(4, None, DELETE), (5, None, DELETE), (6, None, DELETE)]


def test_a_tombstone_has_no_place_in_another_order(spark: SparkSession) -> None:
    record = {"op": "d", "before": {"id": 4}, "source": {"lsn": 9}}
    found = kafka(spark, ({"id": 4}, record), ({"id": 4}, None), order_by=("source.lsn",))
    assert short(found) == [(4, None, DELETE)]


def test_a_delete_without_before_takes_the_records_key(spark: SparkSession) -> None:
    assert short(kafka(spark, ({"id": 7}, {"op": "d", "before": None}))) == [(7, None, DELETE)]


def test_messages_are_left_out_and_truncates_halt_unless_they_are_ignored(spark: SparkSession) -> None:
    assert kafka(spark, (None, {"op": "m", "message": {}})) == []
    assert kafka(spark, (None, {"op": "t"}), on_truncate=OnTruncate.IGNORE) == []
    assert "truncated" in problem(kafka(spark, (None, {"op": "t"}))).primary


def test_the_wrappers_schema_says_how_values_are_encoded(spark: SparkSession) -> None:
    decimal = {"field": "amount", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
    schema = {"type": "struct", "fields": [{"field": "after", "fields": [decimal]}]}
    found = kafka(spark, (None, {"schema": schema, "payload": {"op": "c", "after": {"id": 1, "amount": "AJY="}}}))
    assert found[0].amount == Decimal("1.50")


@pytest.mark.parametrize(
    ("column", "value", "known"),
    [("name", LEFT_OUT, "kept"), ("raw", LEFT_OUT_BYTES, "AAE="), ("tags", [LEFT_OUT], ["a", "b"])],
)
def test_a_value_that_was_left_out_comes_from_before_or_halts_or_is_null(
    spark: SparkSession, column: str, value: Any, known: Any
) -> None:
    after = {"id": 1, column: value}
    taken = kafka(spark, (None, {"op": "u", "before": {"id": 1, column: known}, "after": after}))
    assert taken[0][column] in (known, b"\x00\x01")
    for before in (None, {"id": 1}, {"id": 1, column: value}):
        record = {"op": "u", "before": before, "after": after}
        assert column in problem(kafka(spark, (None, record))).primary
        assert kafka(spark, (None, record), on_unavailable_value=OnUnavailableValue.NULL)[0][column] is None


MALFORMED: list[tuple[Record, str]] = [
    ("{not json", "not JSON"),
    ("[1]", "not a JSON object"),
    ({"after": {"id": 1}}, "op is missing"),
    ({"op": "x"}, 'op "x" is unknown'),
    ({"op": "c", "after": None}, "needs the row in after"),
    ({"op": "d", "before": {"name": "a"}}, "key neither in before"),
    ({"op": "c", "after": {"name": "a"}}, '"id"'),
    ({"op": "c", "after": {"id": "abc"}}, "abc"),
    ({"op": "c", "after": {"id": 2**63}}, "BIGINT"),
    ({"op": "c", "after": {"id": 1, "amount": "12345.678"}}, "DECIMAL"),
    ({"op": "c", "after": {"id": 1, "raw": "not base64!"}}, "BINARY"),
]


def test_a_malformed_record_is_a_bad_row_that_says_what_and_where(spark: SparkSession) -> None:
    found = kafka(spark, *((None, record) for record, _ in MALFORMED))
    for number, (row, (_, words)) in enumerate(zip(found, MALFORMED, strict=True)):
        error = problem([row])
        assert words in error.primary
        assert error.detail.startswith(f"topic shop partition 3 offset {number}")


def test_records_as_columns_keep_their_types_and_are_ordered_by_a_field(spark: SparkSession) -> None:
    image = "struct<id: bigint, name: string, amount: decimal(6,2)>"
    ddl = f"before {image}, after {image}, op string, source struct<lsn: bigint>"
    rows = [
        (None, (1, "a", Decimal("1.50")), "c", (5,)),
        ((1, "a", None), (2, "b", None), "u", (6,)),
        ((2, "b", None), None, "d", (7,)),
        (None, None, "c", (8,)),
        (None, (3, "c", None), "c", (None,)),
    ]
    frame = spark.createDataFrame(rows, ddl)
    envelope = Debezium(order_by=("source.lsn",))
    assert table_schema(frame.schema, envelope, ["id"]).names == ["id", "name", "amount"]
    for shaped in (frame, frame.selectExpr("struct(*) as payload")):
        found = changes_of(shaped, envelope, ["id"]).collect()
        good = [(r.id, r.name, r[OP], r["_calve_order_0"]) for r in found if not r[BAD]]
        assert good == [(1, "a", UPSERT, 5), (1, None, DELETE, 6), (2, "b", UPSERT, 6), (2, None, DELETE, 7)]
        bad = [decode(r[BAD]) for r in found if r[BAD]]
        assert ["after" in str(bad[0]), "source.lsn" in str(bad[1])] == [True, True]


@pytest.mark.parametrize(
    ("ddl", "options", "words"),
    [
        ("value STRING", {"columns": COLUMNS}, "need an order"),
        (KAFKA, {}, "not declared"),
        (KAFKA, {"columns": "id, name"}, "not declared"),
        (KAFKA, {"columns": "id BIGINT, x INTERVAL DAY"}, '"x"'),
        ("a INT", {"order_by": ("a",)}, "no change records"),
        ("op STRING, after STRING", {"order_by": ("op",)}, "not a struct"),
        ("op STRING, after STRUCT<id: INT>", {"order_by": ("opp",)}, 'order field "opp"'),
    ],
)
def test_an_envelope_that_cannot_work_is_refused(
    spark: SparkSession, ddl: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        table_schema(spark.createDataFrame([], ddl).schema, Debezium(**options), ["id"])


def test_a_streaming_frame_of_records_gives_the_same_changes(spark: SparkSession, tmp_path: Path) -> None:
    record = '{"op": "u", "before": {"id": %d}, "after": {"id": %d, "name": "x"}, "source": {"lsn": %d}}'
    (tmp_path / "a.txt").write_text("\n".join(record % (n, n + n % 2, n) for n in range(6)) + "\nbroken\n")
    envelope = Debezium(order_by=("source.lsn",), columns=COLUMNS)
    static = spark.read.text(str(tmp_path))
    check_envelope(static.schema, envelope, ["id"])
    changes = changes_of(spark.readStream.text(str(tmp_path)), envelope, ["id"])
    query = changes.writeStream.format("memory").queryName("records").trigger(availableNow=True).start()
    query.awaitTermination()
    kept = ["id", "name", OP, "_calve_order_0", BAD]
    found = spark.table("records").select(kept).collect()
    assert sorted(found, key=str) == sorted(changes_of(static, envelope, ["id"]).select(kept).collect(), key=str)
    assert len(found) == 6 + 3 + 1
