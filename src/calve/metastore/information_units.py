"""Makes the rows of INFORMATION_SCHEMA out of units, and keeps the copy of a home folder current.

A data file of the component never changes, so only files that the last copy does not know are read.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from calve.metastore.component import Component
from calve.metastore.information import FileLines, InformationLines, Line, last_copy
from calve.metastore.statistics import Bound, StatisticKind
from calve.metastore.tables import MetadataType, TableUnit, number_of
from calve.model.instants import datetime_at

_TABLE_CATALOG: Final = "calve"
"""What TABLE_CATALOG contains: tables are told apart by their plugin and workspace, whatever catalog has them."""
MOST_UNITS: Final = 50_000
"""Of a component that is copied: the copy of a larger one would take longer to read than the component."""


def copy_lines(tables: Component[TableUnit], home: Path) -> InformationLines:
    """The rows as they are now; they are copied, to read them faster the next time."""
    before = last_copy(home)
    known = before.files if before else {}
    found = tables.read_files(MetadataType.TABLE, MetadataType.SEGMENT, MetadataType.PARTITION, known=known)
    new = {path: _lines(units) for path, units in found.units.items()}
    lines = InformationLines(found.moment, {path: new[path] if path in new else known[path] for path in found.paths})
    if found.rows <= MOST_UNITS and (before is None or before.metadata != lines.metadata):
        lines.write(home)
    return lines


def _lines(units: Iterable[TableUnit]) -> FileLines:
    found: dict[str, list[Line]] = {"TABLES": [], "COLUMNS": [], "PARTITIONS": []}
    for unit in units:
        if unit.metadata_type is MetadataType.TABLE:
            found["TABLES"].append(_table(unit))
            found["COLUMNS"] += _columns(unit)
        else:
            found["PARTITIONS"].append(_partition(unit))
    return found


def _table(unit: TableUnit) -> Line:
    return (
        *_names(unit),
        "TABLE",
        unit.table_type,
        unit.location,
        number_of(unit, StatisticKind.ROWS),
        number_of(unit, StatisticKind.FILES),
        number_of(unit, StatisticKind.BYTES),
        next((str(s.value) for s in unit.metadata_statistics or () if s.kind is StatisticKind.LEVEL), None),
        _instant(unit),
    )


def _columns(unit: TableUnit) -> Iterator[Line]:
    for place, (path, kind) in enumerate(_leaves(json.loads(unit.schema)) if unit.schema else (), 1):
        known = (unit.columns_statistics or {}).get(".".join(path))
        counted = (known.nulls, known.values) if known else (None, None)
        bounds = (_text(known.least), _text(known.greatest)) if known else (None, None)
        yield (*_names(unit), ".".join(path), place, kind, *bounds, *counted)


def _partition(unit: TableUnit) -> Line:
    return (
        *_names(unit),
        unit.metadata_key,
        str(unit.metadata_type),
        unit.metadata_identifier,
        unit.column,
        ", ".join(unit.partition_values) if unit.partition_values else None,
        unit.location,
        number_of(unit, StatisticKind.ROWS),
        _instant(unit),
    )


def _leaves(schema: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every column and every field of a struct, by its path, of a Spark schema in JSON."""
    for field in schema["fields"]:
        path, kind = (*prefix, field["name"]), field["type"]
        if isinstance(kind, dict) and kind["type"] == "struct":
            yield from _leaves(kind, path)
        else:
            yield path, _type_text(kind)


def _type_text(kind: Any) -> str:
    """A type as Spark's `simpleString` writes it."""
    if isinstance(kind, str):
        return _SHORT.get(kind, kind)
    match kind["type"]:
        case "array":
            return f"array<{_type_text(kind['elementType'])}>"
        case "map":
            return f"map<{_type_text(kind['keyType'])},{_type_text(kind['valueType'])}>"
        case "struct":
            fields = [f"{field['name']}:{_type_text(field['type'])}" for field in kind["fields"]]
            return f"struct<{','.join(fields)}>"
        case _:
            return str(kind["type"])


_SHORT: Final = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}


def _names(unit: TableUnit) -> tuple[str, str, str]:
    return _TABLE_CATALOG, f"{unit.storage_plugin}.{unit.workspace}", unit.table_name or ""


def _instant(unit: TableUnit) -> datetime | None:
    return None if unit.last_modified_time is None else datetime_at(unit.last_modified_time)


def _text(bound: Bound | None) -> str | None:
    match bound:
        case None:
            return None
        case bytes():
            return bound.hex()
        case bool():
            return str(bound).lower()
        case datetime():
            return bound.isoformat(sep=" ")
        case _:
            return str(bound)
