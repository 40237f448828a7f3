"""Structs of Parquet files, footers and headers of pages, in Thrift's compact protocol.

A value is kept as its bytes, and only what is needed is decoded. Everything else, known or not, stays as it is.
"""

from collections.abc import Sequence

import pyarrow as pa

_TRUE, _FALSE, _BYTE, _I16, _I32, I64, _DOUBLE, BINARY, _LIST = range(1, 10)
STRUCT = 12
"""Types of Thrift; footers have neither sets nor maps."""
_LONG_LIST = 15
_FIXED = {_TRUE: 1, _FALSE: 1, _BYTE: 1, _DOUBLE: 8}
"""Bytes of a value. Booleans have one in lists, and none in structs."""
_NUMBERS = frozenset({_I16, _I32, I64})

Fields = dict[int, tuple[int, bytes]]
"""The fields of a struct by id: type and encoded value."""


def damaged(detail: str) -> pa.ArrowInvalid:
    """The error for a file that cannot be read."""
    return pa.ArrowInvalid(f"Invalid Parquet file: {detail}")


def decode(data: bytes) -> Fields:
    """The fields of a struct. Raises pa.ArrowInvalid unless they are encoded to the same bytes again."""
    try:
        fields, _ = struct_at(data, 0)
    except IndexError as error:
        raise damaged("its footer is truncated") from error
    if encode(fields) != data:
        raise damaged("its footer is encoded in an unknown way")
    return fields


def struct_at(data: bytes, at: int) -> tuple[Fields, int]:
    """The fields of a struct that begins at a place, and where it ends. Raises IndexError if it is truncated."""
    found: Fields = {}
    number = 0
    while header := data[at]:
        number, kind, at = _field_header(data, at, header, number)
        end = at if kind in {_TRUE, _FALSE} else _end_of(kind, data, at)
        found[number] = (kind, data[at:end])
        at = end
    return found, at + 1


def _field_header(data: bytes, at: int, header: int, last: int) -> tuple[int, int, int]:
    """The id and type of a field, and where its value begins."""
    if header >> 4:
        return last + (header >> 4), header & 15, at + 1
    number, at = _read_varint(data, at + 1)
    return (number >> 1) ^ -(number & 1), header & 15, at


def _end_of(kind: int, data: bytes, at: int) -> int:
    """Where a value ends, unless it is a boolean of a struct."""
    if kind in _NUMBERS:
        while data[at] & 128:
            at += 1
        return at + 1
    if kind == BINARY:
        length, at = _read_varint(data, at)
        return at + length
    if kind == STRUCT:
        number = 0
        while header := data[at]:
            number, inner, at = _field_header(data, at, header, number)
            at = at if inner in {_TRUE, _FALSE} else _end_of(inner, data, at)
        return at + 1
    if kind == _LIST:
        inner, length, at = _list_header(data, at)
        for _ in range(length):
            at = _end_of(inner, data, at)
        return at
    if kind in _FIXED:
        return at + _FIXED[kind]
    raise damaged("its footer has values of an unknown type")


def _list_header(data: bytes, at: int) -> tuple[int, int, int]:
    """The type and number of a list's elements, and where they begin."""
    header = data[at]
    if header >> 4 != _LONG_LIST:
        return header & 15, header >> 4, at + 1
    length, at = _read_varint(data, at + 1)
    return header & 15, length, at


def encode(fields: Fields) -> bytes:
    """The bytes of a struct."""
    parts: list[bytes] = []
    last = 0
    for number, (kind, value) in sorted(fields.items()):
        near = 0 < number - last <= 15
        parts += (
            bytes([(number - last) << 4 | kind]) if near else bytes([kind]) + varint(number << 1),
            value,
        )
        last = number
    return b"".join((*parts, b"\0"))


def elements(fields: Fields, number: int) -> list[bytes]:
    """The structs of a list."""
    data = fields[number][1] if number in fields else b"\x0c"
    kind, length, at = _list_header(data, 0)
    found = []
    for _ in range(length):
        end = _end_of(kind, data, at)
        found.append(data[at:end])
        at = end
    return found


def list_of(structs: Sequence[bytes]) -> tuple[int, bytes]:
    """A list of structs as a value."""
    length = len(structs)
    short = length < _LONG_LIST
    header = bytes([length << 4 | STRUCT]) if short else bytes([_LONG_LIST << 4 | STRUCT]) + varint(length)
    return _LIST, b"".join((header, *structs))


def number_of(fields: Fields, number: int) -> int:
    """An integer; 0 if the struct does not have it."""
    if number not in fields:
        return 0
    value, _ = _read_varint(fields[number][1], 0)
    return (value >> 1) ^ -(value & 1)


def plus(fields: Fields, number: int, more: int) -> Fields:
    """The fields with a larger number, if they have it."""
    return changed(fields, number, number_of(fields, number) + more)


def changed(fields: Fields, number: int, value: int) -> Fields:
    """The fields with another number, if they have it."""
    if number not in fields:
        return fields
    return {**fields, number: (fields[number][0], varint(value << 1 if value >= 0 else ~(value << 1)))}


def binary_of(fields: Fields, number: int) -> bytes:
    """A text; empty if the struct does not have it."""
    data = fields[number][1] if number in fields else b"\0"
    length, at = _read_varint(data, 0)
    return data[at : at + length]


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if not byte & 128:
            return value, at
        shift += 7


def varint(value: int) -> bytes:
    """A number that is not negative."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)
