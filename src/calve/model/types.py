"""Types of columns: what SQL and Spark call them, what a table holds, what a key or a partition may be made of.

`TYPES` is the one place that knows it: schemas, keys, partitions, writers and the reference page (`docs/types.md`) are
made of it. A table of format version 2 has fewer types than Spark: what has no type of its own is stored as a text from
which the value can be told again, or refused.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_PRECISION = 38

IDENTITY = ("identity", "void")
_BUCKET = (*IDENTITY, "bucket")
_EXACT = (*_BUCKET, "truncate")
_DAYS = (*_BUCKET, "year", "month", "day")
_MOMENTS = (*_DAYS, "hour")

UUID_MARK = "calve:uuid"
"""Comment of a declared column, in Spark's notation, whose texts are uuids."""
UUID_PATTERN = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"


@dataclass(frozen=True)
class ColumnType:
    """One type. Names are without parameters: `DECIMAL`, `decimal`."""

    sql: str
    """As it is declared."""
    spark: str
    """As Spark's JSON calls it; empty for what Spark does not have."""
    iceberg: str
    """As the table has it; empty: refused."""
    transforms: tuple[str, ...] = ()
    """What partitions may be made of."""
    key: bool = True
    back: str = ""
    """What Spark reads, where that is another type."""
    note: str = ""

    @property
    def nested(self) -> bool:
        """True for types that hold others."""
        return self.iceberg in {"list", "map", "struct"}


TYPES: tuple[ColumnType, ...] = (
    ColumnType("BOOLEAN", "boolean", "boolean", IDENTITY),
    ColumnType("TINYINT", "byte", "int", _EXACT, back="INT"),
    ColumnType("SMALLINT", "short", "int", _EXACT, back="INT"),
    ColumnType("INT", "integer", "int", _EXACT),
    ColumnType("BIGINT", "long", "long", _EXACT, note="Unsigned numbers of 64 bits: DECIMAL(20,0)."),
    ColumnType("FLOAT", "float", "float", IDENTITY, key=False, note="With NaN and infinities."),
    ColumnType("DOUBLE", "double", "double", IDENTITY, key=False, note="With NaN and infinities."),
    ColumnType("DECIMAL", "decimal", "decimal", _EXACT, note="1 to 38 digits; more are refused, never cut."),
    ColumnType("STRING", "string", "string", _EXACT, note="A collation is no part of the table, and refused in a key."),
    ColumnType("CHAR", "char", "string", _EXACT, back="STRING", note="The length is not checked."),
    ColumnType("VARCHAR", "varchar", "string", _EXACT, back="STRING", note="The length is not checked."),
    ColumnType("BINARY", "binary", "binary", _EXACT, note="Goes into a `fixed` column of a table that exists, too."),
    ColumnType("DATE", "date", "date", _DAYS, note="Years 1 to 9999."),
    ColumnType(
        "TIME",
        "time",
        "time",
        _BUCKET,
        note="Microseconds. Spark has it from version 4.1 on, and a session of your own needs "
        "`spark.sql.timeType.enabled`. Spark with the Iceberg runtime cannot read tables with such a column.",
    ),
    ColumnType("TIMESTAMP", "timestamp", "timestamptz", _MOMENTS, note="A moment, in microseconds."),
    ColumnType("TIMESTAMP_NTZ", "timestamp_ntz", "timestamp", _MOMENTS, note="Without a zone, in microseconds."),
    ColumnType(
        "UUID",
        "",
        "uuid",
        _BUCKET,
        back="STRING",
        note="A column of a source, not inside of others; a text in Spark. A `STRING` goes into a `uuid` column of a "
        "table that exists, too. A key where rows are deleted by position: Spark with the Iceberg runtime finds no "
        "uuid by equality deletes.",
    ),
    ColumnType(
        "INTERVAL",
        "interval",
        "string",
        key=False,
        back="STRING",
        note="The literal of Spark (`INTERVAL '1 02:00:00' DAY TO SECOND`). Not for JSON and CSV: there a `STRING` "
        "takes the text as it is.",
    ),
    ColumnType(
        "VARIANT",
        "variant",
        "string",
        key=False,
        back="STRING",
        note="Its JSON, which `parse_json` reads again; types that JSON lacks are texts in it. Inside of other columns "
        "it is refused. Not for JSON and CSV: there a `STRING` takes objects and arrays as their JSON.",
    ),
    ColumnType("ARRAY", "array", "list", key=False, note="Of any of these, to any depth."),
    ColumnType("MAP", "map", "map", key=False, note="Of any of these, to any depth."),
    ColumnType(
        "STRUCT",
        "struct",
        "struct",
        key=False,
        note="Of any of these, to any depth, with one field at least. Its fields may be keys of partitions.",
    ),
    ColumnType("VOID", "void", "", key=False, note="Refused: it says nothing of the values to come."),
)

