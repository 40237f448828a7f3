"""Traces the columns of a view: which are columns of the input, and which depend on static tables."""

from collections.abc import Callable
from dataclasses import dataclass, field

from calve.view.catalyst import Node, children, column_id, items, kind, outputs, referenced
from calve.view.refusals import changing_side, check_join


@dataclass
class Trace:
    """The origins of an operator's columns, by column id."""

    columns: dict[int, int]
    """Columns that are unchanged columns of the leaf, with their positions there."""
    static: set[int] = field(default_factory=set)
    """Columns that depend on a static table."""
    joins: bool = False
    rows_depend_on_static: bool = False
    """Whether a static table determines which rows of the input are in the view."""


def trace_columns(view: str, node: Node, is_leaf: Callable[[Node], bool]) -> Trace:
    """Follow the columns of the leaf (the input, or an aggregation) up to an operator."""
    if is_leaf(node):
        return Trace({column_id(c): position for position, c in enumerate(outputs(node))})
    match kind(node):
        case "Join":
            return _through_join(view, node, is_leaf)
        case "Project":
            return _through_project(node, trace_columns(view, node.child(), is_leaf))
        case "Filter":
            found = trace_columns(view, node.child(), is_leaf)
            found.rows_depend_on_static |= bool(referenced(node.condition()) & found.static)
            return found
        case _:
            return trace_columns(view, children(node)[0], is_leaf)


def _through_project(node: Node, found: Trace) -> Trace:
    columns, static = dict(found.columns), set(found.static)
    for expression in items(node.projectList()):
        if kind(expression) != "Alias":
            continue
        if referenced(expression) & found.static:
            static.add(column_id(expression))
        child = expression.child()
        if kind(child) == "AttributeReference" and column_id(child) in found.columns:
            columns[column_id(expression)] = found.columns[column_id(child)]
    found.columns, found.static = columns, static
    return found


def _through_join(view: str, node: Node, is_leaf: Callable[[Node], bool]) -> Trace:
    side = changing_side(node, is_leaf)
    inner = check_join(view, node, side)
    both = children(node)
    found = trace_columns(view, both[side], is_leaf)
    found.static |= {column_id(c) for c in outputs(both[1 - side])}
    found.joins = True
    found.rows_depend_on_static |= inner
    return found
