"""Extracts from a Spark condition the part that the planner can use, and the columns that it needs.

Spark itself parses, types and folds the condition; this module reads the result from Spark's plan, and is the only one
of this package that touches Spark's internals. Expressions that it does not support count as true: Spark filters the
rows anyway.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pyarrow import RecordBatch
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from calve.model.scan import EVERYTHING, AllOf, AnyOf, ColumnComparison, ComparisonOperator, Condition
from calve.spark.version import java_class

Where = str | Column

_COMPARISONS = {
    "EqualTo": (ComparisonOperator.EQUAL, ComparisonOperator.EQUAL),
    "EqualNullSafe": (ComparisonOperator.EQUAL, ComparisonOperator.EQUAL),
    "LessThan": (ComparisonOperator.LESS, ComparisonOperator.GREATER),
    "LessThanOrEqual": (ComparisonOperator.LESS_OR_EQUAL, ComparisonOperator.GREATER_OR_EQUAL),
    "GreaterThan": (ComparisonOperator.GREATER, ComparisonOperator.LESS),
    "GreaterThanOrEqual": (ComparisonOperator.GREATER_OR_EQUAL, ComparisonOperator.LESS_OR_EQUAL),
}
"""Spark's nodes: the operator, and the operator with the operands swapped."""

_NULL_TESTS = {"IsNull": ComparisonOperator.IS_NULL, "IsNotNull": ComparisonOperator.NOT_NULL}

_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "boolean": bool,
    "tinyint": int,
    "smallint": int,
    "int": int,
    "bigint": int,
    "float": float,
    "double": float,
    "date": int,
    "timestamp": int,
    "timestamp_ntz": int,
    "string": lambda value: value.toString(),
}
"""Spark's internal representation of a value -> ours, by type."""


@dataclass(frozen=True)
class Understood:
    """The supported part of a condition, and every column that the condition refers to."""

    condition: Condition
    columns: tuple[str, ...]


def understand(frame: DataFrame, where: Where) -> Understood:
    """Read a condition on `frame`, whose columns are c0, c1, ... renamed. Raises Spark's exceptions."""
    analyzed = frame.where(where)._jdf.queryExecution().analyzed()  # noqa: SLF001 - plans have no Python API
    references = analyzed.condition().references().toSeq()
    folded = {name.lower(): name for name in frame.columns}
    named = (str(references.apply(i).name()) for i in range(references.size()))  # as the condition spells them
    columns = tuple(name if name in frame.columns else folded[name.lower()] for name in named)
    return Understood(filter_of(frame.where(where), frame.columns), columns)


def exact_condition(frame: DataFrame, where: Where) -> Condition | None:
    """Read a condition on `frame` as `understand` does; None unless every part of it is supported.

    Callers may keep the result: a condition that depends on the time when it is asked is not supported.
    """
    asked = frame.where(where)
    condition = None if _names_current_values(asked) else _filter(asked)
    return None if condition is None else _Reader(_by_place(frame.columns), exact=True).condition(condition)


def _names_current_values(frame: DataFrame) -> bool:
    """Whether a query names the time, the user and the like, which Spark replaces by constants when it runs."""
    patterns = java_class(frame.sparkSession._jvm, "org.apache.spark.sql.catalyst.trees.TreePattern")  # noqa: SLF001 - plans have no Python API
    analyzed = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - plans have no Python API
    return bool(analyzed.containsPattern(patterns.CURRENT_LIKE()))


def filter_of(frame: DataFrame, names: Sequence[str]) -> Condition:
    """The condition of a query on the rows of its input, whose columns c0, c1, ... have these names.

    A condition below anything but projections does not apply to single rows: it counts as true.
    """
    condition = _filter(frame)
    return EVERYTHING if condition is None else _Reader(_by_place(names)).condition(condition) or EVERYTHING


def _filter(frame: DataFrame) -> Any:
    """Spark's expression of the filter of a query; None without one."""
    node = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - plans have no Python API
    while node.nodeName() == "Project":
        node = node.children().apply(0)
    return node.condition() if node.nodeName() == "Filter" else None


def _by_place(names: Sequence[str]) -> dict[str, str]:
    return {f"c{place}": name for place, name in enumerate(names)}


def unread_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """An empty frame on which conditions can be analyzed."""
    by_place = StructType([StructField(f"c{place}", field.dataType) for place, field in enumerate(schema.fields)])
    return spark.range(0).mapInArrow(_same, by_place).toDF(*schema.fieldNames())


def _same(batches: Iterable[RecordBatch]) -> Iterable[RecordBatch]:
    return batches


class _Reader:
    """Converts Spark's expressions to conditions; None for unsupported ones.

    What is supported of a conjunction stands for all of it, unless conditions have to be `exact`.
    """

    def __init__(self, names: Mapping[str, str], *, exact: bool = False) -> None:
        self._names = names
        self._exact = exact

    def condition(self, node: Any) -> Condition | None:
        kind = node.nodeName()
        if kind in {"And", "Or"}:
            return self._joined(kind, self.condition(node.left()), self.condition(node.right()))
        if kind in _NULL_TESTS:
            column = self._column(node.child())
            return None if column is None else ColumnComparison(column, _NULL_TESTS[kind])
        if kind in _COMPARISONS:
            operator, exchanged = _COMPARISONS[kind]
            found = self._comparison(node.left(), operator, node.right())
            return found or self._comparison(node.right(), exchanged, node.left())
        if kind == "StartsWith":
            return self._comparison(node.left(), ComparisonOperator.STARTS_WITH, node.right())
        if kind == "In":
            return self._among(node)
        if kind == "AttributeReference":  # a BOOLEAN
            column = self._column(node)
            return None if column is None else ColumnComparison(column, ComparisonOperator.EQUAL, True)  # noqa: FBT003
        return None

    def _joined(self, kind: str, left: Condition | None, right: Condition | None) -> Condition | None:
        if left is None or right is None:
            return (left or right) if kind == "And" and not self._exact else None
        return AllOf((left, right)) if kind == "And" else AnyOf((left, right))

    def _comparison(self, left: Any, operator: ComparisonOperator, right: Any) -> ColumnComparison | None:
        column, value = self._column(left), _literal(right)
        return None if column is None or value is None else ColumnComparison(column, operator, value)

    def _among(self, node: Any) -> ColumnComparison | None:
        column, listed = self._column(node.value()), node.list()
        values = tuple(_literal(listed.apply(i)) for i in range(listed.size()))
        return None if column is None or None in values else ColumnComparison(column, ComparisonOperator.IN, values)

    def _column(self, node: Any) -> str | None:
        return self._names.get(node.name()) if node.nodeName() == "AttributeReference" else None


def _literal(node: Any) -> Any:
    if node.nodeName() != "Literal":
        return None
    value, kind = node.value(), node.dataType().catalogString()
    if value is None:
        return None
    if kind.startswith("decimal"):
        return Decimal(value.toString())
    convert = _VALUES.get(kind)
    return None if convert is None else convert(value)
