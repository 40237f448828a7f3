"""What a snapshot of the simulated table contains: data files, what deletes their rows, and the ids of the rows.

Rows follow from files and deletes as readers derive them: equality deletes erase rows for good; of a data file that has
a deletion vector only the vector counts, position deletes count for the others.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from calve.model.scan import ContentId

VECTORS = 3
"""The first format version with deletion vectors and ids of rows."""

Row = tuple[int, int, str]
"""Key, value, and the data file it is in."""

Place = tuple[str, int]
"""A data file, and the key of a row in it: there are no two rows of a key in a file."""


class Violation(BaseException):
    """The protocol broke a promise. No Exception: no thread of calve may take it for a failure of its own."""


@dataclass(frozen=True)
class File:
    """Rows of a data file; keys that its batch deletes; rows that it deletes by position or by vectors."""

    rows: Mapping[int, int]
    deletes: frozenset[int] = frozenset()
    positions: frozenset[Place] = frozenset()
    vectors: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """By data file."""
    ids: Mapping[int, int] = field(default_factory=dict)
    """The ids that it states, by key; its other rows get new ones."""


def vector_id(path: str, data_file: str) -> ContentId:
    return ContentId(path, data_file=data_file)


@dataclass(frozen=True)
class Vector:
    content: ContentId
    keys: frozenset[int]


@dataclass(frozen=True)
class Contents:
    """Files, deletes and ids of one snapshot."""

    files: Mapping[str, File] = field(default_factory=dict)
    erased: frozenset[Place] = frozenset()
    positions: frozenset[Place] = frozenset()
    vectors: Mapping[str, Vector] = field(default_factory=dict)
    """By data file."""
    ids: Mapping[Place, int] = field(default_factory=dict)
    """Of all rows, deleted ones included. Empty before format version 3, and until the first snapshot after it."""

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        return tuple(
            (key, value, name)
            for name, file in self.files.items()
            for key, value in file.rows.items()
            if not self._hides((name, key))
        )

    def _hides(self, place: Place) -> bool:
        vector = self.vectors.get(place[0])
        return place in self.erased or (place in self.positions if vector is None else place[1] in vector.keys)

    @cached_property
    def live_ids(self) -> dict[Place, int]:
        """The ids of the rows that are not deleted."""
        return {(name, key): self.ids[name, key] for key, _, name in self.rows if (name, key) in self.ids}

    def with_files(self, added: Sequence[tuple[str, File]], replaced: Iterable[ContentId], version: int) -> "Contents":
        """The contents after a commit; raises Violation if a reader would refuse or misread them."""
        vectors, gone = dict(self.vectors), set(replaced)
        for name in [name for name, vector in vectors.items() if vector.content in gone]:
            gone.discard(vectors.pop(name).content)
        if gone:
            raise Violation(f"vectors are replaced that are not in the table: {gone}")
        now = replace(self, vectors=vectors)
        for name, file in added:
            now = now._with(name, file, version)
        return now

    def _with(self, name: str, file: File, version: int) -> "Contents":
        if not {at for at, _ in file.positions} | set(file.vectors) <= set(self.files):
            raise Violation("a delete names a position in a data file that is not in the table")
        if file.positions and version >= VECTORS:
            raise Violation("position deletes are added to a table that has vectors")
        if file.vectors and version < VECTORS:
            raise Violation("vectors are added to a table that cannot have them")
        if file.vectors.keys() & self.vectors.keys():
            raise Violation("a data file has two vectors")
        vectors = {at: Vector(vector_id(name, at), keys) for at, keys in file.vectors.items()}
        return replace(
            self,
            files={**self.files, name: file} if file.rows else self.files,
            erased=self.erased | {(at, key) for key, _, at in self.rows if key in file.deletes},
            positions=self.positions | file.positions,
            vectors={**self.vectors, **vectors},
        )

    def numbered(self, next_id: int) -> tuple["Contents", int]:
        """With an id for every row that has none; and the next id that is free."""
        ids = dict(self.ids)
        for name, file in self.files.items():
            for key in file.rows:
                if (name, key) not in ids:
                    ids[name, key] = file.ids.get(key, next_id)
                    next_id += 1
        return replace(self, ids=ids), next_id

    def check_ids(self, before: "Contents", next_id: int) -> None:
        """Check the ids of rows after a commit, or a rewrite; ids from `next_id` on are new."""
        if len(self.live_ids) != len(self.rows):
            raise Violation("a row has no id")
        if len(set(self.live_ids.values())) != len(self.rows):
            raise Violation(f"an id is on two rows: {self.live_ids}")
        old: dict[int, list[int]] = {}
        for (_, key), number in before.live_ids.items():
            old.setdefault(key, []).append(number)
        for (name, key), number in self.live_ids.items():
            if name in before.files:
                kept = before.live_ids.get((name, key))
                right = number >= next_id if kept is None else number == kept
            elif self.files[name].deletes or key not in old:
                right = number >= next_id
            else:
                right = number == min(old[key])
            if not right:
                raise Violation(f"the row of key {key} has id {number}; before it {old.get(key)}, new from {next_id}")

    def check_same_rows(self, before: "Contents") -> None:
        """Check a rewrite that changes no row: each has the id that it had, if it had one."""
        if before.ids and _with_ids(self) != _with_ids(before):
            raise Violation(f"a rewrite changed rows or ids: {_with_ids(before)} became {_with_ids(self)}")

    def rewritten(self, names: Sequence[str], *, keep_ids: bool = True) -> "Contents":
        """The same rows in new files; several only if there are keys with several rows."""
        layers: list[tuple[dict[int, int], dict[int, int]]] = []
        seen = Counter[int]()
        for key, value, name in self.rows:
            if seen[key] == len(layers):
                layers.append(({}, {}))
            rows, ids = layers[seen[key]]
            rows[key] = value
            if keep_ids and (name, key) in self.ids:
                ids[key] = self.ids[name, key]
            seen[key] += 1
        return Contents({name: File(rows, ids=ids) for name, (rows, ids) in zip(names, layers, strict=False)})


def _with_ids(contents: Contents) -> list[tuple[int, int, int]]:
    return sorted((contents.ids[name, key], key, value) for key, value, name in contents.rows)
