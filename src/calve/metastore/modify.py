"""Modifications: any number of overwrites and deletes, executed in order, in one snapshot.

    overwrite(units)   replaces the contents of the units' partitions by these units
    delete(filter)     removes the partitions that match

Operations on the same partition apply in the given order. Several modifications of different components can be executed
together, all or none (`execute_together`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from calve.catalog.discard import discard
from calve.catalog.failures import trying
from calve.errors import CommitConflict, CommitUnknown, InvalidInput, TransientError
from calve.faults import reached
from calve.iceberg.small_tables.partition_files import Prepared, TableVersion, commit_all, forget, prepare, write_rows
from calve.metastore.config import data_location
from calve.metastore.filters import Filter
from calve.model.files import WrittenFile

if TYPE_CHECKING:
    from calve.metastore.component import Component

U = TypeVar("U")
Row = Mapping[str, Any]

ATTEMPTS = 100
"""Each failed attempt means that another writer succeeded."""


@dataclass(frozen=True)
class _Overwrite:
    groups: Mapping[tuple[Any, ...], Sequence[Row]]


@dataclass(frozen=True)
class _Delete:
    condition: Filter


class Modify(Generic[U]):
    """Pending operations on one component."""

    def __init__(self, component: "Component[U]") -> None:
        self._component = component
        self._operations: list[_Overwrite | _Delete] = []
        self._expected: int | TableVersion | None = None

    @property
    def component(self) -> "Component[U]":
        """The component that it modifies."""
        return self._component

    def overwrite(self, *units: U) -> "Modify[U]":
        """Replace the contents of the units' partitions by these units. Raises InvalidInput."""
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for unit in units:
            row = self._component.layout.to_row(unit)
            groups.setdefault(self._component.layout.partition_of(row), []).append(row)
        for partition in groups:
            self._location(partition, "")  # rejects invalid folder names
        if groups:
            self._operations.append(_Overwrite(groups))
        return self

    def delete(self, condition: Filter) -> "Modify[U]":
        """Remove the partitions that match; the filter may use partition keys only. Raises InvalidInput."""
        self._component.layout.check_delete(condition)
        self._operations.append(_Delete(condition))
        return self

    def expecting(self, version: int | TableVersion) -> "Modify[U]":
        """Execute only if the component has this version (or is exactly this table version); else CommitConflict."""
        self._expected = version
        return self

    def execute(self) -> int:
        """Execute all operations or none; returns the new version of the component.

        Raises CommitConflict if the component has another version than expected, or if other writers won every attempt.
        """
        return execute_together([self])[0]

    # ---- for execute_together

    def write_files(self, seen: TableVersion) -> list[WrittenFile]:
        """Write the units that remain after all operations; once, for all attempts."""
        groups: dict[tuple[Any, ...], Sequence[Row]] = {}
        for operation in self._operations:
            if isinstance(operation, _Overwrite):
                groups |= operation.groups
            else:
                groups = {p: rows for p, rows in groups.items() if not self._matches(operation.condition, p)}
        files: list[WrittenFile] = []
        try:
            with trying(f"writing files of {self._component.label}"):
                for partition, rows in groups.items():
                    location = self._location(partition, f"{self._component.tools[1].new_id()}.parquet")
                    files.append(write_rows(seen.table, location, partition, rows))
        except BaseException:
            discard(seen.table.io, [file.path for file in files], "not all files of the modification could be written")
            raise
        return files

    def removed(self, seen: TableVersion) -> list[str]:
        """The files that the operations remove."""
        return [file.path for file in seen.files if any(self._touches(one, file.partition) for one in self._operations)]

    @property
    def expects(self) -> bool:
        """Whether it expects a version."""
        return self._expected is not None

    def start(self) -> TableVersion:
        """The version that the first attempt builds on."""
        return self._expected if isinstance(self._expected, TableVersion) else self._component.see()

    def check(self, seen: TableVersion) -> None:
        """Raise CommitConflict if the component does not have the expected version."""
        expected = self._expected
        if expected is None:
            return
        same = seen.moment == expected.moment if isinstance(expected, TableVersion) else seen.version == expected
        if not same:
            version = expected.version if isinstance(expected, TableVersion) else expected
            raise CommitConflict(
                f"{self._component.label} was changed by another writer",
                detail=f"Got version {seen.version}, expected {version}.",
                hint="Read it again and repeat the modification.",
            )

    def _touches(self, operation: _Overwrite | _Delete, partition: tuple[Any, ...]) -> bool:
        if isinstance(operation, _Overwrite):
            return partition in operation.groups
        return self._matches(operation.condition, partition)

    def _matches(self, condition: Filter, partition: tuple[Any, ...]) -> bool:
        return bool(condition.outcome(dict(zip(self._component.layout.partition_keys, partition, strict=True))))

    def _location(self, partition: tuple[Any, ...], file_name: str) -> str:
        layout = self._component.layout
        keys = dict(zip(layout.partition_keys, partition, strict=True))
        return data_location(self._component.location, [keys[name] for name in layout.storage_keys], file_name)


