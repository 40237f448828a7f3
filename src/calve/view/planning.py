"""Queries of views -> a checked `ViewPlan`, or an InvalidInput that says why a view cannot be maintained."""

import json
from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from calve.errors import InvalidInput
from calve.model.change import RESERVED_PREFIX
from calve.view.catalyst import Node, column_id, outputs, walk
from calve.view.groups import GROUP, check_aggregation, group_positions, is_aggregation
from calve.view.plan import Changes, Mode, Resolve, ViewInput, ViewPlan, ViewQuery
from calve.view.refusals import check_operators, refusal
from calve.view.scope import ViewScope
from calve.view.trace import Trace, trace_columns

_FULL_IMAGES = "Use ENVELOPE DEBEZIUM over a table that logs full rows (REPLICA IDENTITY FULL)."

Key = tuple[str, ...]


class NoNaturalKey(InvalidInput):
    """The view has no natural key; the sink has to name one."""


def plan_view(
    spark: SparkSession,
    queries: Sequence[ViewQuery],
    source: ViewInput,
    key: Sequence[str] | None = None,
    resolve: Resolve | None = None,
) -> ViewPlan:
    """Check a view. `queries` are in dependency order and end with the view itself.

    `key` is the sink's. None selects the natural key: the input's key, if the view contains it, or the columns of
    GROUP BY. An empty key is for sinks that append.
    """
    scope = ViewScope(spark, source, queries, resolve)
    root = scope.analyse()
    check_operators(queries[-1].name, root, scope.is_input)
    view = _View(queries[-1].name, root, source)
    trace = trace_columns(view.name, root, scope.is_input)
    grouped = [node for node in walk(root) if is_aggregation(node, scope.is_input)]
    if grouped:
        check_aggregation(view.name, grouped, source.changes)
        chosen, origin = _group_key(view, scope, grouped[0], key)
        mode = Mode.GROUP
    else:
        mode, chosen, origin = _row_key(view, trace, key)
    return ViewPlan(tuple(queries), source, view.table(chosen), chosen, mode, origin, trace.joins)


class _View:
    """The columns of an analysed view."""

    def __init__(self, name: str, root: Node, source: ViewInput) -> None:
        self.name, self.root, self.source = name, root, source
        self.ids = {str(c.name()): column_id(c) for c in outputs(root)}
        self._schema = StructType.fromJson(json.loads(root.schema().json()))
        _check_columns(name, self._schema.names)

    def table(self, key: Key) -> StructType:
        """The columns of the target table."""
        fields = self._schema.fields
        return StructType([StructField(f.name, f.dataType, f.nullable and f.name not in key) for f in fields])

    def positions(self, trace: Trace) -> dict[str, int]:
        """For each column of the view that is a column of the leaf, its position there."""
        return {name: trace.columns[i] for name, i in self.ids.items() if i in trace.columns}

    def checked_key(self, key: Sequence[str]) -> Key:
        """Check that the columns of a key exist and are distinct."""
        for name in key:
            if name not in self.ids:
                raise InvalidInput(
                    f'view "{self.name}" has no column "{name}"',
                    detail=f"The key is ({', '.join(key)}); the columns are {', '.join(self.ids)}.",
                )
        if len(set(key)) < len(key):
            raise InvalidInput("the key contains a column twice", detail=f"The key is ({', '.join(key)}).")
        return tuple(key)


def _check_columns(view: str, names: Sequence[str]) -> None:
    for name in names:
        if [other.lower() for other in names].count(name.lower()) > 1:
            raise InvalidInput(f'view "{view}" has two columns "{name}"', hint="Rename one of them with AS.")
        if name.lower().startswith(RESERVED_PREFIX):
            raise InvalidInput(
                f'column "{name}" of view "{view}" has a reserved name',
                detail=f'Names that start with "{RESERVED_PREFIX}" belong to calve.',
                hint="Rename it with AS.",
            )


