"""The arithmetic of totals: tables with one row per group, added up group by group.

    _calve__g0, ...   the group
    n                 rows
    c0, ...           per aggregate function: rows with a value
    s0, ...           the sum of the values, DECIMAL(38) or DOUBLE
    lo0, hi0, ...     minimum and maximum in Spark's order: NaN is above all other numbers

The driver and tasks compute with the same functions; a task has the groups of a range of hashes.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from calve.errors import TerminalError
from calve.view.groups import GROUP

ROWS = "n"
_TOUCHED = "_calve__touched"
_BITS = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def group_names(schema: pa.Schema) -> list[str]:
    """The columns that identify a group."""
    return [name for name in schema.names if name.startswith(GROUP)]


def add_piece(totals: pa.Table, piece: pa.Table, view: str) -> tuple[pa.Table, pa.Table]:
    """Add a piece: the totals after it, and the rows of the groups it touched; `n` is 0 for groups without rows."""
    tables = [_mark(totals, 0), _mark(piece.cast(totals.schema), 1)]
    both = sum_by_group(tables)
    touched = both.filter(pc.equal(both[_TOUCHED], 1)).drop_columns([_TOUCHED])
    _check_counts(touched, view)
    return live_groups(both.drop_columns([_TOUCHED]), view), touched


def _mark(table: pa.Table, mark: int) -> pa.Table:
    return table.append_column(_TOUCHED, pa.repeat(pa.scalar(mark, pa.int8()), table.num_rows))


def sum_by_group(tables: Sequence[pa.Table]) -> pa.Table:
    """Add up tables with the same schema, group by group."""
    schema = tables[0].schema.remove_metadata()
    whole = pa.concat_tables([t.cast(schema) for t in tables])
    groups = group_names(schema)
    rest = [name for name in schema.names if name not in groups]
    comparable = pa.table([_comparable(whole[name], name) for name in schema.names], schema.names)
    sums = comparable.group_by(groups, use_threads=False).aggregate([(name, _function(name)) for name in rest])
    ordered = sums.select([*groups, *(f"{name}_{_function(name)}" for name in rest)]).rename_columns([*groups, *rest])
    try:
        columns = [_restored(ordered[field.name], field) for field in schema]
        return pa.table(columns, schema=schema)
    except pa.ArrowInvalid as error:
        raise TerminalError("a sum has more than 38 digits", detail=str(error)) from error


def _comparable(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A column in a form that Arrow sums without overflow and compares in Spark's order."""
    kind = column.type
    if pa.types.is_decimal128(kind):
        return column.cast(pa.decimal256(76, kind.scale))  # room for any sum, so that overflow is detected
    if _function(name) != "sum" and kind in _BITS:
        # Arrow ignores NaN in minima and maxima, and does not order -0.0 and 0.0.
        nan = pa.scalar(float("nan"), kind)
        whole = pc.if_else(
            pc.is_nan(column), nan, column
        ).combine_chunks()  # NaN has many bit patterns, some of them negative
        return pa.chunked_array([_ordered_bits(whole.view(_BITS[kind]))])
    return column


def _restored(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Inverse of `_comparable`."""
    if _function(field.name) != "sum" and field.type in _BITS:
        return pa.chunked_array([_ordered_bits(column.combine_chunks()).view(field.type)])
    return column.cast(field.type)


def _ordered_bits(bits: pa.Array) -> pa.Array:
    """Map the bits of floats to integers of the same order: -Infinity, ..., -0.0, 0.0, ..., NaN. Its own inverse."""
    magnitude = pa.scalar((1 << (bits.type.bit_width - 1)) - 1, bits.type)
    return pc.if_else(pc.less(bits, 0), pc.bit_wise_xor(bits, magnitude), bits)


def _function(name: str) -> str:
    return "min" if name.startswith("lo") else "max" if name.startswith("hi") or name == _TOUCHED else "sum"


def live_groups(table: pa.Table, view: str) -> pa.Table:
    """The groups that have rows. Raises TerminalError for a negative count."""
    _check_counts(table, view)
    return table.filter(pc.greater(table[ROWS], 0))


def _check_counts(table: pa.Table, view: str) -> None:
    wrong = table.filter(pc.less(table[ROWS], 0))
    if wrong.num_rows:
        first = wrong.select(group_names(wrong.schema)).slice(0, 1).to_pylist()[0]
        raise TerminalError(
            f'more rows were removed from a group of view "{view}" than it has',
            detail=f"The group is ({', '.join(str(v) for v in first.values())}). A change arrived twice, or its before "
            "differs from the row.",
            hint="The source has to deliver every change once, with the complete row in before.",
        )
