"""Row-wise views: changes of the input become changes of the view, one by one.

    INSERT   a row that passes the view is inserted; others are skipped
    FOLLOW   an upsert that passes is an upsert; one that does not, and every delete, is a delete of its key
    REKEY    the old row is deleted under its old key in the view, the new row is written under its new key;
             among the changes of a key, retractions apply before insertions

If several rows of a static table match one row, the view would have several rows with one key, and an arbitrary one
would win: these are bad rows. So are two input rows that get the same key of a REKEY view in one checkpoint.

An inserted row with a null in its key is a bad row, too; its dead letter contains it as JSON. A retracted row with a
null in its key is skipped, since it was never inserted.

Order columns pass unchanged; a REKEY view puts the side before them.

Changes with old rows (BEFORE) become retracted and inserted rows: a change that replaces b by a is b with -1 and a
with +1. `signed_rows` does this for every change. `net_rows` returns at most two rows per key of the input: it retracts
the row before the first change of the checkpoint and inserts the row after the last one. Only then can all retractions
apply before all insertions, whatever the order of changes of different rows was; Kafka does not reveal that order for
rows in different partitions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from calve.errors import BadRow, TerminalError
from calve.model.change import BAD, BEFORE, DELETE, OP, ORDER_PREFIX, ORIGIN_CLOSE, ORIGIN_OPEN, UPSERT, order_columns
from calve.spark.sqltext import ident, literal
from calve.view.catalyst import Catalyst, Node, outputs
from calve.view.plan import Mode, ViewPlan
from calve.view.rewrite import KEEP, Rewriter
from calve.view.scope import ViewScope

SIDE = "_calve__side"
"""TINYINT: UPSERT for an inserted row, DELETE for a retracted one."""

_FIRST, _LAST, _ORDER, _ROW = "_calve__first", "_calve__last", "_calve__order", "_calve__row"


def signed_rows(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The retracted and inserted row of every change, with its side, order and error."""
    return _sides(
        frame.selectExpr(
            f"{BEFORE} as {_FIRST}", f"{_struct(columns)} as {_LAST}", OP, f"{_order(frame)} as {_ORDER}", BAD
        ),
        columns,
        order_columns(frame.columns),
    )


def net_rows(frame: DataFrame, columns: Sequence[str], key: Sequence[str]) -> DataFrame:
    """The net effect of a checkpoint: at most one row of each side per key of the input."""
    at = _order(frame)
    # Bad rows have no key and form one group; any of their errors is raised.
    last = frame.groupBy(*[F.col(ident(name)) for name in key]).agg(
        _named(f"min_by({BEFORE}, {at})", _FIRST),
        _named(f"max_by({_struct(columns)}, {at})", _LAST),
        _named(f"max_by({OP}, {at})", OP),
        _named(f"max({at})", _ORDER),
        _named(f"max({BAD})", BAD),
    )
    return _sides(last, columns, order_columns(frame.columns))


def _sides(frame: DataFrame, columns: Sequence[str], orders: Sequence[str]) -> DataFrame:
    gone = f"if({_FIRST} is not null and {BAD} is null, named_struct('side', {DELETE}Y, 'row', {_FIRST}), null)"
    come = f"if({OP} = {UPSERT} or {BAD} is not null, named_struct('side', {UPSERT}Y, 'row', {_LAST}), null)"
    exploded = frame.selectExpr(f"explode(array_compact(array({gone}, {come}))) as {_ROW}", _ORDER, BAD)
    return exploded.selectExpr(
        *[f"{ident(_ROW, 'row', name)} as {ident(name)}" for name in columns],
        f"{_ROW}.side as {SIDE}",
        *[f"{ident(_ORDER, name)} as {name}" for name in orders],
        BAD,
    )


def _struct(columns: Sequence[str]) -> str:
    return f"struct({', '.join(ident(name) for name in columns)})"


def _order(frame: DataFrame) -> str:
    return _struct(order_columns(frame.columns))


def _named(sql: str, name: str) -> Column:
    return F.expr(sql).alias(name)


KEY_COPY = "_calve__key_"
"""Prefix of the leaf's columns with the key of the view's row, which identifies a delete; a number follows."""

_FOLLOWING = frozenset({Mode.FOLLOW, Mode.GROUP})
_BAD = "_calve__bad"
_COMING = "_calve__coming"


@dataclass(frozen=True)
class LeafFrame:
    """A frame that replaces a plan's leaf: the leaf's columns first, then hidden ones, then the flag."""

    frame: DataFrame
    hidden: tuple[str, ...]

    def plan(self, catalyst: Catalyst, node: Node) -> Node:
        """The operator that replaces `node` and has its columns."""
        plan = catalyst.plan_of(self.frame)
        found, expected = outputs(plan), outputs(node)
        renamed = [catalyst.renamed(c, e) for c, e in zip(found, expected, strict=False)]
        return catalyst.project([*renamed, *found[len(expected) :]], plan)


def row_changes(scope: ViewScope, plan: ViewPlan, frame: DataFrame) -> DataFrame:
    """Compute the changes of a row-wise view from the changes of its input."""
    leaf = _leaf(plan, frame)
    rewriter = Rewriter(scope.catalyst, scope.is_input, lambda node: leaf.plan(scope.catalyst, node), leaf.hidden)
    if plan.mode is Mode.FOLLOW:
        rewriter.count_matches()
    rows = scope.catalyst.frame(rewriter.rewrite(scope.analyse()), frame.sparkSession)
    return changes_from_rows(plan, rows, rewriter)


