"""The columns of a frame of changes: the table's columns in table order, followed by these.

A frame of changes has one row per change. `source/` makes it out of any envelope, `write/` turns it into files, and
nothing else knows these names.
"""

from collections.abc import Iterable

OP = "_calve_op"
"""BYTE: `UPSERT` or `DELETE`. A delete carries the key columns only; the others are null."""

ORDER_PREFIX = "_calve_order_"
"""One or more orderable, non-null columns `_calve_order_0`, `_calve_order_1`, ...: of several changes of one key the
greatest wins."""

ORDER = "_calve_order"
"""A column of tables whose changes are ordered across checkpoints: what the row was ordered by."""

BAD = "_calve_bad"
"""STRING: null, or an encoded `BadRow` (see `errors.encode`) for a record that cannot become a change, with the
record behind it (see `letter`). A writer that meets one raises it and writes nothing that is committed."""

BEFORE = "_calve_before"
"""STRUCT of the table's columns, only where it was asked for: the row as it was before this change, null for a new one.
It has the same key as the change: a row whose key changes is deleted under the old one and new under the other."""

TIME = "_calve_time"
"""BIGINT: milliseconds of logical time, where rows have one of their own; and a column of tables that keep a log."""

DIFF = "_calve_diff"
"""INT: how many of the row come, or go (below 0), in place of operation and order; and a column of tables that keep a
log."""

PROGRESS = "_calve_progress"
"""BOOLEAN, beside DIFF: the row is no change, it says that no time below its own follows; without a time, nothing."""

RESERVED_PREFIX = "_calve_"
"""Columns of the user must not start with this."""

UPSERT = 1
DELETE = -1


def order_columns(columns: Iterable[str]) -> list[str]:
    """The order columns among `columns`, most significant first."""
    found = [c for c in columns if c.startswith(ORDER_PREFIX)]
    return sorted(found, key=lambda c: int(c.removeprefix(ORDER_PREFIX)))


def table_columns(columns: Iterable[str], *, log: bool = False) -> list[str]:
    """The table's columns among `columns`: the user's, and the order where it is kept; a log has two more."""
    own = {ORDER, DIFF, TIME} if log else {ORDER}
    return [c for c in columns if c in own or not c.startswith(RESERVED_PREFIX)]
