"""INFORMATION_SCHEMA.TABLES, COLUMNS and PARTITIONS: the metastore as rows."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from calve.analyze.unit_rows import number_of
from calve.definitions.workplace import Workplace
from calve.metastore.component import Component
from calve.metastore.statistics import Bound, StatisticKind
from calve.metastore.tables import MetadataType, TableUnit, open_tables

SCHEMA: Final = "INFORMATION_SCHEMA"
CATALOG: Final = "calve"

Columns = tuple[tuple[str, str], ...]
"""Names and types."""
Line = tuple[Any, ...]


def _typed(text: str) -> Columns:
    return tuple((name, kind) for name, _, kind in (one.partition(" ") for one in text.split(", ")))


_NAMED: Final = "TABLE_CATALOG STRING, TABLE_SCHEMA STRING, TABLE_NAME STRING"
_TABLES: Final = _typed(
    f"{_NAMED}, TABLE_TYPE STRING, TABLE_SOURCE STRING, LOCATION STRING, NUM_ROWS BIGINT, NUM_FILES BIGINT, "
    "SIZE_BYTES BIGINT, METADATA_LEVEL STRING, LAST_MODIFIED_TIME TIMESTAMP"
)
_COLUMNS: Final = _typed(
    f"{_NAMED}, COLUMN_NAME STRING, ORDINAL_POSITION INT, DATA_TYPE STRING, MIN_VAL STRING, MAX_VAL STRING, "
    "NUM_NULLS BIGINT, NUM_VALUES BIGINT"
)
_PARTITIONS: Final = _typed(
    f"{_NAMED}, METADATA_KEY STRING, METADATA_TYPE STRING, METADATA_IDENTIFIER STRING, PARTITION_COLUMN STRING, "
    "PARTITION_VALUE STRING, LOCATION STRING, NUM_ROWS BIGINT, LAST_MODIFIED_TIME TIMESTAMP"
)


def lines_of(place: Workplace, names: Iterable[str]) -> dict[str, list[Line]]:
    """The rows of these tables, at one moment each."""
    wanted = sorted(names)
    if not wanted:
        return {}
    with place.metastore() as metastore:
        tables = open_tables(metastore)
        return {name: list(VIEWS[name][1](tables)) for name in wanted}


def _tables(tables: Component[TableUnit]) -> Iterable[Line]:
    for unit in _in_order(tables.read(MetadataType.TABLE)):
        yield (
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


def _columns(tables: Component[TableUnit]) -> Iterable[Line]:
    for unit in _in_order(tables.read(MetadataType.TABLE)):
        for place, (path, kind) in enumerate(_leaves(json.loads(unit.schema)) if unit.schema else (), 1):
            known = (unit.columns_statistics or {}).get(".".join(path))
            counted = (known.nulls, known.values) if known else (None, None)
            bounds = (_text(known.least), _text(known.greatest)) if known else (None, None)
            yield (*_names(unit), ".".join(path), place, kind, *bounds, *counted)


def _partitions(tables: Component[TableUnit]) -> Iterable[Line]:
    for unit in _in_order(tables.read(MetadataType.SEGMENT, MetadataType.PARTITION)):
        yield (
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


VIEWS: Final[dict[str, tuple[tuple[tuple[str, str], ...], Callable[[Component[TableUnit]], Iterable[Line]]]]] = {
    "TABLES": (_TABLES, _tables),
    "COLUMNS": (_COLUMNS, _columns),
    "PARTITIONS": (_PARTITIONS, _partitions),
}


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


def _in_order(units: Sequence[TableUnit]) -> list[TableUnit]:
    return sorted(units, key=lambda unit: (*_names(unit), unit.metadata_key or "", unit.metadata_identifier or ""))


def _names(unit: TableUnit) -> tuple[str, str, str]:
    return CATALOG, f"{unit.storage_plugin}.{unit.workspace}", unit.table_name or ""


def _instant(unit: TableUnit) -> datetime | None:
    return None if unit.last_modified_time is None else datetime.fromtimestamp(unit.last_modified_time / 1000, UTC)


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
