"""`calve.convert_deletes`, `calve.compact`: maintenance by hand."""

from calve.clock import RandomIds, SystemClock
from calve.maintain.compact import Compacted, Scope
from calve.maintain.compact import compact as compact_files
from calve.maintain.convert import Converted, Tools
from calve.maintain.convert import convert_deletes as convert
from calve.runtime.lake import TableRef


def convert_deletes(table: TableRef) -> Converted | None:
    """Replace equality deletes of a table, whoever wrote them, by position deletes; None when it has none.

    One `replace` snapshot that changes no row. Sinks, of calve or others, may go on meanwhile: they win.
    """
    return convert(table.lake.open(), table.name, _tools(table))


def compact(table: TableRef, *, branch: str = "main") -> Compacted | None:
    """Join small data files of a table, and write files anew that have deleted rows; None when there are none.

    `replace` snapshots that change no row. Sinks, of calve or others, may go on meanwhile: they win.
    """
    return compact_files(table.lake.open(), Scope(table.name, branch), _tools(table))


def _tools(table: TableRef) -> Tools:
    return Tools(table.lake.spark, SystemClock(), RandomIds())
