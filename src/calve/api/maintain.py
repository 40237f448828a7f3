"""`calve.convert_deletes`, `calve.compact`: manual maintenance from Python."""

from calve.clock import RandomIds, SystemClock
from calve.lake import Lake, TableRef
from calve.maintain.compact import Compacted, CompactionScope
from calve.maintain.compact import compact as compact_files
from calve.maintain.convert import ConversionTools, Converted
from calve.maintain.convert import convert_deletes as convert
from calve.spark.executors import asked_first


def convert_deletes(table: TableRef) -> Converted | None:
    """Replace the equality deletes of a table, of any writer, with position deletes; None if there are none.

    Commits `replace` snapshots that do not change rows. Other writers may continue: on a conflict they win.
    """
    return convert(table.lake.open(), table.name, _tools(table.lake))


def compact(table: TableRef, *, branch: str = "main") -> Compacted | None:
    """Merge small data files of a table, and rewrite files with deleted rows; None if there are none.

    Commits `replace` snapshots that do not change rows. Other writers may continue: on a conflict they win.
    """
    return compact_files(table.lake.open(), CompactionScope(table.name, branch), _tools(table.lake))


def _tools(lake: Lake) -> ConversionTools:
    return ConversionTools(asked_first(lake.spark), SystemClock(), RandomIds())