def _row_key(view: _View, trace: Trace, key: Sequence[str] | None) -> tuple[Mode, Key, Key]:
    """The mode, the key, and the columns of the input's key that it equals."""
    source = view.source
    names = source.schema.names
    origin = {name: names[position] for name, position in view.positions(trace).items()}
    natural = _one_each(origin, source.key)
    if key is None and not natural:
        lacking = ", ".join(c for c in source.key if c not in origin.values())
        detail = (
            f"It does not select {lacking} of the key of {source.name}." if lacking else f"{source.name} has no key."
        )
        raise NoNaturalKey(f'view "{view.name}" has no key', detail=detail, hint="Set the key of the sink: KEY (...).")
    chosen = view.checked_key(natural if key is None else key)
    if source.changes is Changes.INSERTS:
        return Mode.INSERT, chosen, ()
    found = [origin.get(name) for name in chosen]
    if chosen and sorted(map(str, found)) == sorted(source.key):
        return Mode.FOLLOW, chosen, tuple(map(str, found))
    _check_rekey(view, chosen, trace)
    return Mode.REKEY, chosen, ()


def _one_each(origin: dict[str, str], key: Sequence[str]) -> Key:
    """For each column of the input's key a column of the view; empty if one is missing."""
    found = [next((name for name, column in origin.items() if column == k), None) for k in key]
    return tuple(name for name in found if name is not None) if None not in found else ()


def _check_rekey(view: _View, chosen: Key, trace: Trace) -> None:
    source = view.source
    if not chosen:
        raise InvalidInput(
            f'view "{view.name}" has updates and deletes, but the sink has no key',
            detail=f"Its input is {source.name}.",
            hint="Set the key of the sink: KEY (...).",
        )
    if source.changes is not Changes.IMAGES:
        raise InvalidInput(
            f'the key ({", ".join(chosen)}) of view "{view.name}" is not the key of {source.name}, '
            "passed through unchanged",
            detail=f"An update of {source.name} does not identify the row of the view that it replaces: "
            "it has no before.",
            hint=f"Use the key ({', '.join(source.key)}). {_FULL_IMAGES}",
        )
    if trace.rows_depend_on_static or any(view.ids[name] in trace.static for name in chosen):
        raise refusal(
            view.name,
            f"a static table to determine rows or the key ({', '.join(chosen)})",
            f"This key is not the key of {source.name}, so old rows are found by computing them again; "
            "after a change of the static table they would not be found.",
            f"Use a LEFT JOIN for other columns only, or use the key ({', '.join(source.key)}).",
        )


def _group_key(view: _View, scope: ViewScope, aggregation: Node, key: Sequence[str] | None) -> tuple[Key, Key]:
    """The key, and the columns of the totals that it equals."""
    trace = trace_columns(view.name, view.root, lambda node: is_aggregation(node, scope.is_input))
    origin = {}
    for name, position in view.positions(trace).items():
        for i, positions in enumerate(group_positions(aggregation)):
            if position in positions:
                origin[name] = f"{GROUP}{i}"
    groups = [f"{GROUP}{i}" for i in range(len(group_positions(aggregation)))]
    natural = _one_each(origin, groups)
    if not natural:
        raise InvalidInput(
            f'view "{view.name}" does not select all columns of its GROUP BY',
            detail="The columns of GROUP BY are the key of its rows.",
            hint="Add the missing columns to the SELECT.",
        )
    chosen = natural if key is None else view.checked_key(key)
    found = [origin.get(name) for name in chosen]
    if sorted(map(str, found)) != sorted(groups):
        raise InvalidInput(
            f'the key ({", ".join(chosen)}) of view "{view.name}" is not its GROUP BY',
            detail="The columns of GROUP BY identify the rows of the view.",
            hint=f"Use the key ({', '.join(natural)}).",
        )
    return chosen, tuple(map(str, found))
