"""Types of columns: their names in SQL, Spark and Iceberg, and whether keys and partitions can use them.

`TYPES` is the only place that knows it: schemas, keys, partitions, writers and the reference page (`docs/types.md`) are
derived from it. A table has fewer types than Spark: a value without a matching type is stored as a
text from which it can be restored, or refused.
"""

import re
from collections.abc import Iterator

from calve.values import value

MAX_PRECISION = 38

IDENTITY = ("identity", "void")
_BUCKET = (*IDENTITY, "bucket")
_EXACT = (*_BUCKET, "truncate")
_DAYS = (*_BUCKET, "year", "month", "day")
_MOMENTS = (*_DAYS, "hour")

UUID_MARK = "calve:uuid"
"""Comment that marks a column declared in Spark DDL as UUID texts."""
UUID_PATTERN = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"


@value
class ColumnType:
    """One type. Names are without parameters: `DECIMAL`, `decimal`."""

    sql: str
    """The name in declarations."""
    spark: str
    """The name in Spark's JSON; empty if Spark lacks the type."""
    iceberg: str
    """The type in the table; empty: refused."""
    transforms: tuple[str, ...] = ()
    """Partition transforms that accept the type."""
    key: bool = True
    back: str = ""
    """The type that Spark reads, if it differs."""
    note: str = ""

    @property
    def nested(self) -> bool:
        """True for types that contain other types."""
        return self.iceberg in {"list", "map", "struct"}


TYPES: tuple[ColumnType, ...] = (
    ColumnType("BOOLEAN", "boolean", "boolean", IDENTITY),
    ColumnType("TINYINT", "byte", "int", _EXACT, back="INT"),
    ColumnType("SMALLINT", "short", "int", _EXACT, back="INT"),
    ColumnType("INT", "integer", "int", _EXACT),
    ColumnType("BIGINT", "long", "long", _EXACT, note="For unsigned 64-bit numbers use DECIMAL(20,0)."),
    ColumnType("FLOAT", "float", "float", IDENTITY, key=False, note="With NaN and infinities."),
    ColumnType("DOUBLE", "double", "double", IDENTITY, key=False, note="With NaN and infinities."),
    ColumnType("DECIMAL", "decimal", "decimal", _EXACT, note="1 to 38 digits; more are refused, never truncated."),
    ColumnType(
        "STRING", "string", "string", _EXACT, note="The table does not store a collation; a key must not have one."
    ),
    ColumnType("CHAR", "char", "string", _EXACT, back="STRING", note="The length is not checked."),
    ColumnType("VARCHAR", "varchar", "string", _EXACT, back="STRING", note="The length is not checked."),
    ColumnType(
        "BINARY", "binary", "binary", _EXACT, note="Can also be written to a `fixed` column of an existing table."
    ),
    ColumnType("DATE", "date", "date", _DAYS, note="Years 1 to 9999."),
    ColumnType(
        "TIME",
        "time",
        "time",
        _BUCKET,
        note="Microseconds. Spark supports it from version 4.1 on; your own session needs "
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
        note="A top-level column of a source; a string in Spark. A `STRING` can also be written to a `uuid` column of "
        "an existing table. Can be a key if rows are deleted by position: Spark with the Iceberg runtime does not "
        "apply equality deletes to UUIDs.",
    ),
    ColumnType(
        "INTERVAL",
        "interval",
        "string",
        key=False,
        back="STRING",
        note="Stored as Spark's literal (`INTERVAL '1 02:00:00' DAY TO SECOND`). Not for JSON and CSV: declare a "
        "`STRING`, which takes the text as it is.",
    ),
    ColumnType(
        "VARIANT",
        "variant",
        "string",
        key=False,
        back="STRING",
        note="Stored as JSON, which `parse_json` reads back; types that JSON lacks become strings. Refused inside "
        "other types. Not for JSON and CSV: declare a `STRING`, which takes objects and arrays as their JSON.",
    ),
    ColumnType("ARRAY", "array", "list", key=False, note="Of any of these types, nested to any depth."),
    ColumnType("MAP", "map", "map", key=False, note="Of any of these types, nested to any depth."),
    ColumnType(
        "STRUCT",
        "struct",
        "struct",
        key=False,
        note="Of any of these types, nested to any depth, with at least one field. Tables can be partitioned by its "
        "fields.",
    ),
    ColumnType("VOID", "void", "", key=False, note="Refused: it does not determine the type of future values."),
)

_BY_SQL = {kind.sql: kind for kind in TYPES}
_BY_SPARK = {kind.spark: kind for kind in TYPES if kind.spark}
_BACK = {kind.iceberg: kind.sql.lower() for kind in TYPES if kind.iceberg and not kind.back}
_DECLARED = {kind.iceberg: kind.sql for kind in TYPES if kind.iceberg and (not kind.back or kind.sql == "UUID")}
_BASE = re.compile(r"[A-Za-z_]+")
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")


def declared_type(text: str) -> ColumnType | None:
    """The type of a declaration, which may have parameters: `DECIMAL(12,2)`, `ARRAY<INT>`."""
    base = _BASE.match(text)
    return _BY_SQL.get(base[0].upper()) if base else None


def spark_type(name: str) -> ColumnType | None:
    """The type with this name in Spark's JSON: `decimal(12,2)`, `interval day to second`, `array`."""
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


def sql_name(iceberg: str) -> str | None:
    """The name of a flat Iceberg type in calve's SQL; None if it has none."""
    return _DECLARED.get(iceberg)


def written_as(iceberg: str) -> str | None:
    """The Spark type in which values of a flat column are written; None if Spark has no such type."""
    decimal = decimal_of(iceberg)
    if decimal is not None:
        return f"decimal({decimal[0]},{decimal[1]})"
    if iceberg == "uuid" or iceberg.startswith("fixed"):
        return "binary"
    return {"time": "time(6)"}.get(iceberg) or _BACK.get(iceberg)


def leaves(text: str, path: str) -> Iterator[tuple[str, str]]:
    """The primitive types inside a declared type, each with its path. The text must be in canonical form."""
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
    """Split at the commas outside brackets and quotes."""
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
