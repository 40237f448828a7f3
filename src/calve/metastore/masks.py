"""Filters over Arrow tables: the same answers as row by row, a column at a time.

Arrow's comparisons answer null for nulls; each of them is settled at once by what the filter says of nulls, so that no
null ever meets a connective.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from calve.metastore.filters import (
    Absence,
    Comparison,
    Either,
    Every,
    Filter,
    Leaf,
    Membership,
    Negation,
    Operator,
)

_COMPARE: dict[Operator, Callable[[Any, Any], Any]] = {
    Operator.EQUAL: pc.equal,
    Operator.NOT_EQUAL: pc.not_equal,
    Operator.LESS: pc.less,
    Operator.LESS_OR_EQUAL: pc.less_equal,
    Operator.GREATER: pc.greater,
    Operator.GREATER_OR_EQUAL: pc.greater_equal,
}


def matching(table: pa.Table, condition: Filter) -> pa.Table:
    """The rows that match; the table has all columns that the filter looks at."""
    if not table.num_rows or not condition.columns():
        return table if condition.outcome({}) is not False else table.slice(0, 0)
    return table.filter(_mask(table, condition))


def _mask(table: pa.Table, condition: Filter) -> Any:
    match condition:
        case Negation(negated):
            return pc.invert(_mask(table, negated))
        case Every(parts):
            return reduce(pc.and_, (_mask(table, part) for part in parts), _all(table, answer=True))
        case Either(parts):
            return reduce(pc.or_, (_mask(table, part) for part in parts), _all(table, answer=False))
        case Leaf():
            return _leaf(table.column(condition.column).combine_chunks(), condition)
        case _:
            raise TypeError(f"no filter: {condition!r}")


def _leaf(column: pa.Array, leaf: Leaf) -> Any:
    match leaf:
        case Comparison(operator=operator, value=value):
            answers = _COMPARE[operator](column, pa.scalar(value, column.type))
            return pc.fill_null(answers, operator is Operator.NOT_EQUAL)
        case Membership(members=members, negated=negated):
            among = pc.is_in(column, pa.array(members, column.type))
            return pc.invert(among) if negated else among
        case Absence(negated=negated):
            return pc.is_valid(column) if negated else pc.is_null(column)
        case _:
            raise TypeError(f"no filter: {leaf!r}")


def _all(table: pa.Table, *, answer: bool) -> Any:
    return pa.repeat(answer, table.num_rows)
