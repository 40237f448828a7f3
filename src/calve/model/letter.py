"""Records that cannot become changes, as they travel: the error, and behind it the record itself and its origin.

In a frame of changes both are one text: an encoded `BadRow` and an `Origin`. Whoever raises the error leaves the rest
away (`error_text`); whoever keeps dead letters takes it.
"""

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any

from calve.errors import BadRow, CalveError, decode

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
