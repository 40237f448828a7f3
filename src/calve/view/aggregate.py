"""Views with GROUP BY: changes become additions to groups, and the groups they touch become changes of the view.

    changes ──► retracted and inserted rows ──► the view below GROUP BY ──► additions by group      tasks
                                                                                │
                               totals at the checkpoint's start + additions = totals at its end     driver, durable
                                                                                │                   (many: tasks)
                                     touched groups ──► the view above GROUP BY ──► changes         tasks

Spark's own final step of each aggregate function computes its value from the totals, so types and rounding are Spark's.
Everything above GROUP BY (HAVING, projections, joins) is a row-wise view of the groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import StructType

from calve.errors import TerminalError
from calve.model.change import BAD, ORDER_PREFIX, UPSERT
from calve.model.checkpoint import UNKNOWN, CheckpointIdentity, SizeHint
from calve.spark.sqltext import ident, literal
from calve.spark.version import arrow_schema_of, collected, frame_of
from calve.view.catalyst import Catalyst, Node, children, column_id, items, kind, outputs, walk
from calve.view.groups import GROUP, Term, groups_of, is_aggregation, terms_of
from calve.view.plan import Changes, ViewPlan
from calve.view.rewrite import KEEP, Rewriter
from calve.view.rows import KEY_COPY, SIDE, LeafFrame, changes_from_rows, signed_rows
from calve.view.scope import ViewScope
from calve.view.sums import ROWS, add_piece
from calve.view.totals import ManyTotals, TotalsAt, ViewTotals
from calve.view.totals_tasks import collected_within, frame_after

_ARGUMENT = "_calve__a"


@dataclass(frozen=True)
class _Grouping:
    """The parts of a view's aggregation."""

    node: Node
    groups: Sequence[Node]
    terms: Sequence[Term]

    @classmethod
    def of(cls, node: Node) -> "_Grouping":
        return cls(node, groups_of(node), terms_of(node))


def group_changes(  # noqa: PLR0913 - two are options by name
    scope: ViewScope,
    plan: ViewPlan,
    frame: DataFrame,
    totals: ViewTotals,
    identity: CheckpointIdentity,
    *,
    size: SizeHint = UNKNOWN,
    epoch: int,
) -> DataFrame:
    """Compute the changes of a view with GROUP BY from those of a checkpoint, and store its additions durably.

    `size` is that of the checkpoint, as far as it is known.
    """
    root = scope.analyse()
    node = next(n for n in walk(root) if is_aggregation(n, scope.is_input))
    grouping = _Grouping.of(node)
    additions = _additions(scope, plan, frame, grouping)
    static = _fingerprint(scope, plan, node)
    schema = arrow_schema_of(StructType([field for field in additions.schema.fields if field.name != BAD]))
    before = totals.at(identity.start, schema)
    _check_static(plan, before, static)
    collected_rows, count = None, size.rows or 0
    if isinstance(before, TotalsAt):
        collected_rows, count = _collected(additions, totals, plan, size)
    if isinstance(before, TotalsAt) and collected_rows is not None:
        piece, bad = _split_bad(collected_rows)
        whole, touched = add_piece(before.table, piece, plan.name)
        totals.record(identity, piece, TotalsAt(whole, static), epoch=epoch)
        rows = touched.append_column(BAD, pa.nulls(touched.num_rows, pa.string()))
        rows = pa.concat_tables([rows, bad.cast(rows.schema)]) if bad.num_rows else rows
        state = frame_of(frame.sparkSession, rows, additions.schema)
    else:
        answer = totals.add_by_tasks(identity, additions, schema, count)
        totals.record_parts(identity, answer.parts, static, epoch=epoch)
        state = frame_after(frame.sparkSession, totals.store, answer.parts, additions.schema)
        if answer.bad:
            bad = pa.concat_tables(answer.bad)
            state = state.unionByName(frame_of(frame.sparkSession, bad, additions.schema))
    return _changes_above(scope, plan, root, grouping, state)


def _collected(additions: DataFrame, totals: ViewTotals, plan: ViewPlan, size: SizeHint) -> tuple[pa.Table | None, int]:
    """The additions if they fit the driver, else None; and their number. They are not counted if few are expected."""
    if totals.expects_few(size):
        rows = collected(additions)
        return rows, rows.num_rows
    return collected_within(additions, totals.most, f'view "{plan.name}" could not be computed')


