"""PARTITION BY -> partition fields, checked against what is known of the columns before anything runs.

Columns of a view, and fields inside of structs, are checked when Spark knows their types (`iceberg/specs.py`).
"""

from calve.model.partitioning import PartitionBy
from calve.model.relation import KnownColumn, Relation
from calve.model.types import TYPES, ColumnType, declared_type
from calve.plan.sources import column_named
from calve.sql.errors import SqlError
from calve.sql.parts import PartitionField, Transform

_UNITS = (Transform.YEAR, Transform.MONTH, Transform.DAY, Transform.HOUR)


def planned_partitions(fields: tuple[PartitionField, ...], relation: Relation) -> tuple[PartitionBy, ...]:
    """The fields by the names that their columns have."""
    planned: list[PartitionBy] = []
    for field in fields:
        wanted = _field(field, relation)
        for other in planned:
            _check_pair(field, other, wanted)
        planned.append(wanted)
    return tuple(planned)


def _field(field: PartitionField, relation: Relation) -> PartitionBy:
    first, *rest = field.column.parts
    if relation.columns is None:
        return PartitionBy(field.transform.value, (first.name, *(part.name for part in rest)), field.width)
    column = column_named(relation.columns, first, "column")
    known = declared_type(column.type)
    if rest and (known is None or known.sql != "STRUCT"):
        raise SqlError.at(field.column.where, f'column "{column.name}" of type {column.type} has no fields')
    if not rest and known is not None:
        _check_type(field, column, known)
    return PartitionBy(field.transform.value, (column.name, *(part.name for part in rest)), field.width)


def _check_type(field: PartitionField, column: KnownColumn, known: ColumnType) -> None:
    if field.transform.value in known.transforms:
        return
    allowed = [kind.sql for kind in TYPES if field.transform.value in kind.transforms]
    raise SqlError.at(
        field.column.where,
        f'{field.to_sql()} is not for column "{column.name}" of type {column.type}',
        hint="Partition by a field of it, or by another column."
        if known.nested
        else f"{field.transform.value} takes {', '.join(allowed)}.",
    )


def _check_pair(field: PartitionField, other: PartitionBy, wanted: PartitionBy) -> None:
    if other == wanted:
        raise SqlError.at(field.column.where, f"partition field {wanted} is there twice", hint="Leave one of them out.")
    both_units = wanted.transform in _UNITS and other.transform in _UNITS
    if both_units and other.column == wanted.column:
        finer = max(other, wanted, key=lambda by: _UNITS.index(Transform(by.transform)))
        raise SqlError.at(
            field.column.where,
            f"partition fields {other} and {wanted} are redundant",
            hint=f"Keep {finer} alone: the other follows from it.",
        )
