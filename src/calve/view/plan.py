"""What a view is: its texts, its input, and what was found out about it. Values that can be kept and pickled."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from calve.model.spec import Debezium, Envelope, NoEnvelope

Resolve = Callable[[tuple[str, ...]], DataFrame | None]
"""A static table by the parts of its name; None leaves the name to Spark."""


class Changes(Enum):
    """What an input tells about a change."""

    INSERTS = "inserts"
    """Every row is a new one; nothing is updated or deleted."""
    UPSERTS = "upserts"
    """The new row, or the key of a deleted one. What the row was before is not known."""
    IMAGES = "images"
    """Both, and on demand the whole row as it was before, in the column `model.change.BEFORE`."""

    @classmethod
    def of(cls, envelope: Envelope) -> "Changes":
        """What changes out of an envelope tell."""
        match envelope:
            case NoEnvelope():
                return cls.INSERTS
            case Debezium():
                return cls.IMAGES
            case _:
                return cls.UPSERTS


class Mode(Enum):
    """How changes of the input become changes of the view."""

    INSERT = "insert"
    """A row of the input is a row of the view or is none; nothing else ever happens to it."""
    FOLLOW = "follow"
    """The view has the input's key: a change of the input is a change of the same row of the view."""
    REKEY = "rekey"
    """The view has another key: the old row goes, the new one comes."""
    GROUP = "group"
    """The rows of the view are totals of groups."""


@dataclass(frozen=True)
class ViewInput:
    """The source that a view reads: its name in the texts, its columns, its key, and what its changes tell."""

    name: str
    schema: StructType
    key: tuple[str, ...]
    changes: Changes


@dataclass(frozen=True)
class ViewQuery:
    """A view by its name and its SELECT."""

    name: str
    text: str


@dataclass(frozen=True)
class ViewPlan:
    """A view that was checked. `queries` are in the order of their dependencies; the last one is the view."""

    queries: tuple[ViewQuery, ...]
    source: ViewInput
    schema: StructType
    """The columns of the view; those of the key are not nullable."""
    key: tuple[str, ...]
    mode: Mode
    origin: tuple[str, ...] = ()
    """For FOLLOW: the columns of the input's key that those of `key` are."""
    joins: bool = False
    """Whether static tables are joined."""

    @property
    def name(self) -> str:
        """The view's name."""
        return self.queries[-1].name

    @property
    def may_lack_keys(self) -> bool:
        """Whether a row may come without a key, and is a bad row then; else the key is the input's, or a group's."""
        return bool(self.key) and self.mode in {Mode.INSERT, Mode.REKEY}

    @property
    def needs_before(self) -> bool:
        """Whether changes must bring the row as it was before."""
        return self.source.changes is Changes.IMAGES and self.mode in {Mode.REKEY, Mode.GROUP}

    @property
    def stateful(self) -> bool:
        """Whether totals are kept from checkpoint to checkpoint."""
        return self.mode is Mode.GROUP

    @property
    def definition(self) -> str:
        """A fingerprint of everything that totals depend on: totals of another definition are of no use."""
        parts = [[q.name, q.text] for q in self.queries]
        about = [parts, self.source.name, self.source.schema.json(), self.source.changes.value, self.mode.value]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
