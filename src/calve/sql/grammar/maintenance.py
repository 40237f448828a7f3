"""Statements that maintain a table: OPTIMIZE TABLE, EXPIRE SNAPSHOTS, REMOVE ORPHAN FILES and the like."""

from collections.abc import Callable

from calve.sql.grammar import spark
from calve.sql.grammar.cursor import Cursor
from calve.sql.grammar.options import with_clause
from calve.sql.statements import MaintainTable, MaintenanceKind


def maintenance(kind: MaintenanceKind) -> Callable[[Cursor], MaintainTable]:
    """The grammar of one of these statements, after its first word."""
    first, *rest = kind.value.split()
    condition = " [WHERE condition]" if kind is MaintenanceKind.OPTIMIZE else ""

    def parse(cursor: Cursor) -> MaintainTable:
        cursor.usage = f"{kind.value} name{condition} [WITH (option, ...)]"
        cursor.expect_words(*rest, after=first)
        target = cursor.field_path("the name of a table or a sink")
        where = ""
        if condition and cursor.accept_words("WHERE"):
            where = spark.condition_before_options(cursor, "a condition after WHERE")
        return MaintainTable(kind=kind, target=target, where_text=where, options=with_clause(cursor))

    return parse
