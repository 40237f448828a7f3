"""Names of the special columns of a frame of changes, and the encoding of dead letters in it.

A frame of changes has one row per change: the table's columns in table order, followed by these. `envelope/` builds it
from records, `write/` turns it into files.

A record that cannot be converted to a change travels in the column `BAD` as one text: an encoded `BadRow`, followed by
the `Origin` of the record with its bytes. Code that raises the error strips the origin; dead letters keep it.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from calve.errors import BadRow, CalveError, decode

OP = "_calve_op"
"""BYTE: `UPSERT` or `DELETE`. A delete carries the key columns only; the others are null."""

ORDER_PREFIX = "_calve_order_"
"""One or more orderable, non-null columns `_calve_order_0`, `_calve_order_1`, ...: among changes of one key, the
greatest wins."""

ORDER = "_calve_order"
"""A column of tables whose changes are ordered across checkpoints: the order of the row."""

BAD = "_calve_bad"
"""STRING: null, or an encoded `BadRow` (see `errors.encode`) for a record that cannot be converted to a change, and its
`Origin`. A writer that finds one raises it, and nothing it wrote is committed."""

BEFORE = "_calve_before"
"""STRUCT of the table's columns, only on request: the row before this change, null if there was none. It has the same
key as the change: an update of the key is a delete of the old row and an insert of the new one."""

TIME = "_calve_time"
"""BIGINT: milliseconds of logical time, if rows have their own; also a column of append tables."""

DIFF = "_calve_diff"
"""INT: multiplicity of the row, negative for retractions, instead of operation and order; also a column of append
tables."""

PROGRESS = "_calve_progress"
"""BOOLEAN, with DIFF: the row is not a change but states that no smaller time follows; without a time, that nothing
follows."""

RESERVED_PREFIX = "_calve_"
"""Columns of the user must not start with this."""

UPSERT = 1
DELETE = -1


def order_columns(columns: Iterable[str]) -> list[str]:
    """The order columns among `columns`, most significant first."""
    found = [c for c in columns if c.startswith(ORDER_PREFIX)]
    return sorted(found, key=lambda c: int(c.removeprefix(ORDER_PREFIX)))


def table_columns(columns: Iterable[str], *, log: bool = False) -> list[str]:
    """The table's columns among `columns`: the user's, the order if it is stored, and in a log also DIFF and TIME."""
    own = {ORDER, DIFF, TIME} if log else {ORDER}
    return [c for c in columns if c in own or not c.startswith(RESERVED_PREFIX)]


ORIGIN_OPEN, ORIGIN_CLOSE = "⟦origin:", "⟧"
MAY_BE_LETTER = "⟦letter⟧"
"""Marks a raised error whose record has an origin, so that it can become a dead letter."""


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

    @property
    def placed(self) -> bool:
        """Whether it has a place in a source; rows of views have none."""
        return self.topic is not None or self.file is not None

    @property
    def digest(self) -> str:
        """A fingerprint: equal for equal letters of a sink."""
        return blake2b(self.encode().encode(), digest_size=16).hexdigest()

    def encode(self) -> str:
        """Serialize to text that `letter_of` finds after an error."""
        body: dict[str, Any] = {name: value for name, value in vars(self).items() if value is not None}
        body |= {name: b64encode(body[name]).decode() for name in ("key", "value") if name in body}
        return f"{ORIGIN_OPEN}{json.dumps(body)}{ORIGIN_CLOSE}"


@dataclass(frozen=True)
class Letter:
    """A record, and the reason why it could not be converted to a change."""

    origin: Origin
    error: CalveError


def letter_of(text: str) -> Letter | None:
    """Parse the text of a bad row; None if it does not contain the record."""
    start = text.find(ORIGIN_OPEN)
    end = text.find(ORIGIN_CLOSE, start)
    if start < 0 or end < 0:
        return None
    body = json.loads(text[start + len(ORIGIN_OPEN) : end])
    raw = {name: b64decode(body[name]) for name in ("key", "value") if name in body}
    error = decode(text) or BadRow("the record cannot be converted to a change")
    return Letter(Origin(**{**body, **raw}), error)
