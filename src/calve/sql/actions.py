# ruff: noqa: ARG002 - all actions print themselves in one way, those without secrets, too
"""What ALTER does to an object."""

from dataclasses import dataclass

from calve.sql.layout import one_line
from calve.sql.names import Identifier, in_parentheses
from calve.sql.options import NO_OPTIONS, OptionName, Options, with_options
from calve.sql.parts import Column, PartitionField, partition_by


@dataclass(frozen=True)
class SetOptions:
    """SET (...)."""

    options: Options

    def to_sql(self, *, reveal: bool) -> str:
        return f"SET {self.options.to_sql(reveal=reveal)}"


@dataclass(frozen=True)
class ResetOptions:
    """RESET (...): back to the defaults."""

    names: tuple[OptionName, ...]

    def to_sql(self, *, reveal: bool) -> str:
        return "RESET (" + ", ".join(name.text for name in self.names) + ")"


@dataclass(frozen=True)
class SetColumns:
    """SET COLUMNS: what a source has from now on."""

    columns: tuple[Column, ...]
    primary_key: tuple[Identifier, ...] = ()
    """The key that the source has, if the statement repeats it."""

    def to_sql(self, *, reveal: bool) -> str:
        key = [f"PRIMARY KEY {in_parentheses(self.primary_key)} NOT ENFORCED"] if self.primary_key else []
        return f"SET COLUMNS ({', '.join([*(column.to_sql() for column in self.columns), *key])})"


@dataclass(frozen=True)
class SetFrom:
    """SET FROM: another source or view for the same table."""

    source: Identifier
    options: Options = NO_OPTIONS

    def to_sql(self, *, reveal: bool) -> str:
        return one_line([f"SET FROM {self.source.to_sql()}", *with_options(self.options, reveal=reveal)])


@dataclass(frozen=True)
class SetPartitioning:
    """SET PARTITION BY; without fields the table is not partitioned any more."""

    fields: tuple[PartitionField, ...]

    def to_sql(self, *, reveal: bool) -> str:
        return f"SET {partition_by(self.fields)}"


@dataclass(frozen=True)
class Pause:
    """PAUSE."""

    def to_sql(self, *, reveal: bool) -> str:
        return "PAUSE"


@dataclass(frozen=True)
class Resume:
    """RESUME."""

    def to_sql(self, *, reveal: bool) -> str:
        return "RESUME"


@dataclass(frozen=True)
class AcceptSnapshot:
    """ACCEPT SNAPSHOT: go on from this snapshot although it is not this sink's."""

    snapshot_id: int

    def to_sql(self, *, reveal: bool) -> str:
        return f"ACCEPT SNAPSHOT {self.snapshot_id}"


SinkAction = SetOptions | ResetOptions | SetFrom | SetPartitioning | Pause | Resume | AcceptSnapshot
OptionsAction = SetOptions | ResetOptions
SourceAction = OptionsAction | SetColumns
