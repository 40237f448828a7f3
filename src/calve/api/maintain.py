"""`calve.convert_deletes`, `calve.compact`: manual maintenance from Python."""

from dataclasses import replace

from calve.calls import for_users
from calve.clock import RandomIds, SystemClock
from calve.iceberg.planning.compaction_groups import BY_HAND, SORTING
from calve.lake import Lake, TableRef, check_table
from calve.maintain.compact import Compacted, CompactionScope
from calve.maintain.compact import compact as compact_files
from calve.maintain.convert import ConversionTools, Converted
from calve.maintain.convert import convert_deletes as convert
from calve.model.spec import RowOrder
from calve.spark.executors import asked_first


@for_users
def convert_deletes(table: TableRef) -> Converted | None:
    """Replace the equality deletes of a table, of any writer, with position deletes; None if there are none.

    In tables of format version 3, with deletion vectors. Commits snapshots that do not change rows. Other writers may
    continue: a commit that conflicts is repeated on the new state, with the work already done.
    """
    check_table("calve.convert_deletes", table)
    return convert(table.lake.open(), table.name, _tools(table.lake))


@for_users
def compact(table: TableRef, *, branch: str = "main", sort_by: str | None = None) -> Compacted | None:
    """Merge small data files of a table, and rewrite files with deleted rows; None if there are none.

    With `sort_by="region, created"`, or `"zorder(lat, lon)"`, all files are rewritten, with their rows in that order.
    Commits `replace` snapshots that do not change rows. Other writers may continue: on a conflict they win.
    """
    check_table("calve.compact", table)
    scope, policy = CompactionScope(table.name, branch), BY_HAND
    if sort_by is not None:
        scope, policy = replace(scope, order=RowOrder.parse(sort_by)), SORTING
    return compact_files(table.lake.open(), scope, _tools(table.lake), policy)


def _tools(lake: Lake) -> ConversionTools:
    return ConversionTools(asked_first(lake.spark), SystemClock(), RandomIds())
