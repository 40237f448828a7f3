"""Rewrites a view's plan so that every input row comes out, with a flag that says whether it belongs to the view.

    Filter c               ->  flag AND c
    inner join with static ->  left join with static; flag AND whether a row matched
    Project a, f(b)        ->  a, f(b) if the flag is set, and the hidden columns

A row that leaves a filter has to become a delete, so it must not be dropped on the way. Nothing is computed for rows
without the flag: `WHERE x <> 0` still protects a division by x. The columns of the plan keep their ids, so operators
further up still find them.

WHERE conditions on an inner join move into the join, so that `FROM a, b WHERE a.x = b.x` is an equi-join.

Where several matches of one row would be wrong, joins count how many rows of the static table have the same values in
their equalities. This sorts the static table and not the changes; large tables are sorted for the join anyway. If a
condition further up chooses among the matches, their number is meaningless, and nothing is counted.
"""

from collections.abc import Callable, Sequence
from functools import reduce

from calve.spark.sqltext import ident
from calve.view.catalyst import Catalyst, Node, children, column_id, items, kind, outputs, referenced
from calve.view.refusals import changing_side

KEEP = "_calve__keep"
"""Prefix of the flag's name; a number follows, since each step adds a new flag. A leaf has number 0."""

_MATCHED, _COPIES, _EQUAL = "_calve__match", "_calve__copies", "_calve__equal"


