"""Describes a view as plain values: its queries, its input, and the results of checking it. They can be pickled."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from calve.model.spec import ChangeRows, Debezium, Envelope, NoEnvelope

Resolve = Callable[[tuple[str, ...]], DataFrame | None]
"""Looks up a static table by the parts of its name; None leaves the name to Spark."""


class Changes(Enum):
    """How much an input reveals about a change."""

    INSERTS = "inserts"
    """Every row is new; nothing is updated or deleted."""
    UPSERTS = "upserts"
    """The new row, or the key of a deleted one. The old row is unknown."""
    IMAGES = "images"
    """The same, and on demand the complete old row in the column `model.change.BEFORE`."""

    @classmethod
    def of(cls, envelope: Envelope) -> "Changes":
        """The kind of changes that an envelope produces."""
        match envelope:
            case NoEnvelope():
                return cls.INSERTS
            case Debezium() | ChangeRows():
                return cls.IMAGES
            case _:
                return cls.UPSERTS


class Mode(Enum):
    """How changes of the input become changes of the view."""

    INSERT = "insert"
    """An input row that passes the view is inserted, once; others are skipped."""
    FOLLOW = "follow"
    """The view has the input's key: a change of an input row is a change of the same row of the view."""
    REKEY = "rekey"
    """The view has another key: the old row is retracted, the new one inserted."""
    GROUP = "group"
    """The rows of the view are totals of groups."""


@dataclass(frozen=True)
class ViewInput:
    """The source that a view reads: its name in the queries, its columns, its key, and the kind of its changes."""

    name: str
    schema: StructType
    key: tuple[str, ...]
    changes: Changes


@dataclass(frozen=True)
class ViewQuery:
    """A view: its name and its SELECT."""

    name: str
    text: str


@dataclass(frozen=True)
class ViewPlan:
    """A checked view. `queries` are in dependency order; the last one is the view itself."""

    queries: tuple[ViewQuery, ...]
    source: ViewInput
    schema: StructType
    """The columns of the view; those of the key are not nullable."""
    key: tuple[str, ...]
    mode: Mode
    origin: tuple[str, ...] = ()
    """For FOLLOW and GROUP: per column of `key`, the column of the input's key or of the totals that it equals."""
    joins: bool = False
    """Whether the view joins static tables."""

    @property
    def name(self) -> str:
        """The view's name."""
        return self.queries[-1].name

    @property
    def may_lack_keys(self) -> bool:
        """Whether a key may be null, which makes the row a bad row; other keys are the input's or a group's."""
        return bool(self.key) and self.mode in {Mode.INSERT, Mode.REKEY}

    @property
    def needs_before(self) -> bool:
        """Whether changes must carry the old row."""
        return self.source.changes is Changes.IMAGES and self.mode in {Mode.REKEY, Mode.GROUP}

    @property
    def stateful(self) -> bool:
        """Whether the view keeps totals across checkpoints."""
        return self.mode is Mode.GROUP

    @property
    def definition(self) -> str:
        """A fingerprint of everything that totals depend on: totals of another definition are not used."""
        parts = [[q.name, q.text] for q in self.queries]
        about = [parts, self.source.name, self.source.schema.json(), self.source.changes.value, self.mode.value]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
