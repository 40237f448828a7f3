"""Writes docs/types.md from the table of types: `python scripts/types_page.py [--check]`."""

import sys
from pathlib import Path

from pages import finish

from calve.model.types import TYPES, ColumnType

PAGE = Path(__file__).parents[1] / "docs" / "types.md"
HEAD = """# Types

The type of each column in a table (of format version 2 or 3), the type that Spark reads back, whether it can be a key,
and the partition transforms that accept it. Unsupported types are refused when the sink is created or, for columns
that only the data tells, when it starts; the error names the column.

`make docs` generates this page.

| type | in the table | read as | key | partitions | |
|---|---|---|---|---|---|
"""
TAIL = """
Every field has an id, at every level: columns, fields of structs, elements of arrays, keys and values of maps. Key
columns are required and identify rows. All other fields of a table that calve creates are optional, whatever the source
declares: an unexpected null must not stop a stream.

Debezium's encodings are converted to the declared types with the schema part of a record, also inside arrays, maps and
structs: decimals in base64, days, and times and timestamps in milliseconds, microseconds or nanoseconds (truncated to
microseconds). Without a schema part, numbers count days for `DATE`, and microseconds for times and timestamps
unless `EPOCH UNIT` says otherwise; numbers so small that they probably count milliseconds are bad rows.

## Protobuf

Values of `FORMAT PROTOBUF` are converted by the rules of JSON, from these forms; INFER and `calve init` choose these
types:

| field | value | inferred type |
|---|---|---|
| `int32`, `sint32`, `sfixed32` | number | `INT` |
| `int64`, `sint64`, `sfixed64`, `uint32`, `fixed32` | number | `BIGINT` |
| `uint64`, `fixed64` | number | `DECIMAL(20,0)` |
| `float`, `double`, `bool`, `string` | as in JSON; NaN and infinities: text | `FLOAT`, `DOUBLE`, `BOOLEAN`, `STRING` |
| `bytes` | base64 | `BINARY` |
| enum | the name of the value; the number of one that the schema does not know | `STRING` |
| message, group | object | `STRUCT`; `STRING` with JSON if it contains itself |
| `repeated` | array | `ARRAY` |
| `map` | object | `MAP<STRING, ...>`; `STRING` with JSON if keys are not strings |
| `google.protobuf.Timestamp` | ISO 8601, truncated to microseconds | `TIMESTAMP` |
| `google.protobuf.Duration` | seconds: `1.5s` | `STRING` |
| `google.protobuf.Int64Value` and the like | the value, or null | that of the value |
| `google.protobuf.Struct`, `Value`, `ListValue` | the JSON that they stand for | `STRING` |
| `google.type.Date`, `google.type.TimeOfDay` | ISO 8601 | `DATE`, `STRING` (declare `TIME`) |
| `confluent.type.Decimal` | its digits | `DECIMAL(38,10)`: set the scale |

A field that was not set is null if that can be told: messages, members of a `oneof`, `optional` fields, and fields of
proto2 without a default. Other fields have their default (0, an empty string), as for every reader of Protobuf.

## Types of format version 3

No column of an input has these types, and calve creates no columns of them. Other tools may add them to a table of
version 3. A sink whose input lacks such a column writes to the table as usual; an input with a column of the same name
is refused.

- `timestamp_ns`, `timestamptz_ns`: `calve read` returns them, compactions keep the nanoseconds. `calve.read` refuses
  them, since Spark has no such type: select the other columns. pyiceberg reads both. DuckDB 1.5 reads `timestamp_ns`,
  and no table with a `timestamptz_ns`, whichever columns are selected. Spark with the runtime 1.12 reads no table with
  either.
- `unknown`: null, `VOID` in Spark. Files have neither columns nor fields of this type. pyiceberg and Spark read such
  tables, DuckDB 1.5 does not, whichever columns are selected. It may also be the type of a field in a struct that has
  other fields. Lists and maps of `unknown`, and structs of nothing else, cannot be stored: `calve read` reads tables
  with such a column, sinks and compactions refuse them.
- `geometry`, `geography`: `calve read` returns their bytes, and compactions keep them; `calve.read` refuses them. Files
  of compactions have the bytes without Parquet's own type for them: DuckDB 1.5 and pyiceberg 0.12 refuse to read the
  column of such a file.
- `variant`: the table is refused. pyiceberg 0.12, with which calve reads metadata, does not know the type.

A `VARIANT` of a source is stored as JSON in version 3, too.

## Default values

Other tools may give columns of a table of version 3 an initial default, for rows that were written before the column
was added, and a write default, for rows whose writer has no value. calve sets neither.

- All readers of calve return the initial default where a file lacks the column, and compactions write it. So do
  Spark with the runtime 1.12, DuckDB 1.5 and pyiceberg.
- If the input of a sink lacks a column that has a default, its files contain the column: with the write default of the
  moment at which the batch is written, or null if there is none. That holds as soon as the sink has loaded the changed
  table, at the latest after its next commit; a batch that was written before has the initial default. A required column
  may be missing in the input if it has a write default. Partitions follow these values.
- A null in the input is null in the table, whatever the default is.
- Spark with the runtime 1.12 writes the write default, too, where an `INSERT` lacks the column. It cannot set defaults.
- A nested field with a default has to be in the input, or the sink refuses the table; rows without the whole struct are
  fine. Tables with a default of a struct, or of a timestamp in nanoseconds, are refused: pyiceberg 0.12 does not read
  their metadata.
"""
PARAMETERS = {"DECIMAL": "(p,s)", "CHAR": "(n)", "VARCHAR": "(n)", "ARRAY": "<...>", "MAP": "<..., ...>"}
PARAMETERS |= {"STRUCT": "<...>", "INTERVAL": " ..."}


def page() -> str:
    """The whole page."""
    return HEAD + "\n".join(map(_row, TYPES)) + "\n" + TAIL


def _row(kind: ColumnType) -> str:
    name = kind.sql + PARAMETERS.get(kind.sql, "")
    stored = f"`{kind.iceberg}{'(p,s)' if kind.iceberg == 'decimal' else ''}`" if kind.iceberg else "refused"
    back = kind.back or (name if kind.iceberg else "")
    transforms = ", ".join(t for t in kind.transforms if t != "void")
    cells = [f"`{name}`", stored, f"`{back}`" if back else "", "yes" if kind.key else "no", transforms, kind.note]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(finish(PAGE, page()))