class Rewriter:
    """Rewrites one plan from its leaf (the input, or an aggregation) upwards."""

    def __init__(
        self,
        catalyst: Catalyst,
        is_leaf: Callable[[Node], bool],
        leaf: Callable[[Node], Node],
        hidden: Sequence[str],
    ) -> None:
        """`leaf` returns the plan that replaces a leaf: its columns, the `hidden` ones and the flag."""
        self._catalyst, self._is_leaf, self._leaf = catalyst, is_leaf, leaf
        self._hidden = list(hidden)
        self._steps = 0
        self._static: set[int] = set()
        self.copies: list[str] | None = None
        """Columns with the number of static rows that match alike, if `count_matches` was called."""

    def count_matches(self) -> "Rewriter":
        """Let joins count matches; `copies` becomes None again if the counts do not determine the number of rows."""
        self.copies = []
        return self

    @property
    def keep(self) -> str:
        """The name of the current flag column."""
        return f"{KEEP}{self._steps}"

    def rewrite(self, node: Node) -> Node:
        """Rewrite a plan. The last columns of the result are the hidden ones and the flag."""
        if self._is_leaf(node):
            return self._leaf(node)
        match kind(node):
            case "Project":
                return self._rewrite_project(node)
            case "Filter" if _is_inner_join(node.child()):
                return self._rewrite_join(node.child(), _conjuncts(node.condition()))
            case "Filter":
                child = self.rewrite(node.child())
                self._notice_choice([node.condition()])
                return self._add_flag(child, self._null_as_false(node.condition()))
            case "Join":
                return self._rewrite_join(node)
            case _:  # names and hints
                return self.rewrite(children(node)[0])

    def _rewrite_project(self, node: Node) -> Node:
        child = self.rewrite(node.child())
        columns = [self._guarded(e) for e in items(node.projectList())]
        self._static |= {column_id(e) for e in columns if kind(e) == "Alias" and referenced(e) & self._static}
        carried = [self._catalyst.expression(ident(name)) for name in (*self._hidden, self.keep)]
        return self._catalyst.project([*columns, *carried], child)

    def _guarded(self, expression: Node) -> Node:
        if kind(expression) != "Alias" or kind(expression.child()) in {"AttributeReference", "Literal"}:
            return expression
        value = self._catalyst.if_else(self._kept(), expression.child())
        return self._catalyst.with_children(expression, [value])

    def _rewrite_join(self, node: Node, where: Sequence[Node] = ()) -> Node:
        side = changing_side(node, self._is_leaf)
        both = children(node)
        below, static, inner = both[side], both[1 - side], _is_inner_join(node)
        columns = {column_id(c) for c in outputs(static)}
        conditions = [*(_conjuncts(node.condition().get()) if node.condition().isDefined() else []), *where]
        if inner and _is_inner_join(below):
            changing = self._rewrite_join(below, [c for c in conditions if not referenced(c) & columns])
            conditions = [c for c in conditions if referenced(c) & columns]
        else:
            changing = self.rewrite(below)
        self._notice_choice(conditions)
        self._static |= columns
        matched = f"{_MATCHED}{self._steps}"
        if inner:
            static = self._add_columns(static, {matched: self._catalyst.expression("true")})
        if self.copies is not None:
            static = self._count_equal_rows(static, conditions, columns)
        safe = reduce(self._catalyst.both, [self._kept(), *(self._safe(c, columns) for c in conditions)])
        plan = self._catalyst.left_join(node, changing, static, safe)
        return self._add_flag(plan, self._catalyst.expression(f"{ident(matched)} is not null")) if inner else plan

    def _notice_choice(self, conditions: Sequence[Node]) -> None:
        """Stop counting if a condition uses a static table joined earlier: it may choose among several matches."""
        if any(referenced(condition) & self._static for condition in conditions):
            self.copies = None

    def _count_equal_rows(self, static: Node, conjuncts: Sequence[Node], columns: set[int]) -> Node:
        """Add to a static table the number of its rows that match the same rows of the other side."""
        equal, alone = [], []
        for conjunct in conjuncts:
            if referenced(conjunct) <= columns:
                alone.append(conjunct)
            elif (side := _static_side(conjunct, columns)) is not None:
                equal.append(side)
            elif referenced(conjunct) & columns:
                self.copies = None
                return static
        for conjunct in alone:
            static = self._catalyst.filter(conjunct, static)
        number = len(self._hidden)
        names = [f"{_EQUAL}{number}_{i}" for i in range(len(equal))]
        static = self._add_columns(static, dict(zip(names, equal, strict=True)))
        counted = f"{_COPIES}{number}"
        over = f"partition by {', '.join(names)}" if names else ""
        self._hidden.append(counted)
        self.copies = [*(self.copies or []), counted]
        return self._add_columns(static, {counted: self._catalyst.expression(f"count(1) over ({over})")})

    def _add_columns(self, plan: Node, new: dict[str, Node]) -> Node:
        """Add columns to a plan."""
        named = [self._catalyst.named(value, name) for name, value in new.items()]
        return self._catalyst.project([self._catalyst.expression("*"), *named], plan)

    def _add_flag(self, child: Node, condition: Node) -> Node:
        """Add a new flag to a plan: the current one and a condition."""
        kept = self._catalyst.if_else(self._kept(), condition, "false")
        self._steps += 1
        return self._add_columns(child, {self.keep: kept})

    def _null_as_false(self, condition: Node) -> Node:
        """A condition with null replaced by false."""
        known = self._catalyst.expression("coalesce(null, false)")
        return self._catalyst.with_children(known, [condition, children(known)[1]])

    def _safe(self, condition: Node, static: set[int]) -> Node:
        """A join condition that computes nothing of the changing row unless the flag is set.

        Equalities stay equalities, because Spark needs them for an equi-join.
        """
        if kind(condition) in {"EqualTo", "EqualNullSafe"}:
            sides = [self._safe_side(c, static) for c in children(condition)]
            return self._catalyst.with_children(condition, sides)
        if referenced(condition) <= static:
            return condition
        return self._catalyst.if_else(self._kept(), condition, "false")

    def _safe_side(self, expression: Node, static: set[int]) -> Node:
        if kind(expression) in {"AttributeReference", "Literal"} or referenced(expression) <= static:
            return expression
        return self._catalyst.if_else(self._kept(), expression)

    def _kept(self) -> Node:
        return self._catalyst.expression(ident(self.keep))


def _is_inner_join(node: Node) -> bool:
    return kind(node) == "Join" and str(node.joinType().sql()) in {"INNER", "CROSS"}


def _conjuncts(condition: Node) -> list[Node]:
    if kind(condition) != "And":
        return [condition]
    return [part for child in children(condition) for part in _conjuncts(child)]


def _static_side(conjunct: Node, columns: set[int]) -> Node | None:
    """The static table's side of an equality between both tables; None for any other condition."""
    if kind(conjunct) not in {"EqualTo", "EqualNullSafe"}:
        return None
    left, right = children(conjunct)
    for static, other in ((left, right), (right, left)):
        if referenced(static) and referenced(static) <= columns and not referenced(other) & columns:
            return static
    return None
