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
microseconds). Without a schema part, numbers count days for `DATE`; for times and timestamps set `EPOCH UNIT`.
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
