"""The columns of a frame of changes: the table's columns in table order, followed by these.

A frame of changes has one row per change. `source/` makes it out of any envelope, `write/` turns it into files, and
nothing else knows these names.

Records that cannot become changes, as they travel: the error, and behind it the record itself and its origin.

In a frame of changes both are one text: an encoded `BadRow` and an `Origin`. Whoever raises the error leaves the rest
away (`error_text`); whoever keeps dead letters takes it.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from calve.errors import BadRow, CalveError, decode

OP = "_calve_op"
"""BYTE: `UPSERT` or `DELETE`. A delete carries the key columns only; the others are null."""

ORDER_PREFIX = "_calve_order_"
"""One or more orderable, non-null columns `_calve_order_0`, `_calve_order_1`, ...: of several changes of one key the
greatest wins."""

ORDER = "_calve_order"
"""A column of tables whose changes are ordered across checkpoints: what the row was ordered by."""

BAD = "_calve_bad"
"""STRING: null, or an encoded `BadRow` (see `errors.encode`) for a record that cannot become a change, with the
record behind it (see `letter`). A writer that meets one raises it and writes nothing that is committed."""

BEFORE = "_calve_before"
"""STRUCT of the table's columns, only where it was asked for: the row as it was before this change, null for a new one.
It has the same key as the change: a row whose key changes is deleted under the old one and new under the other."""

TIME = "_calve_time"
"""BIGINT: milliseconds of logical time, where rows have one of their own; and a column of tables that keep a log."""

DIFF = "_calve_diff"
"""INT: how many of the row come, or go (below 0), in place of operation and order; and a column of tables that keep a
log."""

PROGRESS = "_calve_progress"
"""BOOLEAN, beside DIFF: the row is no change, it says that no time below its own follows; without a time, nothing."""

RESERVED_PREFIX = "_calve_"
"""Columns of the user must not start with this."""

UPSERT = 1
DELETE = -1


def order_columns(columns: Iterable[str]) -> list[str]:
    """The order columns among `columns`, most significant first."""
    found = [c for c in columns if c.startswith(ORDER_PREFIX)]
    return sorted(found, key=lambda c: int(c.removeprefix(ORDER_PREFIX)))


def table_columns(columns: Iterable[str], *, log: bool = False) -> list[str]:
    """The table's columns among `columns`: the user's, and the order where it is kept; a log has two more."""
    own = {ORDER, DIFF, TIME} if log else {ORDER}
    return [c for c in columns if c in own or not c.startswith(RESERVED_PREFIX)]


ORIGIN_OPEN, ORIGIN_CLOSE = "⟦origin:", "⟧"
MAY_BE_LETTER = "⟦letter⟧"
"""Follows the error of a record that brought its origin along, when the error is raised."""


@dataclass(frozen=True)
class Origin:
    """Where a record came from, and its bytes."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    file: str | None = None
    key: bytes | None = None
    value: bytes | None = None

    def __str__(self) -> str:
        if self.topic is not None:
            return f"topic {self.topic} partition {self.partition} offset {self.offset}"
        return "" if self.file is None else f"file {self.file}"

    def encode(self) -> str:
        """As text that `letter_of` finds behind an error."""
        body: dict[str, Any] = {name: value for name, value in vars(self).items() if value is not None}
        body |= {name: b64encode(body[name]).decode() for name in ("key", "value") if name in body}
        return f"{ORIGIN_OPEN}{json.dumps(body)}{ORIGIN_CLOSE}"


@dataclass(frozen=True)
class Letter:
    """A record, and why it could not become a change."""

    origin: Origin
    error: CalveError


def letter_of(text: str) -> Letter | None:
    """The letter in the text of a bad row; None when it brings no record with it."""
    start = text.find(ORIGIN_OPEN)
    end = text.find(ORIGIN_CLOSE, start)
    if start < 0 or end < 0:
        return None
    body = json.loads(text[start + len(ORIGIN_OPEN) : end])
    raw = {name: b64decode(body[name]) for name in ("key", "value") if name in body}
    error = decode(text) or BadRow("the record cannot become a change")
    return Letter(Origin(**{**body, **raw}), error)
