"""Frames of changes, what they should leave in a table, and what files say."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from calve.model.change import BAD, DELETE, OP, ORDER_PREFIX, UPSERT, order_columns, table_columns
from calve.model.files import WriteResult
from tests.unit.write.sample import rows_of

RESERVED = f"{OP} TINYINT, {ORDER_PREFIX}0 BIGINT, {BAD} STRING"
Row = tuple[Any, ...]


def frame_of(spark: SparkSession, columns: str, rows: Sequence[Row], *, partitions: int = 3) -> DataFrame:
    """Rows of the table's columns (DDL), followed by operation, order and bad record."""
    return spark.createDataFrame(list(rows), f"{columns}, {RESERVED}").repartition(partitions)


@dataclass(frozen=True)
class Outcome:
    """What a batch does to a table: its rows by key, and every key whose older row goes."""

    rows: dict[Row, Row]
    deleted: frozenset[Row]


def expected(frame: DataFrame, key: Sequence[str], *, deletes: bool) -> Outcome:
    """By a dictionary, one change after the other."""
    order = order_columns(frame.columns)
    changes = sorted((row.asDict() for row in frame.collect()), key=lambda row: [row[name] for name in order])
    last = {_values(change, key): change for change in changes}
    columns = table_columns(frame.columns)
    rows = {k: _values(change, columns) for k, change in last.items() if change[OP] == UPSERT}
    return Outcome(rows, frozenset(last) if deletes else frozenset())


def found(result: WriteResult, key: Sequence[str], columns: Sequence[str]) -> Outcome:
    """By the files; a key that is there twice fails."""
    rows = [(_values(row, key), _values(row, columns)) for row in rows_of(result.data_files)]
    keys = [_values(row, key) for row in rows_of(result.delete_files)]
    assert len(dict(rows)) == len(rows), "a key has two rows"
    assert len(set(keys)) == len(keys), "a key is deleted twice"
    return Outcome(dict(rows), frozenset(keys))


def _values(row: dict[str, Any], names: Iterable[str]) -> Row:
    return tuple(_plain(row[name]) for name in names)


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def changes_of_orders(seed: int, count: int, keys: int) -> list[Row]:
    """id, status, amount, customer; repeats within the batch, deletes, and rows that come back."""
    rng = random.Random(seed)
    ranks = list(range(count))
    rng.shuffle(ranks)
    return [
        (key, None, None, None, DELETE, rank, None)
        if rng.random() < 0.2
        else (key, rng.choice(["NEW", "PAID", None]), rng.random(), rng.randrange(100), UPSERT, rank, None)
        for rank, key in ((rank, rng.randrange(keys)) for rank in ranks)
    ]
