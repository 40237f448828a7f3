"""Finds the rows that a batch deletes in one snapshot of the simulated table: the part of `calve.keylookup`."""

from collections.abc import Sequence
from dataclasses import replace

from calve.errors import TransientError
from calve.model.files import Content, Manifest, ResolvedDeletes, RowsWithIds
from calve.model.scan import ContentId
from calve.model.table import TableState

from .contents import VECTORS, Contents, File
from .world import World


def manifest_of(name: str, rows: int) -> Manifest:
    return Manifest(name, 1, 0, Content.DATA, 1, rows, ())


class SimulatedLookup:
    """Position deletes, or vectors and ids, for exactly one state."""

    forgets_vectors = False
    """Mutation: a vector lacks what the one before it deleted."""
    forgets_positions = False
    """Mutation: a vector lacks what position deletes deleted."""
    keeps_no_ids = False
    """Mutation: rows that are updated get new ids."""

    def __init__(self, world: World) -> None:
        self._world = world

    def resolve(self, state: TableState, keys: Sequence[Manifest], added: Sequence[Manifest]) -> ResolvedDeletes:
        files = self._world.files
        if not all(manifest.path in files for manifest in (*keys, *added)):
            raise TransientError("a file of the batch is gone")
        wanted = {key for manifest in keys for key in files[manifest.path].deletes}
        contents: Contents = state.handle.snapshots[state.head].contents if state.head else Contents()
        found = frozenset((name, key) for key, _, name in contents.rows if key in wanted)
        if state.format_version < VECTORS:
            return ResolvedDeletes((self._put("positions-", File({}, positions=found)),))
        if not found:
            return ResolvedDeletes()
        vectors, replaced = dict[str, frozenset[int]](), list[ContentId]()
        for name in sorted({name for name, _ in found}):
            vectors[name] = frozenset(key for at, key in found if at == name)
            old = contents.vectors.get(name)
            if old is not None:
                replaced.append(old.content)
                vectors[name] |= frozenset() if self.forgets_vectors else old.keys
            elif not self.forgets_positions:
                vectors[name] |= {key for at, key in contents.positions if at == name}
        deletes = self._put("vectors-", File({}, vectors=vectors))
        return ResolvedDeletes((deletes,), replaced=tuple(replaced), rows=self._with_ids(contents, added, wanted))

    def _with_ids(self, contents: Contents, added: Sequence[Manifest], wanted: set[int]) -> RowsWithIds | None:
        """The data files of a batch again, with the ids of the rows that they replace; None if there are none."""
        ids: dict[int, int] = {}
        for (_, key), number in contents.live_ids.items():
            if key in wanted:
                ids[key] = min(number, ids.get(key, number))
        manifests, new, unused = list[Manifest](), list[str](), list[str]()
        for manifest in added:
            file = self._world.files[manifest.path]
            kept = {key: ids[key] for key in file.rows if key in ids}
            if kept and not self.keeps_no_ids:
                manifests.append(self._put("ids-", replace(file, ids=kept)))
                new.append(manifests[-1].path)
                unused.append(manifest.path)
            else:
                manifests.append(manifest)
        return RowsWithIds(tuple(manifests), tuple(new), tuple(unused)) if new else None

    def _put(self, prefix: str, file: File) -> Manifest:
        name = self._world.new_id(prefix)
        self._world.files[name] = file
        return manifest_of(name, len(file.rows))
