"""Whatever a record holds, it becomes a change or a bad row that keeps it, in a time that its length bounds."""

import json
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import types as T  # noqa: N812

from calve.envelope import debezium_records, upsert_records
from calve.envelope.fields import text_fields
from calve.envelope.finish import change_schema
from calve.envelope.order import PAIR
from calve.errors import BadRow
from calve.model.change import letter_of
from calve.model.spec import Debezium
from calve.records import frames
from calve.records.frames import _batch
from calve.records.scalars import GUARDED_MICROS, PLAIN, Coding, Settings
from calve.records.strict import Misfit, converter
from calve.source.files import records
from calve.source.files.csv_text import CsvText
from calve.source.kafka import reader as topic_records
from calve.spark.version import arrow_schema_of

SCALARS: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "tiny": T.ByteType(),
    "small": T.ShortType(),
    "whole": T.IntegerType(),
    "big": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "money": T.DecimalType(12, 2),
    "wide": T.DecimalType(38, 0),
    "fine": T.DecimalType(38, 38),
    "text": T.StringType(),
    "data": T.BinaryType(),
    "day": T.DateType(),
    "moment": T.TimestampType(),
    "local": T.TimestampNTZType(),
}
NESTED: dict[str, T.DataType] = {
    "list": T.ArrayType(T.StringType()),
    "lists": T.ArrayType(T.ArrayType(T.LongType())),
    "map": T.MapType(T.StringType(), T.StringType()),
    "moments": T.MapType(T.StringType(), T.TimestampType()),
    "struct": T.StructType([T.StructField("text", T.StringType()), T.StructField("day", T.DateType())]),
}
TYPES = SCALARS | NESTED
TABLE = T.StructType(
    [T.StructField("id", T.StringType(), nullable=False), *(T.StructField(n, t) for n, t in TYPES.items())]
)
COLUMNS = TABLE.fields[1:]
ZONES = ("UTC", "+14:00", "-12:00", "Europe/Berlin", "Asia/Kathmandu")
UNITS = (None, "ms", "us", "ns", GUARDED_MICROS)

# Half of a surrogate pair is no text, but JSON can write it.
ANY_TEXT = st.text(st.characters(categories=["Cs", "Cc", "L", "N", "P", "S", "Z"]), max_size=20)
EDGES = st.sampled_from(
    [
        *("", "0", "-0", "+1", "1.", ".5", "1e5", "1e-9999", "1e99999", "NaN", "Infinity", "-Infinity", "nan", "١"),
        *("9" * 38, "9" * 39, "0." + "9" * 38, "true", "1", "\x00", "\ud800", "a\udfffb", "\U0010ffff", "AQ==", "AQ"),
        *("0001-01-01", "9999-12-31", "10000-01-01", "0000-12-31", "2023-02-29", "2024-02-29Z", "-0001-01-01"),
        *("0001-01-01T00:00:00+00:01", "0001-01-01T00:00:00Z", "0001-01-01 00:00", "9999-12-31T23:59:59.999999Z"),
        *(
            "9999-12-31T23:59:59-14:00",
            "9999-12-31T23:59:59.9999999-00:01",
            "2024-01-01T24:00:00",
            "2024-01-01T00:00:60Z",
        ),
        *("2024-03-31T02:30:00", "2024-01-01T00:00:00+24:00", "2024-01-01T00:00:00+23:59", "2024-01-01T00:00Z\n"),
    ]
)
NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from(
        [
            *(2**31, 2**63, -(2**63) - 1, 10**38, 10**100, -(10**400), 253402300799999999, 253402300800000000),
            *(-62135596800000000, -62135596800000001, 2932896, 2932897, -719162, -719163, 86_400_000_000),
        ]
    ),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False).map(float),
)
BYTES = st.builds(
    lambda scale, data: {"scale": scale, "value": b64encode(data).decode()},
    st.sampled_from([0, 2, -2, 38, 5000, -20_000, 10**9, -(10**9), "2", None, 10**30]),
    st.binary(max_size=40),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, ANY_TEXT, EDGES, BYTES),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(ANY_TEXT, EDGES), inner, max_size=3)
    ),
    max_leaves=6,
)
ROWS = st.builds(
    lambda key, fields: {"id": "a", "seq": 1, **key, **fields},
    st.dictionaries(st.sampled_from(["id", "seq", "op"]), VALUES, max_size=1),
    st.dictionaries(st.sampled_from(list(TYPES)), VALUES, max_size=2),
)
SEMANTICS = st.one_of(
    VALUES,
    st.sampled_from(
        [
            "org.apache.kafka.connect.data.Decimal",
            *("io.debezium.time.Date", "io.debezium.time.MicroTimestamp", "io.debezium.time.NanoTime"),
        ]
    ),
)
FIELD = st.one_of(
    VALUES,
    st.fixed_dictionaries(
        {"field": st.one_of(st.sampled_from(list(TYPES)), VALUES), "type": st.one_of(st.just("struct"), VALUES)},
        optional={
            "name": SEMANTICS,
            "parameters": st.one_of(VALUES, st.fixed_dictionaries({"scale": st.one_of(VALUES, st.just("9" * 5000))})),
            "fields": VALUES,
            "items": VALUES,
        },
    ),
)
SCHEMAS = st.one_of(
    VALUES, st.fixed_dictionaries({"type": st.just("struct"), "fields": st.one_of(VALUES, st.lists(FIELD, max_size=3))})
)
IMAGES = st.fixed_dictionaries(
    {"op": st.one_of(st.sampled_from("crudtm"), VALUES)},
    optional={"before": st.one_of(ROWS, VALUES), "after": st.one_of(ROWS, VALUES), "source": VALUES, "seq": VALUES},
)
IMAGE_SCHEMAS = st.builds(
    lambda fields: {"type": "struct", "fields": [{"field": name, "fields": fields} for name in ("before", "after")]},
    st.one_of(VALUES, st.lists(FIELD, max_size=3)),
)


