"""Tests over several dimensions or seeds: `make test` runs some with every value in it, `make soak` all of them."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def diagonal(**dimensions: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a test over all combinations of values; those beside the diagonal are marked `soak`.

    Of two dimensions, each value is tested with another one of the other dimension; of more, each with every value of
    every other dimension.
    """
    values = [list(dimension) for dimension in dimensions.values()]
    apart = min(map(len, values))
    combinations = [
        pytest.param(
            *(dimension[at] for dimension, at in zip(values, places, strict=True)),
            marks=() if sum(places) % apart == 0 else pytest.mark.soak,
        )
        for places in product(*(range(len(dimension)) for dimension in values))
    ]
    return pytest.mark.parametrize(tuple(dimensions), combinations)


def seeds(count: int) -> pytest.MarkDecorator:
    """Parametrize a random test over seeds: `make test` runs the first one, `make soak` the others as well."""
    others = (pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, count))
    return pytest.mark.parametrize("seed", [0, *others])
