"""Older files of position deletes -> fewer, as a part of a commit that deletes rows anyway."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from calve.iceberg.delete_tiers import DeleteGroup
from calve.iceberg.position_deletes import DeletePlace, Found
from calve.model.files import WrittenFile
from calve.model.scan import ScanFile
from calve.resolve.search import reading, written
from calve.scan.deletes import positions_by_path
from calve.scan.keys import distinct


@dataclass(frozen=True)
class Merged:
    """New files of deletes, and those whose place they take."""

    files: tuple[WrittenFile, ...] = ()
    replaced: tuple[str, ...] = ()


def merge_deletes(groups: Sequence[DeleteGroup], place: DeletePlace, live: Collection[str], name: str) -> Merged:
    """Deletes of data files that left the table are left out. Raises TransientError."""
    found = [one for group in groups for one in _positions(group, place, live)]
    return Merged(written(place, found, f"{name}/merged"), tuple(file.path for g in groups for file in g.files))


def _positions(group: DeleteGroup, place: DeletePlace, live: Collection[str]) -> list[Found]:
    pieces: dict[str, list[np.ndarray]] = {}
    with reading("older position deletes"):
        for file in group.files:
            for path, positions in positions_by_path(file.path, place.io_properties).items():
                if path in live:
                    pieces.setdefault(path, []).append(positions)
    return [Found(_data_file(path, group), distinct(np.concatenate(positions))) for path, positions in pieces.items()]


def _data_file(path: str, group: DeleteGroup) -> ScanFile:
    """As much of a data file as its deletes have to say."""
    return ScanFile(path, 0, 0, 0, spec_id=group.spec_id, partition=group.partition)
