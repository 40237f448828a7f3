"""Pieces of Spark SQL as text, and columns by name.

Envelopes are SQL text and not calls on `Column`: a record with a hundred columns would take about a thousand calls,
each a round trip to the JVM, for every micro-batch. No literal here contains a backslash, since a session setting
(`spark.sql.parser.escapedStringLiterals`) changes its meaning.

`not_utf8` and `outside_of_years` find values of Spark that others cannot read. Spark does not validate strings: Parquet
files and casts of BINARY can contain any bytes. In a table they would make the file unreadable for other engines, so
they are searched for where rows are read and again before they are written. Timestamps outside of the years 0001 to
9999 are fine in a table, but Python cannot represent them.
"""

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql import types as T  # noqa: N812 - as above

from calve.spark.version import is_utf8


def ident(*parts: str) -> str:
    """A quoted column, or a field of one."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def quoted(name: str) -> Column:
    """A column by its exact name, dots and all."""
    return F.col(ident(name))


def literal(text: str) -> str:
    """A string literal for any text."""
    if "'" in text or "\\" in text:
        return f"cast(X'{text.encode().hex()}' as string)"
    return f"'{text}'"


def coalesce(choices: list[str], null_type: str) -> str:
    """The first value that is not null."""
    return f"coalesce({', '.join([*choices, f'cast(null as {null_type})'])})"


_Leaf = Callable[[str, T.DataType], str]


def not_utf8(sql: str, data_type: T.DataType) -> str:
    """SQL: whether a value contains a string that is not UTF-8; null counts as false. Empty for types without any."""
    return _found(sql, data_type, _garbled, 0)


def outside_of_years(sql: str, data_type: T.DataType) -> str:
    """SQL: whether a value contains a time that Python lacks; null counts as false. Empty for types without any."""
    return _found(sql, data_type, _outside, 0)


def _garbled(sql: str, data_type: T.DataType) -> str:
    return f"not {is_utf8(sql)}" if isinstance(data_type, T.StringType) else ""


def _outside(sql: str, data_type: T.DataType) -> str:
    moment = isinstance(data_type, T.DateType | T.TimestampType | T.TimestampNTZType)
    return f"year({sql}) not between 1 and 9999" if moment else ""


def _found(sql: str, data_type: T.DataType, leaf: _Leaf, depth: int) -> str:
    match data_type:
        case T.ArrayType():
            return _any(sql, data_type.elementType, leaf, depth)
        case T.MapType():
            keys = _any(f"map_keys({sql})", data_type.keyType, leaf, depth)
            return _or([keys, _any(f"map_values({sql})", data_type.valueType, leaf, depth)])
        case T.StructType():
            return _or([_found(f"{sql}.{ident(f.name)}", f.dataType, leaf, depth) for f in data_type.fields])
    return leaf(sql, data_type)


def _any(array: str, element: T.DataType, leaf: _Leaf, depth: int) -> str:
    name = f"_calve__x{depth}"
    found = _found(name, element, leaf, depth + 1)
    return f"exists({array}, {name} -> {found})" if found else ""


def _or(parts: list[str]) -> str:
    return f"({' or '.join(filter(None, parts))})" if any(parts) else ""
