"""The position in a topic: the next offset of every partition. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from calve.model.checkpoint import Offsets, canonical_offsets

PartitionOffsets = Mapping[int, int]

SPLIT_OFFSETS = 50_000
"""A partition with more offsets is read by several tasks."""


@dataclass(frozen=True)
class TopicPosition:
    """The next offset to be read, by partition. Equal positions have equal texts."""

    topic: str
    topic_id: str
    """Changes when a topic is recreated; empty if the brokers do not report it."""
    next: PartitionOffsets
    first: PartitionOffsets = field(default_factory=dict)
    """Where the very first checkpoint started; empty in all later ones."""

    @classmethod
    def of(cls, offsets: Offsets) -> "TopicPosition | None":
        """The position that offsets name; None for the beginning."""
        if offsets is None:
            return None
        body = json.loads(offsets)
        return cls(body["topic"], body["id"], _numbers(body["next"]), _numbers(body.get("first", {})))

    def to_offsets(self) -> str:
        """Inverse of `of`."""
        body = {"topic": self.topic, "id": self.topic_id, "next": dict(self.next)}
        return canonical_offsets(body | ({"first": dict(self.first)} if self.first else {}))


@dataclass(frozen=True)
class OffsetRange:
    """Records of one partition: from `lower`, inclusive, to `upper`, exclusive."""

    partition: int
    lower: int
    upper: int


def advanced(start: PartitionOffsets, high: PartitionOffsets, most: int | None) -> dict[int, int]:
    """Where a checkpoint ends: `most` offsets after its start, in proportion to what each partition has."""
    waiting = {p: high[p] - start[p] for p in high if high[p] > start[p]}
    total = sum(waiting.values())
    if most is None or total <= most:
        return {p: max(high.get(p, 0), offset) for p, offset in start.items()}
    shares = {p: most * count // total for p, count in waiting.items()}
    left = most - sum(shares.values())
    for partition in sorted(waiting, key=lambda p: (shares[p] - waiting[p], p))[:left]:
        shares[partition] += 1
    return {p: offset + shares.get(p, 0) for p, offset in start.items()}


def splits(start: PartitionOffsets, end: PartitionOffsets, tasks: int) -> list[list[OffsetRange]]:
    """What each task reads: large partitions are split, small ones combined; a partition's records stay in order."""
    total = sum(end[p] - start.get(p, 0) for p in end)
    piece = max(SPLIT_OFFSETS, -(-total // max(tasks, 1)))
    found: list[list[OffsetRange]] = []
    room = 0
    for partition in sorted(end):
        lower = start.get(partition, 0)
        while lower < end[partition]:
            upper = min(end[partition], lower + piece)
            if room < upper - lower or not found:
                found.append([])
                room = piece
            found[-1].append(OffsetRange(partition, lower, upper))
            room -= upper - lower
            lower = upper
    return found


def _numbers(given: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in given.items()}
