"""Sets of deleted keys: any number of columns of any type that can be a key, null equal to null.

Every column is replaced by the number of its value among the deleted ones; numbers of two columns become the number of
their pair, and so on to the last column. Each step is one pass of a vectorised operation, and values that no delete
has drop out on the way. For each key the newest delete counts: rows with a lower sequence number are gone.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_MISSING = -1

Numbers = NDArray[np.int64]
Columns = Sequence[pa.ChunkedArray]


class KeySet:
    """Keys of deletes. `sequence_numbers` has one number for each row of `columns`."""

    def __init__(self, columns: Columns, sequence_numbers: Numbers) -> None:
        self._values: list[pa.Array] = []
        """The different values of each column."""
        self._pairs: list[Numbers] = []
        """From the second column on: the different pairs of (number so far, number in this column), sorted."""
        numbers: Numbers | None = None
        for column in columns:
            self._values.append(pc.unique(column))
            own = _lookup(column, self._values[-1])
            if numbers is None:
                numbers = own
            else:
                pairs, numbers = np.unique(numbers * len(self._values[-1]) + own, return_inverse=True)
                self._pairs.append(pairs)
        if numbers is None:
            raise ValueError("a key has at least one column")
        self._newest = np.full(int(numbers.max(initial=_MISSING)) + 1, _MISSING, np.int64)
        np.maximum.at(self._newest, numbers, sequence_numbers)

    def __len__(self) -> int:
        return len(self._newest)

    def deleted(self, columns: Columns, sequence_number: int) -> NDArray[np.bool_]:
        """Which rows of a file with this sequence number are deleted."""
        if not len(self):
            return np.zeros(len(columns[0]), bool)
        numbers = _lookup(columns[0], self._values[0])
        for column, values, pairs in zip(columns[1:], self._values[1:], self._pairs, strict=True):
            own = _lookup(column, values)
            known = (numbers != _MISSING) & (own != _MISSING)
            numbers = np.where(known, _places(pairs, numbers * len(values) + own), _MISSING)
        found = numbers != _MISSING
        found[found] = self._newest[numbers[found]] > sequence_number
        return found


def _lookup(column: pa.ChunkedArray, values: pa.Array) -> Numbers:
    """The place of each value, null among them; -1 for one that is not there."""
    places = pc.index_in(column, value_set=values)
    numbers: Numbers = places.fill_null(_MISSING).to_numpy().astype(np.int64)
    return numbers


def _places(sorted_values: Numbers, wanted: Numbers) -> Numbers:
    at = np.searchsorted(sorted_values, wanted)
    at[at == len(sorted_values)] = 0
    return np.where(sorted_values[at] == wanted, at, _MISSING)
