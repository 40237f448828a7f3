"""Fields of a table's schema by the names of an input: exactly so, else without case where that is one field."""

from collections.abc import Sequence

from pyiceberg.types import NestedField

from calve.errors import InvalidInput


def find_named(fields: Sequence[NestedField], name: str) -> NestedField | None:
    """The field of this name."""
    exact = next((field for field in fields if field.name == name), None)
    if exact is not None:
        return exact
    found = [field for field in fields if field.name.lower() == name.lower()]
    return found[0] if len(found) == 1 else None


def field_named(fields: Sequence[NestedField], name: str) -> NestedField:
    """The same. Raises InvalidInput when there is none."""
    found = find_named(fields, name)
    if found is None:
        raise InvalidInput(
            f'the table has no column "{name}"', detail=f"Its columns are {', '.join(field.name for field in fields)}."
        )
    return found
