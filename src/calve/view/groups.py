"""GROUP BY in an analysed plan: its groups, its aggregate functions, and which of them can follow changes.

Totals can follow a change if what a row added can be subtracted exactly: counts, and sums of integers and decimals.
Floating-point sums cannot (a + b - b may differ from a), and neither can extremes, since nothing says which value comes
next after the minimum is deleted; both work where rows are only inserted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from calve.view.catalyst import Node, children, items, kind, walk
from calve.view.plan import Changes
from calve.view.refusals import refusal

GROUP = "_calve__g"
"""Prefix of the columns of totals that hold a group's values; a number follows."""

_FUNCTIONS = {"Count": "count", "Sum": "sum", "Average": "avg", "Min": "min", "Max": "max"}
_EXACT = frozenset({"ByteType", "ShortType", "IntegerType", "LongType", "DecimalType"})
_INEXACT = frozenset({"FloatType", "DoubleType"})
_ORDERED = _EXACT | _INEXACT | {"BooleanType", "DateType", "StringType", "TimestampType", "TimestampNTZType"}


@dataclass(frozen=True)
class Term:
    """An aggregate function of a view: the JVM's `function`, its arguments, and the condition of FILTER."""

    expression: Node
    function: Node
    condition: Node | None

    @property
    def name(self) -> str:
        """count, sum, avg, min, max, or Spark's name of another function."""
        return _FUNCTIONS.get(kind(self.function), str(self.function.prettyName()))

    @property
    def known(self) -> bool:
        """Whether totals support it."""
        return kind(self.function) in _FUNCTIONS

    @property
    def arguments(self) -> list[Node]:
        """The expressions that are counted or summed."""
        return children(self.function)

    @property
    def exact(self) -> bool:
        """Whether its sums are exact."""
        return kind(self.arguments[0].dataType()) in _EXACT

    @property
    def scale(self) -> int:
        """Digits after the decimal point, of exact sums."""
        data_type = self.arguments[0].dataType()
        return int(data_type.scale()) if kind(data_type) == "DecimalType" else 0


def is_aggregation(node: Node, is_input: Callable[[Node], bool]) -> bool:
    """Whether an operator aggregates rows of the input."""
    return kind(node) == "Aggregate" and any(is_input(below) for below in walk(node))


def group_positions(aggregation: Node) -> list[set[int]]:
    """For each expression of GROUP BY, the positions of the aggregation's columns that equal it."""
    columns = items(aggregation.aggregateExpressions())
    values = [c.child() if kind(c) == "Alias" else c for c in columns]
    return [{i for i, value in enumerate(values) if value.semanticEquals(group)} for group in groups_of(aggregation)]


def groups_of(aggregation: Node) -> list[Node]:
    """The distinct expressions of GROUP BY."""
    found: list[Node] = []
    for group in items(aggregation.groupingExpressions()):
        if not any(group.semanticEquals(other) for other in found):
            found.append(group)
    return found


def terms_of(aggregation: Node) -> list[Term]:
    """The distinct aggregate functions."""
    found: list[Term] = []
    for column in items(aggregation.aggregateExpressions()):
        for node in walk(column):
            if kind(node) == "AggregateExpression" and not any(node.semanticEquals(t.expression) for t in found):
                found.append(_term(node))
    return found


def _term(node: Node) -> Term:
    function = node.aggregateFunction()
    if kind(function) == "CountIf":
        function = function.replacement()
    condition = node.filter()
    return Term(node, function, condition.get() if condition.isDefined() else None)


def check_aggregation(view: str, aggregations: Sequence[Node], changes: Changes) -> None:
    """Refuse aggregations whose totals would become wrong."""
    if len(aggregations) > 1:
        raise refusal(
            view, "GROUP BY over GROUP BY", "Totals are supported for one GROUP BY only.", "Use one GROUP BY."
        )
    if changes is Changes.UPSERTS:
        raise refusal(
            view,
            "GROUP BY over updates without before",
            "What a row added to its group cannot be subtracted when the row is replaced or deleted.",
            "Use ENVELOPE DEBEZIUM over a table that logs full rows (REPLICA IDENTITY FULL), or ENVELOPE NONE.",
        )
    if not groups_of(aggregations[0]):
        raise refusal(
            view,
            "aggregate functions without GROUP BY",
            "The single result row has no key.",
            "Group by a constant: SELECT 'all' AS scope, count(*) AS n FROM ... GROUP BY 'all'.",
        )
    for term in terms_of(aggregations[0]):
        _check_term(view, term, changes)


def _check_term(view: str, term: Term, changes: Changes) -> None:
    if term.expression.isDistinct():
        why = "When a value is deleted, equal values may remain."
        raise refusal(view, f"{term.name}(DISTINCT ...)", why, "")
    if not term.known:
        why = "Supported are count, sum and avg, and min and max over ENVELOPE NONE."
        raise refusal(view, f"{term.name}()", why)
    type_name = kind(term.arguments[0].dataType())
    if term.name in {"min", "max"} and changes is not Changes.INSERTS:
        why = "When the row with that value is deleted, the next value is unknown."
        raise refusal(view, f"{term.name}()", why, "It works over ENVELOPE NONE.")
    if term.name in {"min", "max"} and type_name not in _ORDERED:
        what = f"{term.name}() of {type_name.removesuffix('Type').upper()}"
        raise refusal(view, what, "Supported are numbers, strings, dates and timestamps.")
    if term.name in {"count", "min", "max"}:
        return
    if type_name not in _EXACT | _INEXACT:
        raise refusal(view, f"{term.name}() of {type_name.removesuffix('Type').upper()}", "Only numbers are supported.")
    if type_name in _INEXACT and changes is not Changes.INSERTS:
        raise refusal(
            view,
            f"{term.name}() of floating-point numbers",
            "Adding a number and subtracting it again may not give the original sum.",
            f"Cast to a decimal: {term.name}(CAST(... AS DECIMAL(18, 2))).",
        )