def execute_together(modifications: Sequence[Modify[Any]], unchanged: Sequence[TableVersion] = ()) -> list[int]:
    """Execute modifications of different components, all or none; returns the new versions of the components.

    Nothing is applied if any of `unchanged` has changed. More than one component needs a SQLite catalog.
    """
    first = [one.start() for one in modifications]
    files: list[list[WrittenFile]] = []
    try:
        for one, seen in zip(modifications, first, strict=True):
            one.check(seen)
            files.append(one.write_files(seen))
        reached("metastore.files")
    except BaseException:
        _discard(first, files, "the modification failed before it was sent")
        raise
    try:
        return _Attempts(modifications, files, unchanged).until_done(first)
    except (CommitConflict, InvalidInput):  # raised only if certainly no attempt was applied
        _discard(first, files, "the modification was not applied")
        raise


def _discard(seen: Sequence[TableVersion], files: Sequence[list[WrittenFile]], why: str) -> None:
    for one, written in zip(seen, files, strict=False):
        discard(one.table.io, [file.path for file in written], why)


class _Attempts:
    """Retries until the modifications are applied, each time on the newest state."""

    def __init__(
        self,
        modifications: Sequence[Modify[Any]],
        files: Sequence[list[WrittenFile]],
        unchanged: Sequence[TableVersion],
    ) -> None:
        self._modifications = modifications
        self._files = files
        self._unchanged = unchanged
        self._lost: CommitUnknown | None = None
        """Why the outcome of an attempt is unknown."""
        self._open: list[list[Prepared | None]] = []
        """Attempts that may have been applied, or may still be."""
        self._missed: list[str] = []
        """The versions at which a file was missing: if they are the same the second time, the file is lost."""

    def until_done(self, seen: list[TableVersion]) -> list[int]:
        """Returns the new versions."""
        try:
            for _ in range(ATTEMPTS):
                versions = self._attempt(seen)
                if versions is not None:
                    return versions
                seen = [one.component.see() for one in self._modifications]
        except CommitConflict as conflict:
            if self._lost is not None:
                raise self._lost from conflict
            raise
        raise self._lost or CommitConflict(
            f"{self._modifications[0].component.label} could not be modified",
            detail=f"Other writers won all {ATTEMPTS} attempts.",
            hint="Try again.",
        )

    def _attempt(self, seen: list[TableVersion]) -> list[int] | None:
        """One attempt: returns the versions, or None if it has to be retried."""
        if any(_landed(prepared, seen) for prepared in self._open):
            return [one.version for one in seen]
        prepared = self._prepare(seen)
        if prepared is None:
            return None
        idle = [(m, s) for m, s, p in zip(self._modifications, seen, prepared, strict=True) if p is None and m.expects]
        given = [one for one in prepared if one is not None]
        if not given:
            for one, _ in idle:
                one.check(one.component.see())
            return [one.version for one in seen]
        try:
            commit_all(given, [*self._unchanged, *(one for _, one in idle)])
        except CommitConflict:
            if self._unchanged:
                raise
            return None
        except CommitUnknown as error:
            self._lost = error
            self._open.append(prepared)
            return None
        return [p.draft.sequence_number if p else s.version for p, s in zip(prepared, seen, strict=True)]

    def _prepare(self, seen: Sequence[TableVersion]) -> list[Prepared | None] | None:
        """Write a snapshot for each modification that changes something; None if files of `seen` expired meanwhile."""
        prepared: list[Prepared | None] = []
        try:
            with trying(f"reading {self._modifications[0].component.label}"):
                for one, files, now in zip(self._modifications, self._files, seen, strict=True):
                    one.check(now)
                    removed = one.removed(now)
                    keep, tools = one.component.kept(now), one.component.tools
                    prepared.append(prepare(now, removed, files, keep, tools) if removed or files else None)
        except (TransientError, InvalidInput) as error:
            forget([one for one in prepared if one is not None])
            moments = [one.moment for one in seen]
            if not isinstance(error.__cause__, FileNotFoundError) or moments == self._missed:
                raise
            self._missed = moments
            return None
        return prepared


def _landed(prepared: Sequence[Prepared | None], seen: Sequence[TableVersion]) -> bool:
    return all(one.is_in(now) for one, now in zip(prepared, seen, strict=True) if one is not None)