def _additions(scope: ViewScope, plan: ViewPlan, frame: DataFrame, grouping: _Grouping) -> DataFrame:
    """What the rows of a checkpoint add to each group; bad rows form groups of their own."""
    catalyst, columns = scope.catalyst, plan.source.schema.names
    if plan.source.changes is Changes.IMAGES:
        rows = signed_rows(frame, columns)
    else:
        rows = frame.selectExpr(*[ident(c) for c in columns], f"{UPSERT}Y as {SIDE}", BAD)
    selected = [ident(c) for c in columns]
    leaf = LeafFrame(rows.selectExpr(*selected, SIDE, BAD, f"{BAD} is null as {KEEP}0"), (SIDE, BAD))
    rewriter = Rewriter(catalyst, scope.is_input, lambda n: leaf.plan(catalyst, n), leaf.hidden)
    below = rewriter.rewrite(grouping.node.child())
    kept = catalyst.expression(ident(rewriter.keep))
    values = [(f"{GROUP}{i}", group) for i, group in enumerate(grouping.groups)]
    values += [(f"{_ARGUMENT}{j}", _argument(catalyst, term)) for j, term in enumerate(grouping.terms)]
    named = [catalyst.named(catalyst.if_else(kept, value), name) for name, value in values]
    hidden = [catalyst.expression(ident(name)) for name in (SIDE, BAD, rewriter.keep)]
    flat = catalyst.frame(catalyst.project([*named, *hidden], below), frame.sparkSession)
    by = [f"{GROUP}{i}" for i in range(len(grouping.groups))]
    sums = [sql for j, term in enumerate(grouping.terms) for sql in _sums(term, j)]
    grouped = flat.where(f"{rewriter.keep} or {BAD} is not null").groupBy(*by, BAD)
    found = grouped.agg(F.expr(f"sum(cast({SIDE} as bigint)) as {ROWS}"), *[F.expr(sql) for sql in sums])
    return found.select(*[c for c in found.columns if c != BAD], BAD)


def _argument(catalyst: Catalyst, term: Term) -> Node:
    """The value that is counted or summed; null where the row does not contribute."""
    value = term.arguments[0]
    if term.name == "count":
        known = [catalyst.with_children(catalyst.expression("x is not null"), [a]) for a in term.arguments]
        value = catalyst.if_else(reduce(catalyst.both, known), catalyst.expression("true"))
    return value if term.condition is None else catalyst.if_else(term.condition, value)


def _sums(term: Term, j: int) -> list[str]:
    """SQL of the columns that the totals keep for a function."""
    value = f"{_ARGUMENT}{j}"
    if term.name in {"min", "max"}:
        return [f"{term.name}({value}) as {'lo' if term.name == 'min' else 'hi'}{j}"]
    counted = f"sum(if({value} is null, 0L, cast({SIDE} as bigint))) as c{j}"
    if term.name == "count":
        return [counted]
    if not term.exact:
        return [counted, f"coalesce(sum(cast({value} as double)), 0D) as s{j}"]
    exact = f"cast({value} as decimal({_precision(term)}, {term.scale}))"
    total = f"sum(if({SIDE} < 0, -{exact}, {exact}))"
    lost = f"count({value}) > 0 and {total} is null"
    overflow = literal(_too_large(term).encode())
    wide = f"decimal(38, {term.scale})"
    return [counted, f"cast(if({lost}, raise_error({overflow}), coalesce({total}, 0)) as {wide}) as s{j}"]


def _precision(term: Term) -> int:
    data_type = term.arguments[0].dataType()
    return int(data_type.precision()) if kind(data_type) == "DecimalType" else 20


def _too_large(term: Term) -> TerminalError:
    return TerminalError(
        f"the result of {term.name}() is too large for its type", hint="Cast the summed value to a larger type."
    )