def _check_types(plan: ViewPlan, rows: DataFrame) -> None:
    """Refuse columns whose types differ from those at planning time, which are the types of the target table."""
    found = {f.name: f.dataType.simpleString() for f in rows.schema.fields}
    for field in plan.schema.fields:
        before, now = field.dataType.simpleString(), found.get(field.name)
        if now != before:
            raise TerminalError(
                f'column "{field.name}" of view "{plan.name}" has changed its type',
                detail=f"It was {before} and is {now}: a static table has changed.",
                hint="Cast the column in the view, or restore the static table.",
            )


def _leaf(plan: ViewPlan, frame: DataFrame) -> LeafFrame:
    columns = plan.source.schema.names
    if plan.mode is Mode.REKEY:
        rows, fine = net_rows(frame, columns, plan.source.key), f"{BAD} is null"
        orders, hidden = order_columns(frame.columns), {SIDE: SIDE}
    else:
        rows, fine, orders = frame, f"{BAD} is null and {OP} = {UPSERT}", order_columns(frame.columns)
        hidden = {f"{KEY_COPY}{i}": ident(name) for i, name in enumerate(plan.origin)}
    hidden |= {name: name for name in (*orders, BAD)}
    selected = [ident(name) for name in columns]
    named = [f"{sql} as {name}" for name, sql in hidden.items()]
    return LeafFrame(rows.selectExpr(*selected, *named, f"({fine}) as {KEEP}0"), tuple(hidden))


def changes_from_rows(plan: ViewPlan, rows: DataFrame, rewriter: Rewriter) -> DataFrame:
    """Turn the rows of a rewritten plan into a frame of changes."""
    keep = rewriter.keep
    if plan.joins:
        _check_types(plan, rows)
    orders = order_columns(rows.columns)
    follows = plan.mode in _FOLLOWING
    if not follows:
        rows = rows.where(f"{keep} or {BAD} is not null")
    comes = f"{keep} and {SIDE} = {UPSERT}" if plan.mode is Mode.REKEY else keep
    rows = _with_errors(plan, rows, comes, rewriter.copies)
    fine = f"{_BAD} is null"
    origin = {name: f"{KEY_COPY}{i}" for i, name in enumerate(plan.key)} if follows else {}
    values = {}
    for name in plan.schema.names:
        value = origin.get(name, ident(name))
        values[name] = f"if({fine}{'' if name in plan.key else f' and {comes}'}, {value}, null)"
    values[OP] = f"cast(if({comes}, {UPSERT}, {DELETE}) as tinyint)"
    ordered = [f"cast(if({comes}, 1, 0) as tinyint)", *orders] if plan.mode is Mode.REKEY else orders
    values |= {f"{ORDER_PREFIX}{i}": f"if({fine}, {sql}, null)" for i, sql in enumerate(ordered)}
    values[BAD] = _BAD
    return rows.selectExpr(*[f"{sql} as {ident(name)}" for name, sql in values.items()])


def _with_errors(plan: ViewPlan, rows: DataFrame, comes: str, copies: Sequence[str] | None) -> DataFrame:
    """Add the error of each row: that of its record, a null key, or several rows with one key.

    Matches that do not pass are dropped if another match of the same row passes.
    """
    found = "false"
    if plan.key and copies is not None:
        found = " or ".join(f"{name} > 1" for name in copies) or found
    elif plan.key and (plan.joins or plan.mode is Mode.REKEY):
        key = [f"{KEY_COPY}{i}" if plan.mode in _FOLLOWING else ident(name) for i, name in enumerate(plan.key)]
        within = key if plan.mode is Mode.REKEY else [*key, *order_columns(rows.columns)]
        number = f"sum(if({comes}, 1, 0)) over (partition by {', '.join(within)})"
        rows = rows.selectExpr("*", f"{number} as {_COMING}")
        if plan.mode in _FOLLOWING:
            rows = rows.where(f"({comes}) or {_COMING} = 0 or {BAD} is not null")
        found = f"{_COMING} > 1"
    errors = [f"when {comes} and ({found}) then {literal(_duplicate_key(plan).encode())}"]
    if plan.may_lack_keys:
        lacking = " or ".join(f"{ident(name)} is null" for name in plan.key)
        rows = rows.where(f"({comes}) or not ({lacking}) or {BAD} is not null")
        errors.insert(0, f"when {comes} and ({lacking}) then {_null_key(plan)}")
    return rows.selectExpr("*", f"coalesce({BAD}, case {' '.join(errors)} end) as {_BAD}")


def _null_key(plan: ViewPlan) -> str:
    """SQL of the error, with the row as its origin."""
    error = BadRow(
        f'view "{plan.name}" has a row whose key ({", ".join(plan.key)}) is null',
        detail="A row without a key could not be updated or deleted later.",
        hint="Filter such rows out of the view: WHERE ... IS NOT NULL.",
    )
    row = f"to_json(struct({', '.join(ident(name) for name in plan.schema.names)}))"
    origin = f"to_json(named_struct('value', base64(encode({row}, 'UTF-8'))))"
    return f"concat({literal(error.encode())}, '{ORIGIN_OPEN}', {origin}, '{ORIGIN_CLOSE}')"


def _duplicate_key(plan: ViewPlan) -> BadRow:
    key = ", ".join(plan.key)
    joined = "Several rows of a joined table match one row." if plan.joins else ""
    several = "Several rows of the input have the same key in the view." if plan.mode is Mode.REKEY else ""
    return BadRow(
        f'view "{plan.name}" has several rows with one key ({key})',
        detail=" Or: ".join(filter(None, [joined, several])),
        hint="Join on columns that are unique in the static table." if plan.joins else "Choose a unique key.",
    )
