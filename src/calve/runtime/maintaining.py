"""`calve.convert_deletes`: maintenance by hand."""

from calve.clock import RandomIds, SystemClock
from calve.maintain.convert import Converted, Tools
from calve.maintain.convert import convert_deletes as convert
from calve.runtime.lake import TableRef


def convert_deletes(table: TableRef) -> Converted | None:
    """Replace equality deletes of a table, whoever wrote them, by position deletes; None when it has none.

    One `replace` snapshot that changes no row. Sinks, of calve or others, may go on meanwhile: they win.
    """
    return convert(table.lake.open(), table.name, Tools(table.lake.spark, SystemClock(), RandomIds()))
