"""Rows of queries, whether they come as Arrow or as plain values."""

from typing import Any

from calve.statements.answers import PlainRows, TypedRows


def names_of(found: TypedRows | PlainRows) -> list[str]:
    """The names of the columns."""
    return [one.name for one in found.columns] if isinstance(found, PlainRows) else list(found.schema.names)


def rows_of(found: TypedRows | PlainRows) -> list[tuple[Any, ...]]:
    """All rows."""
    if isinstance(found, PlainRows):
        return list(found.values())
    return [row for batch in found.rows() for row in zip(*batch.to_pydict().values(), strict=True)]
