"""Debezium's records to changes, in plain Python: real-looking records, and random histories against a dictionary."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T  # noqa: N812

from calve.envelope.debezium_records import DebeziumReader
from calve.errors import BadRow, decode
from calve.model.change import DELETE, UPSERT
from calve.model.spec import Debezium, EpochUnit, OnTruncate, OnUnavailableValue
from calve.records.scalars import GUARDED_MICROS, Settings

TABLE = T.StructType(
    [
        T.StructField("id", T.LongType(), nullable=False),
        T.StructField("customer", T.IntegerType()),
        T.StructField("amount", T.DecimalType(12, 2)),
        T.StructField("note", T.StringType()),
        T.StructField("day", T.DateType()),
        T.StructField("created", T.TimestampNTZType()),
        T.StructField("updated", T.TimestampType()),
    ]
)
LEFT_OUT = "__debezium_unavailable_value"
MOMENT = datetime(2025, 3, 1, 12, 30, 15, 250_000, tzinfo=UTC)
MICROS = int(MOMENT.timestamp() * 1000) * 1000
DAYS = 20_148

Record = dict[str, Any]


def read(
    *records: tuple[Any, Any],
    envelope: Debezium | None = None,
    table: T.StructType = TABLE,
    key: tuple[str, ...] = ("id",),
) -> list[list[Any]]:
    """Changes as (columns of the table..., op, order..., error)."""
    chosen = envelope or Debezium()
    unit = chosen.epoch_unit or GUARDED_MICROS
    reader = DebeziumReader(chosen, table, key, Settings(unit), ("offset", "partition"), typed=False)

    def data(value: Any) -> bytes | None:
        text = value if value is None or isinstance(value, str) else json.dumps(value)
        return None if text is None else text.encode()

    count = len(records)
    columns: dict[str, list[Any]] = {
        "key": [data(k) for k, _ in records],
        "value": [data(v) for _, v in records],
        "topic": ["shop"] * count,
        "partition": [0] * count,
        "offset": list(range(count)),
    }
    return list(reader.rows()(columns, count))


def problem(*records: tuple[Any, Any], **options: Any) -> BadRow:
    (change,) = read(*records, **options)
    assert change[:-1] == [*[None] * change.index(UPSERT), UPSERT, None, None]
    error = decode(change[-1])
    assert isinstance(error, BadRow)
    return error


def field(kind: str, name: str, semantic: str | None = None, **parameters: str) -> Record:
    found: Record = {"type": kind, "optional": True, "field": name}
    if semantic:
        found |= {"name": semantic, "version": 1}
    return found | ({"parameters": parameters} if parameters else {})


def connect_schema(*columns: Record) -> Record:
    images = [
        {
            "type": "struct",
            "fields": list(columns),
            "optional": True,
            "name": "shop.public.orders.Value",
            "field": image,
        }
        for image in ("before", "after")
    ]
    source = {"type": "struct", "fields": [field("string", "version"), field("int64", "lsn")], "field": "source"}
    return {
        "type": "struct",
        "fields": [*images, source, field("string", "op"), field("int64", "ts_ms")],
        "optional": False,
        "name": "shop.public.orders.Envelope",
    }


POSTGRES = connect_schema(
    field("int64", "id"),
    field("int32", "customer"),
    field("bytes", "amount", "org.apache.kafka.connect.data.Decimal", scale="2", **{"connect.decimal.precision": "12"}),
    field("string", "note"),
    field("int32", "day", "io.debezium.time.Date"),
    field("int64", "created", "io.debezium.time.MicroTimestamp"),
    field("string", "updated", "io.debezium.time.ZonedTimestamp"),
)
POSTGRES_KEY = {
    "schema": {"type": "struct", "fields": [field("int64", "id")], "optional": False, "name": "shop.public.orders.Key"},
    "payload": {"id": 1001},
}


def postgres(op: str, before: Record | None, after: Record | None, lsn: int = 24_023_128) -> Record:
    source = {
        "version": "2.7.3.Final",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 1_740_832_215_250,
        "snapshot": "false",
        "db": "shop",
        "sequence": '["24023119","24023128"]',
        "schema": "public",
        "table": "orders",
        "txId": 555,
        "lsn": lsn,
        "xmin": None,
    }
    return {
        "before": before,
        "after": after,
        "source": source,
        "op": op,
        "ts_ms": 1_740_832_215_300,
        "transaction": None,
    }


def test_a_postgres_record_with_schema_is_decoded_as_the_schema_says() -> None:
    after = {
        "id": 1001,
        "customer": 7,
        "amount": "BNI=",
        "note": "first",
        "day": DAYS,
        "created": MICROS,
        "updated": "2025-03-01T12:30:15.250000Z",
    }
    record = {"schema": POSTGRES, "payload": postgres("c", None, after)}
    (change,) = read((POSTGRES_KEY, record))
    assert change == [1001, 7, Decimal("12.34"), "first", DAYS, MICROS, MICROS, UPSERT, 0, 0, None]


def test_a_mysql_record_with_schema_counts_milliseconds_where_it_says_so() -> None:
    schema = connect_schema(
        field("int64", "id"),
        field("int64", "created", "io.debezium.time.Timestamp"),
        field("int64", "updated", "org.apache.kafka.connect.data.Timestamp"),
        field("struct", "amount", "io.debezium.data.VariableScaleDecimal"),
    )
    after = {
        "id": 1,
        "created": MICROS // 1000,
        "updated": MICROS // 1000,
        "amount": {"scale": 1, "value": "ew=="},
    }
    source = {"connector": "mysql", "file": "binlog.000003", "pos": 154, "row": 0, "gtid": None}
    record = {"schema": schema, "payload": {"op": "r", "before": None, "after": after, "source": source}}
    (change,) = read((None, record))
    assert change[:7] == [1, None, Decimal("12.30"), None, None, MICROS, MICROS]


def test_a_mysql_record_without_schema_needs_its_unit_and_says_so() -> None:
    record = {"op": "c", "before": None, "after": {"id": 1, "created": MICROS // 1000, "amount": "12.30"}}
    assert "epoch_unit" in problem((None, record)).hint
    (change,) = read((None, record), envelope=Debezium(epoch_unit=EpochUnit.MILLIS))
    assert change[5] == MICROS


def test_a_payload_alone_is_read_and_wrappers_may_come_and_go() -> None:
    plain = postgres("c", None, {"id": 1})
    found = read((None, plain), (None, {"payload": plain}), (None, {"schema": POSTGRES, "payload": plain}))
    assert [c[:1] + c[7:8] for c in found] == [[1, UPSERT]] * 3


@pytest.mark.parametrize("empty", [None, "null", {"schema": None, "payload": None}])
def test_every_form_of_a_tombstone_deletes_by_the_records_key(empty: Any) -> None:
    (change,) = read((POSTGRES_KEY, empty))
    assert change == [1001, *[None] * 6, DELETE, 0, 0, None]
    assert read((None, empty), ({"other": 1}, empty), ("not json", empty)) == []


def test_the_order_fields_come_first_and_arrival_last() -> None:
    envelope = Debezium(order_by=("source.lsn", "ts_ms"))
    (change,) = read((None, postgres("c", None, {"id": 1}, lsn=2**64)), envelope=envelope)
    assert change[8:-1] == [Decimal(2**64), "", Decimal(1_740_832_215_300), "", 0, 0]
    missing = postgres("c", None, {"id": 1})
    del missing["ts_ms"]
    (change,) = read((None, missing), envelope=envelope)
    assert change[8:-1] == [None] * 6
    assert 'order field "ts_ms" is missing' in str(decode(change[-1]))


def test_a_list_of_positions_is_no_order() -> None:
    record = postgres("c", None, {"id": 1})
    record["source"]["sequence"] = ["24023119", "24023128"]
    (change,) = read((None, record), envelope=Debezium(order_by=("source.sequence",)))
    assert "neither a number nor a string" in str(decode(change[-1]))


def test_an_update_that_hides_its_old_key_is_a_bad_row() -> None:
    by_email = T.StructType([T.StructField("email", T.StringType(), nullable=False), T.StructField("id", T.LongType())])
    update = {"op": "u", "before": None, "after": {"id": 1, "email": "new@shop"}}
    error = problem(({"id": 1}, update), table=by_email, key=("email",))
    assert "which row was updated" in error.primary
    assert "REPLICA IDENTITY FULL" in error.hint
    full = update | {"before": {"id": 1, "email": "old@shop"}}
    found = read(({"id": 1}, full), table=by_email, key=("email",))
    assert [c[:3] for c in found] == [["old@shop", None, DELETE], ["new@shop", 1, UPSERT]]
    assert [c[2] for c in read((None, update), table=by_email, key=("email",))] == [UPSERT], (
        "no key, nothing to compare"
    )


def test_an_update_of_the_sources_own_key_needs_no_before() -> None:
    (change,) = read(({"id": 1}, {"op": "u", "before": None, "after": {"id": 1}}))
    assert (change[0], change[7]) == (1, UPSERT)


def test_before_with_nulls_beside_the_key_is_no_value_for_what_was_left_out() -> None:
    record = {"op": "u", "before": {"id": 1, "note": None}, "after": {"id": 2, "note": LEFT_OUT}}
    assert '"note" is not in the record' in problem((None, record)).primary
    found = read((None, record), envelope=Debezium(on_unavailable_value=OnUnavailableValue.NULL))
    assert [(c[0], c[3], c[7]) for c in found] == [(1, None, DELETE), (2, None, UPSERT)]


@pytest.mark.parametrize(
    ("data_type", "placeholder"),
    [
        (T.StringType(), LEFT_OUT),
        (T.StringType(), json.dumps({LEFT_OUT: LEFT_OUT})),
        (T.StringType(), json.dumps({LEFT_OUT: LEFT_OUT}, separators=(",", ":"))),
        (T.BinaryType(), "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
        (T.DecimalType(38, 2), LEFT_OUT),
        (T.ArrayType(T.StringType()), [LEFT_OUT]),
        (T.ArrayType(T.StringType()), ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
        (T.ArrayType(T.BinaryType()), ["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="]),
        (T.ArrayType(T.IntegerType()), list(LEFT_OUT.encode())),
        (T.MapType(T.StringType(), T.StringType()), {LEFT_OUT: LEFT_OUT}),
    ],
)
def test_every_form_of_the_placeholder_is_known(data_type: T.DataType, placeholder: Any) -> None:
    table = T.StructType([T.StructField("id", T.LongType(), nullable=False), T.StructField("c", data_type)])
    record = {"op": "u", "before": None, "after": {"id": 1, "c": placeholder}}
    assert '"c" is not in the record' in problem((None, record), table=table).primary


def test_a_placeholder_of_the_users_own_is_known() -> None:
    record = {"op": "u", "before": None, "after": {"id": 1, "note": "N/A"}}
    assert read((None, record))[0][3] == "N/A"
    error = problem((None, record), envelope=Debezium(unavailable_value="N/A"))
    assert '"note" is not in the record' in error.primary


def test_a_bad_record_shows_a_short_sample_and_hides_nothing_else() -> None:
    record = {"op": "c", "after": {"id": "x" * 5000, "note": "⟧"}}
    error = problem((None, record))
    assert 'column "id" is "xxx' in error.primary
    assert len(error.primary) < 200
    assert len(error.detail) < 400
    assert error.detail.startswith("topic shop partition 0 offset 0: {")


def test_one_bad_record_leaves_the_others_alone() -> None:
    found = read((None, "{"), (None, postgres("c", None, {"id": 1})), (None, b"\xff".decode("latin-1")))
    assert [c[-1] is None for c in found] == [False, True, False]


# ---- random histories

KEYS = st.integers(1, 4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(0, 99)),
        st.tuples(st.just("move"), KEYS, KEYS),
        st.tuples(st.just("delete"), KEYS, st.booleans()),
        st.tuples(st.sampled_from(["message", "truncate", "tombstone of nobody"]), st.just(0), st.just(0)),
    ),
    max_size=30,
)


@given(STEPS, st.sampled_from(["full rows", "keys only"]), st.randoms(use_true_random=False))
def test_the_changes_of_any_history_give_the_table_of_the_source(
    steps: list[tuple[str, int, Any]], logged: str, shuffled: Any
) -> None:
    """A database table as a dictionary, and the records a connector would write for it."""
    source: dict[int, int] = {}
    records: list[tuple[Any, Any]] = []
    for kind, key, argument in steps:
        _step(kind, key, argument, source, records, full=logged == "full rows")
    envelope = Debezium(on_truncate=OnTruncate.IGNORE)
    changes = read(*records, envelope=envelope)
    assert all(c[-1] is None for c in changes)
    shuffled.shuffle(changes)
    assert _applied(changes) == source


def _step(kind: str, key: int, argument: Any, source: dict[int, int], records: list[Any], *, full: bool) -> None:
    old = {"id": key, "customer": source[key]} if key in source else None
    seen = old if full else None
    if kind == "set":
        records.append(
            ({"id": key}, {"op": "u" if old else "c", "before": seen, "after": {"id": key, "customer": argument}})
        )
        source[key] = argument
    elif kind == "move" and old and argument not in source:
        # A connector writes a delete and a create; another one, with full rows, a single update.
        after = {"id": argument, "customer": old["customer"]}
        if full:
            records.append(({"id": argument}, {"op": "u", "before": old, "after": after}))
        else:
            records += [({"id": key}, {"op": "d", "before": {"id": key}}), ({"id": key}, None)]
            records.append(({"id": argument}, {"op": "c", "before": None, "after": after}))
        source[argument] = source.pop(key)
    elif kind == "delete" and old:
        records.append(({"id": key}, {"op": "d", "before": seen, "after": None}))
        if argument:
            records.append(({"id": key}, None))
        del source[key]
    elif kind in {"message", "truncate"}:
        records.append((None, {"op": kind[0]}))
    elif kind == "tombstone of nobody":
        records.append((None, None))


def _applied(changes: list[list[Any]]) -> dict[int, int]:
    last: dict[int, list[Any]] = {}
    for change in sorted(changes, key=lambda c: c[8:10]):
        last[change[0]] = change
    return {key: change[1] for key, change in last.items() if change[7] == UPSERT}