_BY_SQL = {kind.sql: kind for kind in TYPES}
_BY_SPARK = {kind.spark: kind for kind in TYPES if kind.spark}
_BACK = {kind.iceberg: kind.sql.lower() for kind in TYPES if kind.iceberg and not kind.back}
_BASE = re.compile(r"[A-Za-z_]+")
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")


def declared_type(text: str) -> ColumnType | None:
    """The type of a declared column, parameters and all: `DECIMAL(12,2)`, `ARRAY<INT>`."""
    base = _BASE.match(text)
    return _BY_SQL.get(base[0].upper()) if base else None


def spark_type(name: str) -> ColumnType | None:
    """The type that Spark's JSON calls so: `decimal(12,2)`, `interval day to second`, `array`."""
    base = _BASE.match(name)
    found = _BY_SPARK.get(base[0].lower()) if base else None
    if found is not None and found.sql == "DECIMAL" and decimal_of(name) is None:
        return None
    return found


def decimal_of(name: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal that a table can hold."""
    match = _DECIMAL.fullmatch(name.lower())
    if match is None:
        return None
    precision, scale = int(match[1]), int(match[2])
    return (precision, scale) if precision <= MAX_PRECISION and 0 <= scale <= precision else None


def written_as(iceberg: str) -> str | None:
    """What values of a flat column are in Spark when they are written; None where Spark has nothing like it."""
    decimal = decimal_of(iceberg)
    if decimal is not None:
        return f"decimal({decimal[0]},{decimal[1]})"
    if iceberg == "uuid" or iceberg.startswith("fixed"):
        return "binary"
    return {"time": "time(6)"}.get(iceberg) or _BACK.get(iceberg)


def leaves(text: str, path: str) -> Iterator[tuple[str, str]]:
    """The flat types inside of a declared one, each with the name that leads to it. The text is in canonical form."""
    base, _, rest = text.partition("<")
    if not rest or base not in {"ARRAY", "MAP", "STRUCT"}:
        yield path, text
        return
    parts = _split(rest.removesuffix(">"))
    if base == "STRUCT":
        for part in parts:
            name, kind = _named(part)
            yield from leaves(kind.removesuffix(" NOT NULL"), f"{path}.{name}")
        return
    for part, name in zip(parts, ("element",) if base == "ARRAY" else ("key", "value"), strict=True):
        yield from leaves(part, f"{path}.{name}")


def _split(text: str) -> list[str]:
    """At the commas outside of brackets and quotes."""
    found, depth, quoted, start = [], 0, False, 0
    for at, letter in enumerate(text):
        if letter == "`":
            quoted = not quoted
        elif not quoted:
            depth += (letter in "<(") - (letter in ">)")
            if letter == "," and not depth:
                found.append(text[start:at].strip())
                start = at + 1
    return [*found, text[start:].strip()]


def _named(field: str) -> tuple[str, str]:
    if not field.startswith("`"):
        name, _, kind = field.partition(": ")
        return name, kind
    end = re.match(r"`((?:[^`]|``)*)`: ", field)
    return (end[1].replace("``", "`"), field[end.end() :]) if end else (field, "")
