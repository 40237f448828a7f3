"""A load generator: orders that are inserted, updated and deleted.

The change at a position is a pure function of the seed and the position, so any task can compute any range, repeatedly.
The first `rows` positions insert the orders 0 to `rows` - 1. Every later position updates (90 %) or deletes (5 %) one
of those, or inserts a new order (5 %) whose id is the position. An update of a deleted order inserts it again.

`expected_changes` and `expected_orders` compute changes and the resulting table in plain Python, with their own
implementation of the hash.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructType

from calve.calls import for_users
from calve.clock import Clock
from calve.errors import InvalidInput, SourceLost
from calve.model.checkpoint import Offsets, SizeHint, SizeLimit, canonical_offsets
from calve.model.health import SourcePart, SourcePosition
from calve.model.spec import Upsert
from calve.source.port import LEAST_POLL
from calve.spark.version import arrow_schema_of, schema_of_ddl
from calve.storage.state import StateStore

STATUSES = ("new", "paid", "packed", "shipped", "delivered", "returned")
CUSTOMERS = 20_000
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_EPOCH_MICROS = int(_EPOCH.timestamp()) * 1_000_000
_COLUMNS = "id BIGINT, customer INT, amount DECIMAL(12,2), status STRING, updated_at TIMESTAMP, op STRING, seq BIGINT"
TABLE_COLUMNS = ("id", "customer", "amount", "status", "updated_at")

OrderRow = tuple[int, int, Decimal, str, datetime]


@dataclass(frozen=True)
class Orders:
    """Definition of a generator. Without `changes` it never ends. `per_second` limits the rate of changes."""

    rows: int
    changes: int | None
    seed: int
    per_checkpoint: int
    per_second: float | None

    @property
    def envelope(self) -> Upsert:
        """The latest position wins, and `op` marks deletes; neither is a column of the table."""
        return Upsert(order_by=("seq",), delete_when="op = 'd'", columns=", ".join(TABLE_COLUMNS))

    def open(self, _store: StateStore, clock: Clock) -> "OrdersSource":
        """Open the generator, which keeps no state."""
        return OrdersSource(self, clock)


@for_users
def orders(
    *,
    rows: int = 100_000,
    changes: int | None = None,
    seed: int = 7,
    per_checkpoint: int = 50_000,
    per_second: float | None = None,
) -> Orders:
    """Generate orders, then `changes` changes of them (None: endlessly), in checkpoints of `per_checkpoint`.

    >>> calve.orders(rows=1000, changes=0).rows
    1000
    """
    for name, value in (("rows", rows), ("per_checkpoint", per_checkpoint)):
        if value < 1:
            raise InvalidInput(f"{name} of the generator must be at least 1", detail=f"Got {value}.")
    if changes is not None and changes < 0:
        raise InvalidInput("changes of the generator must not be negative", detail=f"Got {changes}.")
    if per_second is not None and per_second <= 0:
        raise InvalidInput("per_second of the generator must be positive", detail=f"Got {per_second}.")
    return Orders(rows, changes, seed, per_checkpoint, per_second)


class OrdersSource:
    """A running generator."""

    counts = "rows"
    least_poll = LEAST_POLL

    def __init__(self, definition: Orders, clock: Clock) -> None:
        self._definition = definition
        self._clock = clock
        self._began: tuple[float, int] | None = None
        self._took_all, self._unread = False, 0
        self._end: int | None = None
        self._schema: StructType | None = None

    @property
    def name(self) -> str:
        return f"orders-{self._definition.seed}"

    def schema(self, spark: SparkSession) -> StructType:
        if self._schema is None:
            self._schema = self.frame(spark, offsets_at(0), offsets_at(0)).schema
        return self._schema

    def next_end(self, start: Offsets, *, whole: bool = False) -> Offsets:
        position = position_of(start)
        self._end = available = self._available(position)
        if whole:
            end = min(available, max(position, self._definition.rows)) if self._endless else available
        else:
            end = min(position + self._definition.per_checkpoint, available)
        self._took_all = end == available or (self._endless and end >= self._definition.rows)
        self._unread = self._definition.per_checkpoint if self._endless else available - end
        return offsets_at(end) if end > position else None

    def begin(self) -> Offsets:
        return None

    @property
    def took_all(self) -> bool:
        return self._took_all

    @property
    def unread(self) -> int:
        return self._unread

    def position(self, at: Offsets) -> SourcePosition:
        return SourcePosition((SourcePart("changes", position_of(at), None if self._endless else self._end),))

    @property
    def _endless(self) -> bool:
        """Whether it has neither a rate nor a last change: it always has more."""
        return self._definition.changes is None and self._definition.per_second is None

    def _available(self, position: int) -> int:
        """The position after the last available change: rows at once, changes at the given rate."""
        definition = self._definition
        last = 2**62 if definition.changes is None else definition.rows + definition.changes
        if definition.per_second is None:
            return last
        if self._began is None:
            self._began = self._clock.monotonic(), max(position, definition.rows)
        began, first = self._began
        return min(last, first + int((self._clock.monotonic() - began) * definition.per_second))

    def frame(self, spark: SparkSession, start: Offsets, end: Offsets) -> DataFrame:
        first, last = position_of(start), position_of(end)
        seq = F.col("id")
        rows, seed = self._definition.rows, self._definition.seed
        later = seq >= rows
        kind = _drawn(seed, 1, seq, 20)
        op = F.when(~later | (kind == 0), "i").when(kind == 1, "d").otherwise("u")
        order = F.when(op == "i", seq).otherwise(_drawn(seed, 2, seq, rows))
        live = op != "d"
        cents = _drawn(seed, 4, seq, 10_000_000)
        status = F.element_at(
            F.array(*(F.lit(s) for s in STATUSES)), (_drawn(seed, 5, seq, len(STATUSES)) + 1).cast("int")
        )
        changes = spark.range(first, last).select(
            order.alias("id"),
            F.when(live, _drawn(seed, 3, seq, CUSTOMERS).cast("int")).alias("customer"),
            F.when(live, (cents.cast("decimal(12,0)") / F.lit(Decimal(100))).cast("decimal(12,2)")).alias("amount"),
            F.when(live, status).alias("status"),
            F.when(live, F.timestamp_micros(F.lit(_EPOCH_MICROS) + seq * 1000)).alias("updated_at"),
            op.alias("op"),
            seq.alias("seq"),
        )
        return changes.to(schema_of_ddl(_COLUMNS))

    def arrow_records(
        self, _spark: SparkSession, start: Offsets, end: Offsets, columns: StructType, limit: SizeLimit
    ) -> pa.Table | None:
        first, last = position_of(start), position_of(end)
        if last - first > limit.rows:
            return None
        seq = np.arange(first, last, dtype=np.int64)
        rows, seed = self._definition.rows, self._definition.seed
        kind = np.where(seq < rows, 0, _drawn_array(seed, 1, seq, 20))
        gone = kind == 1
        status = pa.DictionaryArray.from_arrays(_drawn_array(seed, 5, seq, len(STATUSES)), pa.array(STATUSES))
        cents = pa.array(_drawn_array(seed, 4, seq, 10_000_000)).cast(pa.decimal128(19, 0))
        values = {
            "id": pa.array(np.where(kind == 0, seq, _drawn_array(seed, 2, seq, rows))),
            "customer": pa.array(_drawn_array(seed, 3, seq, CUSTOMERS)),
            "amount": pc.multiply(cents, pa.scalar(Decimal("0.01"))),
            "status": status.dictionary_decode(),
            "updated_at": pa.array(_EPOCH_MICROS + seq * 1000).cast(pa.timestamp("us", "UTC")),
            "op": pa.array(np.where(kind == 0, "i", np.where(gone, "d", "u"))),
            "seq": pa.array(seq),
        }
        kept = {"id", "op", "seq"}
        live = {n: v if n in kept else pc.if_else(gone, pa.scalar(None, v.type), v) for n, v in values.items()}
        return pa.table(live).select(columns.names).cast(arrow_schema_of(columns))

    def contents(self, spark: SparkSession, end: Offsets) -> DataFrame:
        return self.frame(spark, None, end)

    def size(self, start: Offsets, end: Offsets) -> SizeHint:
        return SizeHint(rows=position_of(end) - position_of(start))

    def ended(self, end: Offsets) -> bool:
        definition, position = self._definition, position_of(end)
        if definition.changes is None:
            return False
        last = definition.rows + definition.changes
        if position > last:
            raise SourceLost(
                "the generator has fewer changes than were already read",
                detail=f"It ends after {last:,}; {position:,} were read.",
                hint="Restore its definition, or rebuild the table: WITH (SNAPSHOT = true).",
            )
        return position == last

    def committed(self, offsets: Offsets) -> None:
        """Nothing is kept."""


def offsets_at(position: int) -> str:
    """Offsets after the first `position` changes."""
    return canonical_offsets({"position": position})


def position_of(offsets: Offsets) -> int:
    """Number of changes before these offsets."""
    return 0 if offsets is None else int(json.loads(offsets)["position"])


def _drawn(seed: int, salt: int, seq: Column, below: int) -> Column:
    return F.pmod(F.xxhash64(F.lit(seed).cast("long"), F.lit(salt).cast("long"), seq), F.lit(below).cast("long"))


def _drawn_array(seed: int, salt: int, seq: npt.NDArray[np.int64], below: int) -> npt.NDArray[np.int64]:
    """The same numbers as `_drawn`."""
    value = np.full(len(seq), 42, np.uint64)
    for part in (np.full_like(seq, seed), np.full_like(seq, salt), seq):
        mixed = value + np.uint64(_P5 + 8)
        mixed ^= _turned(part.astype(np.uint64) * np.uint64(_P2), 31) * np.uint64(_P1)
        mixed = _turned(mixed, 27) * np.uint64(_P1) + np.uint64(_P4)
        mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(_P2)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(_P3)
        value = mixed ^ (mixed >> np.uint64(32))
    return value.astype(np.int64) % below


def _turned(value: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


# ---- the reference

_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MASK = (1 << 64) - 1


def expected_changes(definition: Orders, first: int, last: int) -> Iterator[tuple[str, int, OrderRow | None]]:
    """Operation, order id and new row (None for a delete) of the changes at positions [first, last)."""
    for seq in range(first, last):
        kind = 0 if seq < definition.rows else _drawn_here(definition.seed, 1, seq, 20)
        order = seq if kind == 0 else _drawn_here(definition.seed, 2, seq, definition.rows)
        op = {0: "i", 1: "d"}.get(kind, "u")
        yield op, order, None if op == "d" else _row(definition.seed, order, seq)


def expected_orders(definition: Orders, position: int) -> dict[int, OrderRow]:
    """The table after the first `position` changes, by order id."""
    table: dict[int, OrderRow] = {}
    for _, order, row in expected_changes(definition, 0, position):
        if row is None:
            table.pop(order, None)
        else:
            table[order] = row
    return table


def _row(seed: int, order: int, seq: int) -> OrderRow:
    return (
        order,
        _drawn_here(seed, 3, seq, CUSTOMERS),
        Decimal(_drawn_here(seed, 4, seq, 10_000_000)).scaleb(-2),
        STATUSES[_drawn_here(seed, 5, seq, len(STATUSES))],
        _EPOCH + timedelta(milliseconds=seq),
    )


def _drawn_here(seed: int, salt: int, seq: int, below: int) -> int:
    value = 42
    for part in (seed, salt, seq):
        value = _hash_long(part, value)
    signed = value - (1 << 64) if value >> 63 else value
    return signed % below


def _hash_long(value: int, seed: int) -> int:
    mixed = (seed + _P5 + 8) & _MASK
    mixed ^= _rotated(value * _P2 & _MASK, 31) * _P1 & _MASK
    mixed = (_rotated(mixed, 27) * _P1 + _P4) & _MASK
    mixed = (mixed ^ (mixed >> 33)) * _P2 & _MASK
    mixed = (mixed ^ (mixed >> 29)) * _P3 & _MASK
    return mixed ^ (mixed >> 32)


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK
