"""Rows of every flat type, with nulls and values at the edges."""

import datetime as dt
import random
from decimal import Decimal
from typing import Any

COLUMNS = (
    "id BIGINT, yes BOOLEAN, tiny TINYINT, small SMALLINT, number INT, long BIGINT, ratio FLOAT, exact DOUBLE, "
    "price DECIMAL(9,2), total DECIMAL(18,4), huge DECIMAL(38,10), text STRING, raw BINARY, day DATE, at TIMESTAMP, "
    "local TIMESTAMP_NTZ"
)
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a local time
_SPECIAL = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.5, -1.5]


def random_rows(rng: random.Random, count: int) -> list[tuple[Any, ...]]:
    """Ids are 0, 1, 2, ..."""
    return [(number, *(None if rng.random() < 0.1 else value for value in _values(rng))) for number in range(count)]


def _values(rng: random.Random) -> list[Any]:
    at = _time(rng)
    return [
        rng.random() < 0.5,
        _integer(rng, 7),
        _integer(rng, 15),
        _integer(rng, 31),
        _integer(rng, 63),
        rng.choice(_SPECIAL),
        rng.choice(_SPECIAL),
        Decimal(_integer(rng, 29)) / 100,
        Decimal(_integer(rng, 59)) / 10**4,
        Decimal(_integer(rng, 120)) / 10**10,
        rng.choice(["", "a", "abc", "abcd", "é😀éü", "\0x", "日本語テキスト"])
        + rng.choice(["", "", str(rng.random())]),
        rng.randbytes(rng.randrange(9)),
        at.date(),
        at.replace(tzinfo=dt.UTC),
        at,
    ]


def _integer(rng: random.Random, bits: int) -> int:
    """Small ones, large ones, and the first and the last."""
    lowest: int = -(2**bits)
    return rng.choice([lowest, lowest + 1, -lowest - 1, rng.randrange(lowest, -lowest), rng.randrange(-20, 20), 0])


def _time(rng: random.Random) -> dt.datetime:
    near = _EPOCH + dt.timedelta(microseconds=rng.choice([-1, 0, 1, -(3600 * 10**6), 3600 * 10**6 - 1]))
    far = _EPOCH + dt.timedelta(days=rng.randrange(-700_000, 2_900_000), microseconds=rng.randrange(86_400 * 10**6))
    return rng.choice([near, far, dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)])  # noqa: DTZ001
