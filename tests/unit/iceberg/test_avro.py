"""Records of manifests are encoded as pyiceberg encodes them."""

import io

from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, IntegerType, ListType, LongType, MapType, NestedField, StringType

from calve.iceberg.files.avro import RecordFormat

SCHEMA = Schema(
    NestedField(1, "number", LongType(), required=False),
    NestedField(2, "text", StringType(), required=True),
    NestedField(3, "sizes", MapType(4, IntegerType(), 5, LongType(), value_required=True), required=True),
    NestedField(6, "bounds", ListType(7, BinaryType(), element_required=True), required=True),
)
LONGS = st.integers(-(2**63), 2**63 - 1)


@given(
    st.none() | LONGS | st.sampled_from([0, -1, 63, 64, -64, -65, 8191, 8192]),
    st.text(max_size=200),
    st.dictionaries(st.integers(-(2**31), 2**31 - 1), LONGS, max_size=5),
    st.lists(st.binary(max_size=200), max_size=3),
)
def test_records_have_the_bytes_that_pyiceberg_writes(
    number: int | None, text: str, sizes: dict[int, int], bounds: list[bytes]
) -> None:
    record, expected = Record(number, text, sizes, bounds), io.BytesIO()
    construct_writer(SCHEMA).write(BinaryEncoder(expected), record)
    assert RecordFormat(SCHEMA, "record").encode(record) == expected.getvalue()
