from itertools import combinations, product
from typing import Any

import pytest

from tests.support.combinations import diagonal

Combinations = set[tuple[Any, ...]]


def parts(dimensions: dict[str, Any]) -> tuple[Combinations, Combinations]:
    """Combinations of `make test`, and those of `make soak` alone."""
    names, found = diagonal(**dimensions).args
    assert names == tuple(dimensions)
    short = {tuple(c.values) for c in found if not c.marks}
    long = {tuple(c.values) for c in found if [mark.name for mark in c.marks] == ["soak"]}
    assert len(found) == len(short) + len(long)
    return short, long


@pytest.mark.parametrize("dimensions", [{"a": "xyz", "b": [1, 2]}, {"a": "xy", "b": "uvw", "c": "mn"}], ids=str)
def test_a_diagonal_has_every_value_and_soak_has_the_rest(dimensions: dict[str, Any]) -> None:
    short, long = parts(dimensions)
    assert short | long == set(product(*dimensions.values()))
    assert len(short) == len(long)
    for place, values in enumerate(dimensions.values()):
        assert {combination[place] for combination in short} == set(values)


def test_a_diagonal_of_three_dimensions_has_every_pair_of_values() -> None:
    short, _ = parts({"a": "xy", "b": "uv", "c": "mn"})
    for one, other in combinations(range(3), 2):
        assert len({(found[one], found[other]) for found in short}) == 4
