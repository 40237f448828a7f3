"""Row-wise views: changes of the input become changes of the view, one by one.

    INSERT   a row that passes the view is written; one that does not is nothing
    FOLLOW   an upsert that passes is an upsert; one that does not, and every delete, is a delete of its key
    REKEY    the row that goes is deleted under the key that it had in the view, the row that comes is written under the
             one that it has now; of all changes of a key, what comes is applied after what goes

Several rows of a static table that match one row would be several rows with one key, of which one would win by chance:
they are bad rows. So are two rows of the input that come to one key of a REKEY view in one checkpoint.

A row that comes without a value in a column of the key is a bad row as well; its letter holds it as JSON. One that goes
is nothing: it never came.

Order columns go through as they are; a REKEY view puts the side in front of them.

Changes with the rows before, as rows that go and rows that come.

A change that replaces b by a is two rows: b with -1, a with +1. `signed` makes them of every change. `netted` makes at
most two for each key of the input: the row as it was before the first change of the checkpoint goes, the row after the
last one comes. Only then can all that goes be applied before all that comes, without asking in which order changes of
different rows happened; Kafka does not tell for rows in different partitions.
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
"""TINYINT: UPSERT for a row that comes, DELETE for one that goes."""

_FIRST, _LAST, _ORDER, _ROW = "_calve__first", "_calve__last", "_calve__order", "_calve__row"


def signed(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Rows with their side, the order and the error of their change."""
    return _sides(
        frame.selectExpr(
            f"{BEFORE} as {_FIRST}", f"{_struct(columns)} as {_LAST}", OP, f"{_order(frame)} as {_ORDER}", BAD
        ),
        columns,
        order_columns(frame.columns),
    )


def netted(frame: DataFrame, columns: Sequence[str], key: Sequence[str]) -> DataFrame:
    """The same, at most one row of each side for every key of the input."""
    at = _order(frame)
    # Bad rows have no key; whichever of them is found is raised.
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
"""The key of the view's row in the leaf, a number follows: what a delete is known by."""

_FOLLOWING = frozenset({Mode.FOLLOW, Mode.GROUP})
_BAD = "_calve__bad"
_COMING = "_calve__coming"


@dataclass(frozen=True)
class LeafFrame:
    """A frame that takes the place of a plan's leaf: the leaf's columns first, then hidden ones, then the flag."""

    frame: DataFrame
    hidden: tuple[str, ...]

    def plan(self, catalyst: Catalyst, node: Node) -> Node:
        """The operator that stands for `node` and has its columns."""
        plan = catalyst.plan_of(self.frame)
        found, expected = outputs(plan), outputs(node)
        renamed = [catalyst.renamed(c, e) for c, e in zip(found, expected, strict=False)]
        return catalyst.project([*renamed, *found[len(expected) :]], plan)


def row_changes(scope: ViewScope, plan: ViewPlan, frame: DataFrame) -> DataFrame:
    """The changes of a row-wise view out of the changes of its input."""
    leaf = _leaf(plan, frame)
    rewriter = Rewriter(scope.catalyst, scope.is_input, lambda node: leaf.plan(scope.catalyst, node), leaf.hidden)
    if plan.mode is Mode.FOLLOW:
        rewriter.count()
    rows = scope.catalyst.frame(rewriter.rewritten(scope.analysed()), frame.sparkSession)
    return finished(plan, rows, rewriter)


def _check_types(plan: ViewPlan, rows: DataFrame) -> None:
    """The target table has the types of the day when the view was checked."""
    found = {f.name: f.dataType.simpleString() for f in rows.schema.fields}
    for field in plan.schema.fields:
        before, now = field.dataType.simpleString(), found.get(field.name)
        if now != before:
            raise TerminalError(
                f'column "{field.name}" of view "{plan.name}" has another type than before',
                detail=f"It was {before} and is {now}: a static table changed.",
                hint="Cast the column in the view, or restore the static table.",
            )


def _leaf(plan: ViewPlan, frame: DataFrame) -> LeafFrame:
    columns = plan.source.schema.names
    if plan.mode is Mode.REKEY:
        rows, fine = netted(frame, columns, plan.source.key), f"{BAD} is null"
        orders, hidden = order_columns(frame.columns), {SIDE: SIDE}
    else:
        rows, fine, orders = frame, f"{BAD} is null and {OP} = {UPSERT}", order_columns(frame.columns)
        hidden = {f"{KEY_COPY}{i}": ident(name) for i, name in enumerate(plan.origin)}
    hidden |= {name: name for name in (*orders, BAD)}
    selected = [ident(name) for name in columns]
    named = [f"{sql} as {name}" for name, sql in hidden.items()]
    return LeafFrame(rows.selectExpr(*selected, *named, f"({fine}) as {KEEP}0"), tuple(hidden))


def finished(plan: ViewPlan, rows: DataFrame, rewriter: Rewriter) -> DataFrame:
    """A frame of changes out of a rewritten plan's rows."""
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
    """The rows with their errors: the record's own, that the key is null, or that several rows come to one at once.

    Of several matches of one row, those that do not pass are dropped if another one does.
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
    errors = [f"when {comes} and ({found}) then {literal(_twice(plan).encode())}"]
    if plan.may_lack_keys:
        lacking = " or ".join(f"{ident(name)} is null" for name in plan.key)
        rows = rows.where(f"({comes}) or not ({lacking}) or {BAD} is not null")
        errors.insert(0, f"when {comes} and ({lacking}) then {_keyless(plan)}")
    return rows.selectExpr("*", f"coalesce({BAD}, case {' '.join(errors)} end) as {_BAD}")


def _keyless(plan: ViewPlan) -> str:
    """SQL of the error, and the row behind it."""
    error = BadRow(
        f'view "{plan.name}" has a row whose key ({", ".join(plan.key)}) is null',
        detail="A row without a key cannot be found in the table again.",
        hint="Leave such rows out of the view: WHERE ... IS NOT NULL.",
    )
    row = f"to_json(struct({', '.join(ident(name) for name in plan.schema.names)}))"
    origin = f"to_json(named_struct('value', base64(encode({row}, 'UTF-8'))))"
    return f"concat({literal(error.encode())}, '{ORIGIN_OPEN}', {origin}, '{ORIGIN_CLOSE}')"


def _twice(plan: ViewPlan) -> BadRow:
    key = ", ".join(plan.key)
    joined = "Several rows of a joined table match one row." if plan.joins else ""
    several = "Several rows of the input have the same key in the view." if plan.mode is Mode.REKEY else ""
    return BadRow(
        f'view "{plan.name}" has several rows with one key ({key})',
        detail=" Or: ".join(filter(None, [joined, several])),
        hint="Join on columns that are unique in the static table." if plan.joins else "Choose a key that is unique.",
    )
