"""Skips files that cannot hold a matching row, by a reader's condition and by what manifests say about the files.

A condition only excludes files. If in doubt a file is read, and the caller filters its rows.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache

from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotNull,
    Or,
    Reference,
    StartsWith,
)
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    bind,
    expression_evaluator,
    inclusive_projection,
    manifest_evaluator,
)
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, UUIDType

from calve.model.scan import EVERYTHING, AllOf, AnyOf, ColumnComparison, ComparisonOperator, Condition

_PREDICATES: Mapping[ComparisonOperator, Callable[..., BooleanExpression]] = {
    ComparisonOperator.EQUAL: EqualTo,
    ComparisonOperator.LESS: LessThan,
    ComparisonOperator.LESS_OR_EQUAL: LessThanOrEqual,
    ComparisonOperator.GREATER: GreaterThan,
    ComparisonOperator.GREATER_OR_EQUAL: GreaterThanOrEqual,
    ComparisonOperator.IN: In,
    ComparisonOperator.STARTS_WITH: StartsWith,
}

_NULL_TESTS: Mapping[ComparisonOperator, Callable[..., BooleanExpression]] = {
    ComparisonOperator.IS_NULL: IsNull,
    ComparisonOperator.NOT_NULL: NotNull,
}
_IS_NAN: Callable[..., BooleanExpression] = IsNaN
_ABOVE = {ComparisonOperator.GREATER, ComparisonOperator.GREATER_OR_EQUAL}


class Pruning:
    """Tests manifests and files against one condition. `schema` is the one that the condition refers to."""

    def __init__(self, condition: Condition, schema: Schema, specs: Mapping[int, PartitionSpec]) -> None:
        self._schema, self._specs = schema, specs
        self._expression = _expression(condition, schema)
        self.active = condition != EVERYTHING and not isinstance(self._expression, AlwaysTrue)
        self._metrics = _InclusiveMetricsEvaluator(schema, self._expression, include_empty_files=True)
        self._manifest = cache(self._manifest_test)
        self._partition = cache(self._partition_test)

    def may_match_manifest(self, manifest: ManifestFile) -> bool:
        """By the bounds of partition values in the manifest list."""
        return not self.active or self._manifest(manifest.partition_spec_id)(manifest)

    def may_match(self, file: DataFile) -> bool:
        """By all that a manifest says about the file."""
        return self.may_match_partition(file) and self.may_match_bounds(file)

    def may_match_partition(self, file: DataFile) -> bool:
        """By the partition values of the file."""
        return not self.active or self._partition(file.spec_id)(file)

    def may_match_bounds(self, file: DataFile) -> bool:
        """By counts and bounds of the file's columns."""
        return not self.active or self._metrics.eval(file)

    def _projected(self, spec: PartitionSpec) -> BooleanExpression:
        return inclusive_projection(self._schema, spec)(self._expression)

    def _manifest_test(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        spec = self._specs[spec_id]
        return manifest_evaluator(spec, self._schema, self._projected(spec), case_sensitive=True)

    def _partition_test(self, spec_id: int) -> Callable[[DataFile], bool]:
        spec = self._specs[spec_id]
        partition_schema = Schema(*spec.partition_type(self._schema).fields)
        evaluate = expression_evaluator(partition_schema, self._projected(spec), case_sensitive=True)
        return lambda file: evaluate(file.partition)


def _expression(condition: Condition, schema: Schema) -> BooleanExpression:
    match condition:
        case AllOf(parts):
            return _joined(And, parts, schema)
        case AnyOf(parts):
            return _joined(Or, parts, schema)
        case ColumnComparison():
            return _predicate(condition, schema)


def _joined(
    join: Callable[[BooleanExpression, BooleanExpression], BooleanExpression],
    parts: tuple[Condition, ...],
    schema: Schema,
) -> BooleanExpression:
    if not parts:
        return AlwaysTrue()
    joined, *others = [_expression(part, schema) for part in parts]
    for other in others:
        joined = join(joined, other)
    return joined


def _predicate(comparison: ColumnComparison, schema: Schema) -> BooleanExpression:
    """The comparison, or a weaker one where pyiceberg and Spark order values differently."""
    column, operator = comparison.column, comparison.operator
    if operator in _NULL_TESTS:
        return _NULL_TESTS[operator](Reference(column))
    values = comparison.value if operator is ComparisonOperator.IN else (comparison.value,)
    if any(isinstance(value, float) and math.isnan(value) for value in values):
        return AlwaysTrue()
    predicate = _PREDICATES[operator](column, comparison.value)
    try:
        bind(schema, predicate, case_sensitive=True)
    except (TypeError, ValueError):
        return AlwaysTrue()  # a value outside of the column's type: let Spark decide
    kind = schema.find_field(column).field_type
    if isinstance(kind, UUIDType) and operator is not ComparisonOperator.EQUAL:
        return AlwaysTrue()  # a string in Spark
    if isinstance(kind, FloatType | DoubleType) and operator in _ABOVE:
        return Or(predicate, _IS_NAN(Reference(column)))  # Spark sorts NaN above every number; bounds exclude it
    return predicate
