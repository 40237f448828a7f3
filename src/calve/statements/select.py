"""SELECT ... FROM INFORMATION_SCHEMA.TABLES, COLUMNS, PARTITIONS: queries of the metastore in Spark's SQL.

The three names are replaced by views of a new Spark session, created for one query.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from calve.analyze.column_types import columns_of, schema_of
from calve.analyze.unit_rows import number_of
from calve.definitions.workplace import Workplace
from calve.errors import InvalidInput
from calve.metastore.component import Component
from calve.metastore.statistics import Bound, StatisticKind
from calve.metastore.tables import MetadataType, TableUnit, open_tables
from calve.spark.sqltext import ident
from calve.spark.version import quiet_analysis
from calve.sql.lexer import Lexer, Token, TokenKind
from calve.sql.statements import SelectQuery
from calve.statements.answers import RowsAnswer

SCHEMA: Final = "INFORMATION_SCHEMA"
CATALOG: Final = "calve"

_NAMED: Final = "TABLE_CATALOG STRING, TABLE_SCHEMA STRING, TABLE_NAME STRING"
_TABLES: Final = (
    f"{_NAMED}, TABLE_TYPE STRING, TABLE_SOURCE STRING, LOCATION STRING, NUM_ROWS BIGINT, NUM_FILES BIGINT, "
    "SIZE_BYTES BIGINT, METADATA_LEVEL STRING, LAST_MODIFIED_TIME TIMESTAMP"
)
_COLUMNS: Final = (
    f"{_NAMED}, COLUMN_NAME STRING, ORDINAL_POSITION INT, DATA_TYPE STRING, MIN_VAL STRING, MAX_VAL STRING, "
    "NUM_NULLS BIGINT, NUM_VALUES BIGINT"
)
_PARTITIONS: Final = (
    f"{_NAMED}, METADATA_KEY STRING, METADATA_TYPE STRING, METADATA_IDENTIFIER STRING, PARTITION_COLUMN STRING, "
    "PARTITION_VALUE STRING, LOCATION STRING, NUM_ROWS BIGINT, LAST_MODIFIED_TIME TIMESTAMP"
)

_Line = tuple[Any, ...]


def select(place: Workplace, statement: SelectQuery) -> RowsAnswer:
    """Execute a query. Raises InvalidInput if it reads anything else, or if Spark refuses it."""
    text, asked = _replace_names(statement.text)
    if not asked:
        raise InvalidInput(
            f"SELECT reads only {SCHEMA}.{', '.join(sorted(_VIEWS))}",
            hint="Read tables and folders with: calve read TABLE.",
        )
    with place.metastore() as metastore:
        tables = open_tables(metastore)
        lines = {name: list(_VIEWS[name][1](tables)) for name in sorted(asked)}
    session = place.spark().newSession()
    for name, found in lines.items():
        session.createDataFrame(found, _VIEWS[name][0]).createOrReplaceTempView(name)
    return _answer(session, text)


def _answer(session: SparkSession, text: str) -> RowsAnswer:
    try:
        with quiet_analysis():
            frame = session.sql(text)
        return RowsAnswer(tuple(frame.columns), tuple(_texts(frame)))
    except (PySparkException, Py4JError) as error:
        raise InvalidInput("Spark refuses the query", detail=str(error).strip().splitlines()[0]) from error


def _texts(frame: DataFrame) -> list[tuple[str, ...]]:
    names = [f"c{number}" for number in range(len(frame.columns))]  # names may be equal
    rows = frame.toDF(*names).selectExpr(*(f"cast({ident(name)} as string)" for name in names)).collect()
    return [tuple("null" if value is None else str(value) for value in row) for row in rows]


def _replace_names(text: str) -> tuple[str, set[str]]:
    """The query with the names of the views, and these names."""
    lexer, tokens = Lexer(text), list[Token]()
    while (token := lexer.next()).kind is not TokenKind.END:
        tokens.append(token)
    pieces, at, asked = list[str](), 0, set[str]()
    for first, dot, second in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if _name(first) == SCHEMA and dot.is_symbol("."):
            if _name(second) not in _VIEWS:
                raise InvalidInput(f"{SCHEMA} has no table {second.value}", hint=f"It has {', '.join(sorted(_VIEWS))}.")
            pieces += [text[at : first.start], _name(second)]
            at = second.end
            asked.add(_name(second))
    return "".join([*pieces, text[at:]]), asked


def _name(token: Token) -> str:
    return token.value.upper() if token.kind in {TokenKind.WORD, TokenKind.BACKTICK} else ""


# ------------------------------------------------------------------------------------------------------------- lines


def _tables(tables: Component[TableUnit]) -> Iterable[_Line]:
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


def _columns(tables: Component[TableUnit]) -> Iterable[_Line]:
    for unit in _in_order(tables.read(MetadataType.TABLE)):
        for place, (path, kind) in enumerate(columns_of(schema_of(unit.schema)) if unit.schema else (), 1):
            known = (unit.columns_statistics or {}).get(".".join(path))
            counted = (known.nulls, known.values) if known else (None, None)
            bounds = (_text(known.least), _text(known.greatest)) if known else (None, None)
            yield (*_names(unit), ".".join(path), place, kind.simpleString(), *bounds, *counted)


def _partitions(tables: Component[TableUnit]) -> Iterable[_Line]:
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


_VIEWS: Final[dict[str, tuple[str, Callable[[Component[TableUnit]], Iterable[_Line]]]]] = {
    "TABLES": (_TABLES, _tables),
    "COLUMNS": (_COLUMNS, _columns),
    "PARTITIONS": (_PARTITIONS, _partitions),
}


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
