"""Refuses views that cannot follow changes: a change of the input could make them silently wrong."""

from collections.abc import Callable

from calve.errors import InvalidInput
from calve.view.catalyst import Node, children, expressions_of, items, kind, walk

_MANY = "A change of one row may change any number of other rows of the view."

_OPERATORS = {
    "Distinct": ("SELECT DISTINCT", "When a row is deleted, equal rows may remain.", "Use GROUP BY instead."),
    "Deduplicate": ("DISTINCT", "When a row is deleted, equal rows may remain.", "Use GROUP BY instead."),
    "Window": ("a window function", _MANY, ""),
    "GlobalLimit": ("LIMIT", _MANY, "Use WHERE."),
    "LocalLimit": ("LIMIT", _MANY, "Use WHERE."),
    "Offset": ("OFFSET", _MANY, "Use WHERE."),
    "Sort": ("ORDER BY", "A table has no order.", "Remove it, and sort when reading."),
    "Union": ("UNION", "A row does not say which part it comes from.", "Use a sink for each part."),
    "Except": ("EXCEPT", _MANY, ""),
    "Intersect": ("INTERSECT", _MANY, ""),
    "Generate": ("a function that generates several rows from one", "All of them would have the key of that row.", ""),
    "Expand": ("GROUPING SETS, CUBE, ROLLUP or UNPIVOT", "They generate several rows from one.", ""),
    "Pivot": ("PIVOT", _MANY, ""),
    "LateralJoin": ("a lateral join", "It may generate several rows from one.", "Join a static table."),
    "Sample": ("TABLESAMPLE", "A repeated checkpoint would sample other rows.", "Use WHERE."),
    "UnionLoop": ("recursion", _MANY, ""),
}
_NONDETERMINISTIC_OPERATORS = frozenset({"GlobalLimit", "LocalLimit", "Offset", "Sample"})
_SUPPORTED = frozenset({"Project", "Filter", "Join", "Aggregate", "SubqueryAlias", "View", "ResolvedHint"})
_SUBQUERIES = frozenset({"ScalarSubquery", "Exists", "ListQuery", "LateralSubquery", "InSubquery"})
_CURRENT_VALUES = frozenset(
    {
        *("CurrentBatchTimestamp", "CurrentCatalog", "CurrentDatabase", "CurrentDate", "CurrentTime"),
        *("CurrentTimestamp", "CurrentUser", "LocalTimestamp", "Now", "InputFileName"),
    }
)


def refusal(view: str, what: str, why: str, hint: str = "") -> InvalidInput:
    """The error for a view that uses an unsupported feature."""
    return InvalidInput(f'view "{view}" uses {what}', detail=why, hint=hint)


def check_operators(view: str, plan: Node, is_input: Callable[[Node], bool]) -> None:
    """Refuse operators and expressions that cannot follow changes, on the path to the input or beside it."""
    if not _reads(plan, is_input):
        raise refusal(
            view, "static tables only", "It would never change.", "Select from a source, or from a view over one."
        )
    _check_path(view, plan, is_input)


def _check_path(view: str, node: Node, is_input: Callable[[Node], bool]) -> None:
    _check_expressions(view, node)
    if is_input(node):
        return
    name = kind(node)
    if name not in _SUPPORTED:
        raise refusal(view, *_OPERATORS.get(name, (name, "calve does not support changes through this operator.", "")))
    below = children(node)
    changing = [child for child in below if _reads(child, is_input)]
    if len(changing) > 1:
        why = "A change of one would have to find the matching rows of the other."
        raise refusal(view, "two changing inputs in a join", why, "Join static tables.")
    for child in below:
        if child not in changing:
            _check_static(view, child)
    _check_path(view, changing[0], is_input)


def _check_static(view: str, plan: Node) -> None:
    """Refuse a static table whose rows may differ between reads."""
    if plan.isStreaming():
        raise refusal(view, "a second stream", "Only static tables can be joined.")
    for node in walk(plan):
        _check_expressions(view, node)
        if kind(node) in _NONDETERMINISTIC_OPERATORS:
            what, _, hint = _OPERATORS[kind(node)]
            raise refusal(view, what, "It may select other rows of the static table each time it is read.", hint)


def _check_expressions(view: str, node: Node) -> None:
    for expression in expressions_of(node):
        name = kind(expression)
        if name in _SUBQUERIES:
            raise refusal(view, "a subquery", "Only joins are supported.", "Join the table instead.")
        nondeterministic = not expression.deterministic() and all(c.deterministic() for c in children(expression))
        if name in _CURRENT_VALUES or nondeterministic:
            raise refusal(
                view,
                f"{_function_name(expression)}()",
                "A repeated checkpoint has to produce the same rows.",
                "Use a column of the input instead.",
            )


def _function_name(expression: Node) -> str:
    return str(expression.name() if "UDF" in kind(expression) else expression.prettyName())


def _reads(plan: Node, is_input: Callable[[Node], bool]) -> bool:
    return any(is_input(node) for node in walk(plan))


def changing_side(join: Node, is_input: Callable[[Node], bool]) -> int:
    """0 if the changing input is on the left of a join, 1 if it is on the right."""
    return 0 if _reads(items(join.children())[0], is_input) else 1


def check_join(view: str, join: Node, side: int) -> bool:
    """Whether a join is inner. Refuses joins that are neither inner nor outer joins preserving the changing input."""
    name = str(join.joinType().sql())
    if name in {"INNER", "CROSS"}:
        return True
    if name == ("LEFT OUTER", "RIGHT OUTER")[side]:
        return False
    if name in {"LEFT OUTER", "RIGHT OUTER"}:
        why = "Its unmatched rows would appear and disappear with changes of rows that do not match them."
        raise refusal(view, "an outer join that keeps all rows of the static table", why, "Put the source on the left.")
    raise refusal(view, f"a {name} JOIN", "Only inner and left joins are supported.", "Use JOIN or LEFT JOIN.")