def _split_bad(additions: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Additions to groups, and bad rows."""
    fine = additions[BAD].is_null()
    return additions.filter(fine).drop_columns([BAD]).combine_chunks(), additions.filter(additions[BAD].is_valid())


def _fingerprint(scope: ViewScope, plan: ViewPlan, aggregation: Node) -> str:
    """Fingerprint the static tables below GROUP BY: rows must be subtracted with the tables they were added with."""
    if not plan.joins or plan.source.changes is Changes.INSERTS:
        return ""
    found = []
    for node in walk(aggregation):
        for side in children(node) if kind(node) == "Join" else []:
            if not any(scope.is_input(below) for below in walk(side)):
                table = scope.catalyst.frame(side)
                numbered = table.toDF(*[f"c{i}" for i in range(len(table.columns))])  # names may repeat
                hashed = F.xxhash64(F.to_json(F.struct("*"))).cast("decimal(20,0)")
                row = numbered.agg(F.count(F.lit(1)).alias("n"), F.sum(hashed).alias("s")).first()
                found.append(f"{row.n}:{row.s}" if row else "")
    return "|".join(found)


def _check_static(plan: ViewPlan, before: TotalsAt | ManyTotals, static: str) -> None:
    if before.static and before.static != static:
        raise TerminalError(
            f'a static table that view "{plan.name}" joins below GROUP BY has changed',
            detail="Rows that were added with the old table cannot be subtracted with the new one.",
            hint="Restore the static table, or rebuild the view's table.",
        )


def _changes_above(scope: ViewScope, plan: ViewPlan, root: Node, grouping: _Grouping, state: DataFrame) -> DataFrame:
    """Compute the changes of the view from the new totals of the touched groups."""
    catalyst = scope.catalyst
    keys = [f"{origin} as {KEY_COPY}{i}" for i, origin in enumerate(plan.origin)]
    keep = f"({BAD} is null and {ROWS} > 0) as {KEEP}0"
    totals = state.selectExpr("*", *keys, f"0 as {ORDER_PREFIX}0", keep)
    hidden = (*[f"{KEY_COPY}{i}" for i in range(len(keys))], f"{ORDER_PREFIX}0", BAD)

    def leaf(node: Node) -> Node:
        final = _FinalValues(catalyst, grouping)
        columns = zip(items(node.aggregateExpressions()), outputs(node), strict=True)
        values = [catalyst.renamed(final.guarded(expression), column) for expression, column in columns]
        carried = [catalyst.expression(ident(name)) for name in (*hidden, f"{KEEP}0")]
        return catalyst.project([*values, *carried], catalyst.plan_of(totals))

    rewriter = Rewriter(catalyst, lambda n: is_aggregation(n, scope.is_input), leaf, hidden).count_matches()
    rows = catalyst.frame(rewriter.rewrite(root), state.sparkSession)
    return changes_from_rows(plan, rows, rewriter)


class _FinalValues:
    """Turns expressions over aggregate functions into expressions over totals."""

    def __init__(self, catalyst: Catalyst, grouping: _Grouping) -> None:
        self._catalyst, self._grouping = catalyst, grouping

    def guarded(self, column: Node) -> Node:
        """A column of the aggregation, computed only for groups that have rows."""
        value = column.child() if kind(column) == "Alias" else column
        return self._catalyst.if_else(self._catalyst.expression(f"{KEEP}0"), self._replace(value))

    def _replace(self, node: Node) -> Node:
        for i, group in enumerate(self._grouping.groups):
            if node.semanticEquals(group):
                return self._catalyst.expression(f"{GROUP}{i}")
        if kind(node) == "AggregateExpression":
            j = next(j for j, t in enumerate(self._grouping.terms) if node.semanticEquals(t.expression))
            return self._value(j, self._grouping.terms[j])
        below = children(node)
        return self._catalyst.with_children(node, [self._replace(c) for c in below]) if below else node

    def _value(self, j: int, term: Term) -> Node:
        """Spark's final step of a function, with the totals in place of its buffers."""
        buffers = {}
        for attribute in items(term.function.aggBufferAttributes()):
            sql = _buffer(term, j, str(attribute.name()), str(attribute.dataType().sql()))
            buffers[column_id(attribute)] = self._catalyst.expression(sql)
        return self._substitute(term.function.evaluateExpression(), buffers)

    def _substitute(self, node: Node, buffers: dict[int, Node]) -> Node:
        if kind(node) == "AttributeReference":
            return buffers[column_id(node)]
        below = children(node)
        return self._catalyst.with_children(node, [self._substitute(c, buffers) for c in below]) if below else node


def _buffer(term: Term, j: int, name: str, type_name: str) -> str:
    """SQL of one of a function's buffers."""
    match name:
        case "count":
            return f"c{j}"
        case "isEmpty":
            return f"(c{j} = 0)"
        case "min":
            return f"lo{j}"
        case "max":
            return f"hi{j}"
        case _:
            overflow = f"raise_error({literal(_too_large(term).encode())})"
            fitting = f"coalesce(try_cast(s{j} as {type_name}), cast({overflow} as {type_name}))"
            return f"if(c{j} = 0, cast({'0' if term.name == 'avg' else 'null'} as {type_name}), {fitting})"