def wrapped(payloads: st.SearchStrategy[Any], schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({"schema": schemas, "payload": payloads})


def texts(values: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """JSON, mostly."""
    return st.one_of(values.map(lambda value: json.dumps(value).encode()), st.binary(max_size=30))


RECORDS = texts(st.one_of(ROWS, wrapped(ROWS, SCHEMAS), VALUES))
CHANGES = texts(st.one_of(IMAGES, wrapped(IMAGES, IMAGE_SCHEMAS), wrapped(IMAGES, SCHEMAS), VALUES))
SETTINGS = st.builds(Settings, st.sampled_from(UNITS), st.sampled_from(ZONES))
DEEP = b'{"id": "a", "text": ' + b"[" * 600 + b"]" * 600 + b', "big": ' + b"[" * 600 + b"]" * 600 + b"}"


def kafka(values: list[bytes | None], keys: list[bytes | None]) -> dict[str, list[Any]]:
    count = len(values)
    return {
        "key": [*keys, *[None] * count][:count],
        "value": list(values),
        "topic": ["t"] * count,
        "partition": [0] * count,
        "offset": list(range(count)),
    }


def readable(rows: Iterator[Any], output: T.StructType, values: list[bytes | None], errors: list[str]) -> int:
    """Check that rows go to Arrow and back, and that bad ones bring their record. The number of bad ones."""
    batch = _batch(list(rows), arrow_schema_of(output))
    batch.validate(full=True)
    found = batch.to_pylist()  # Python's times end with the year 9999
    bad = [text for row in found for name in errors if (text := row[name]) is not None]
    for text in bad:
        letter = letter_of(text)
        assert letter is not None
        assert letter.origin.value in values
        assert isinstance(letter.error, BadRow)
        pa.array([letter.error.primary, letter.error.detail, letter.error.hint, letter.origin.file], pa.string())
        assert len(str(letter.error)) < 2000
    return len(bad)


@given(st.lists(RECORDS, max_size=4), SETTINGS)
@example([b'{"id": "a", "text": "\\ud800"}'], Settings())
@example([b'{"id": "a", "map": {"\\ud800": "x"}}'], Settings())
@example([b'{"id": "a", "moment": "9999-12-31T23:59:59-14:00"}'], Settings())
@example([DEEP], Settings())
def test_any_line_of_a_file_is_a_row_or_a_bad_row(lines: list[bytes], settings: Settings) -> None:
    reader = records.LineReader(tuple(TABLE.fields), settings, csv=None)
    columns: dict[str, list[Any]] = {"value": [*lines], frames.SOURCE_FILE: ["f"] * len(lines)}
    output = records.record_schema(TABLE.fields)
    readable(reader.rows()(columns, len(lines)), output, [*lines], [frames.SOURCE_PROBLEM])


@given(st.lists(st.fixed_dictionaries({n: st.one_of(st.none(), EDGES.filter(lambda t: t.isascii())) for n in SCALARS})))
def test_any_row_of_csv_is_a_row_or_a_bad_row(rows: list[dict[str, str | None]]) -> None:
    fields = [T.StructField(name, kind) for name, kind in SCALARS.items()]
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in SCALARS}
    columns |= {records._CORRUPT: [None] * len(rows), frames.SOURCE_FILE: ["f"] * len(rows)}
    reader = records.LineReader(tuple(fields), Settings(), csv=CsvText.of({}))
    kept = [json.dumps({name: row[name] for name in SCALARS}).encode() for row in rows]
    readable(reader.rows()(columns, len(rows)), records.record_schema(fields), [*kept], [frames.SOURCE_PROBLEM])


@given(st.lists(st.one_of(st.none(), RECORDS), max_size=4), st.lists(st.one_of(st.none(), RECORDS)), SETTINGS)
@example([b'{"id": "a", "op": "\\ud800", "seq": 1}'], [], Settings())
@example([b'{"id": "a", "seq": "\\udfff"}'], [], Settings())
@example([DEEP, b'{"id": "a", "seq": 1, "op": ' + b"[" * 600 + b"]" * 600 + b"}"], [], Settings())
def test_any_upsert_is_a_change_or_a_bad_row(
    values: list[bytes | None], keys: list[bytes | None], settings: Settings
) -> None:
    paths = (("op",), ("more", "op"))
    reader = upsert_records.UpsertReader(TABLE, ("id",), paths, ("seq", "moment"), settings, ("offset", "partition"))
    kinds = [*reader.order_types(), T.LongType(), T.IntegerType()]
    output = T.StructType(
        [
            *(T.StructField(f.name, f.dataType) for f in TABLE.fields),
            *text_fields(paths),
            T.StructField(upsert_records.GONE, T.BooleanType()),
            *(T.StructField(f"{upsert_records.ORDER}{i}", kind) for i, kind in enumerate(kinds)),
            T.StructField(upsert_records.BAD_KEY, T.StringType()),
            T.StructField(upsert_records.BAD_REST, T.StringType()),
        ]
    )
    rows = list(reader.rows()(kafka(values, keys), len(values)))
    assert len(rows) == len(values)
    readable(iter(rows), output, values, [upsert_records.BAD_KEY, upsert_records.BAD_REST])


@pytest.mark.long
@pytest.mark.parametrize("before", ["", "with rows before"])
@given(
    st.lists(st.one_of(st.none(), CHANGES), max_size=4),
    st.lists(st.one_of(st.none(), CHANGES, RECORDS)),
    SETTINGS,
)
@example([b'{"op": [], "after": {"id": "a"}}'], [], Settings())
@example([b'{"schema": {"type": "struct", "fields": 5}, "payload": {"op": "c"}}'], [], Settings())
@example([b'{"op": ' + b"[" * 600 + b"]" * 600 + b"}"], [], Settings())
def test_any_change_record_is_changes_or_a_bad_row(
    before: str, values: list[bytes | None], keys: list[bytes | None], settings: Settings
) -> None:
    reader = debezium_records.DebeziumReader(
        Debezium(order_by=("seq",)), TABLE, ("id",), settings, ("offset", "partition"), typed=False, before=bool(before)
    )
    output = change_schema(TABLE, [*PAIR, T.LongType(), T.IntegerType()], before=bool(before))
    readable(reader.rows()(kafka(values, keys), len(values)), output, values, ["_calve_bad"])


@given(st.lists(st.one_of(st.none(), RECORDS), max_size=4), SETTINGS)
def test_any_value_of_a_topic_is_a_row_or_a_bad_row(values: list[bytes | None], settings: Settings) -> None:
    reader = topic_records.ValueReader(tuple(TABLE.fields), settings)
    columns = kafka(values, [])
    rows = list(reader.rows()(columns, len(values)))
    assert len(rows) == len(values)
    readable(iter(rows), topic_records.typed_schema(TABLE.fields), values, [frames.SOURCE_PROBLEM])


LONG = 20_000
FAMILIES = {
    "digits": "1" * LONG,
    "digits and a letter": "1" * LONG + "x",
    "zeros and a point": "0" * LONG + ".",
    "a fraction": "1." + "1" * LONG,
    "points": "." * LONG,
    "an exponent": "1e" + "1" * LONG,
    "signs": "-" * LONG,
    "spaces": " " * LONG,
    "a day and spaces": "2024-01-01" + " " * LONG,
    "a fraction of a second": "2024-01-01T00:00:00." + "1" * LONG,
    "base64": "/w" * (LONG * 5),
    "hexadecimal digits": "f" * LONG,
    "emoji": "\U0001f600" * LONG,
    "surrogates": "\ud83d" * LONG,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_text_is_converted_or_refused_at_once(family: str) -> None:
    text = FAMILIES[family]
    shapes: list[tuple[Any, Coding]] = [(text, PLAIN), (text, Coding(scale=2)), ([text], PLAIN), ({text: text}, PLAIN)]
    shapes += [({"scale": 2, "value": text}, PLAIN)]
    shapes += [(Decimal(text), PLAIN)] if family in {"digits", "a fraction"} else []
    for data_type in TYPES.values():
        convert = converter(data_type, "c", Settings())
        for value, coding in shapes:
            before = time.process_time()
            with suppress(Misfit):
                convert(value, coding)
            taken = time.process_time() - before
            assert taken < 0.5, f"{data_type.simpleString()} took {taken:.1f} s"  # a quadratic one takes many seconds


@pytest.mark.parametrize("scale", [10**9, -(10**9), 20_001])
def test_a_decimal_in_bytes_has_a_largest_scale(scale: int) -> None:
    for data_type in (T.StringType(), T.DecimalType(38, 2)):
        with pytest.raises(Misfit):
            converter(data_type, "c", Settings())("AQ==", Coding(scale=scale))
