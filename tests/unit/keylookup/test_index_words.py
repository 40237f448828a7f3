import datetime as dt
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from calve.keylookup.index.words import MOST_WORDS, Keys, NotIndexable, same, widened, widest

AT = dt.datetime(1969, 12, 31, tzinfo=dt.UTC)
KINDS: list[tuple[pa.DataType, Any]] = [
    (pa.int64(), lambda rng: rng.randrange(-5, 5)),
    (pa.int32(), lambda rng: rng.randrange(-5, 5)),
    (pa.string(), lambda rng: rng.choice(["", "a", "é", "ab" * 9, "ab" * 10]) + rng.choice(["", "\0", "z"])),
    (pa.binary(), lambda rng: bytes(rng.randrange(2) for _ in range(rng.randrange(20)))),
    (pa.decimal128(20, 2), lambda rng: Decimal(rng.randrange(-9, 9)) * 10**15),
    (pa.date32(), lambda rng: AT.date() + dt.timedelta(rng.randrange(4))),
    (pa.timestamp("us", "UTC"), lambda rng: AT + dt.timedelta(hours=rng.randrange(40))),
    (pa.time64("us"), lambda rng: dt.time(rng.randrange(24))),
    (pa.binary(16), lambda rng: bytes([rng.randrange(3)] * 16)),
    (pa.binary(5), lambda rng: bytes([rng.randrange(3)] * 5)),
    (pa.bool_(), lambda rng: rng.random() < 0.5),
]


def keys_of(rows: list[tuple[Any, ...]], kinds: list[pa.DataType]) -> Keys:
    columns = zip(*rows, strict=True)
    return Keys.of([pa.chunked_array([pa.array(c, kind)]) for c, kind in zip(columns, kinds, strict=True)])


@pytest.mark.parametrize("seed", range(12))
def test_keys_are_the_same_exactly_when_their_words_are_and_then_have_the_same_hash(seed: int) -> None:
    rng = random.Random(seed)
    chosen = [rng.choice(KINDS) for _ in range(rng.choice([1, 1, 2, 3]))]
    kinds = [kind for kind, _ in chosen]
    left, right = ([tuple(make(rng) for _, make in chosen) for _ in range(40)] for _ in range(2))
    mine, theirs = keys_of(left, kinds), keys_of(right[: rng.choice([3, 40])], kinds)
    for at in range(len(theirs.rows)):
        row = np.repeat(theirs.words[at : at + 1], len(left), axis=0)
        expected = [key == right[at] for key in left]
        assert same(mine.words, mine.widths, row, theirs.widths).tolist() == expected
        assert all(hashed == theirs.hashes[at] for hashed in mine.hashes[expected])
        if mine.exact:
            assert (mine.hashes == theirs.hashes[at]).tolist() == expected, "hashes alone tell keys apart"


def test_a_text_beside_longer_ones_has_the_hash_that_it_has_alone() -> None:
    alone, beside = keys_of([("ab",)], [pa.string()]), keys_of([("ab",), ("x" * 60,)], [pa.string()])
    assert alone.hashes[0] == beside.hashes[0]
    assert alone.widths != beside.widths
    wide = widest([alone.widths, beside.widths])
    assert widened(alone.words, alone.widths, wide)[0].tolist() == beside.words[0].tolist()


def test_texts_that_differ_in_the_middle_alone_have_different_hashes() -> None:
    keys = keys_of([(f"customer-{n:08d}-in-the-middle",) for n in range(5000)], [pa.string()])
    assert len(set(keys.hashes.tolist())) == 5000


def test_rows_with_a_null_in_the_key_are_left_out() -> None:
    keys = keys_of([(1, "a"), (None, "a"), (2, None), (3, "b")], [pa.int64(), pa.string()])
    assert keys.rows.tolist() == [0, 3]


@pytest.mark.parametrize("values", [pa.array(["x" * 8 * MOST_WORDS]), pa.array([1.5])], ids=["long", "floats"])
def test_keys_that_are_too_long_or_of_another_type_are_refused(values: pa.Array) -> None:
    with pytest.raises(NotIndexable):
        Keys.of([pa.chunked_array([values])])


def test_keys_of_no_rows_are_none() -> None:
    for kind, _ in KINDS:
        assert len(Keys.of([pa.chunked_array([pa.array([], kind)])]).hashes) == 0
