"""Which snapshots expire (pure). Metadata is read and written whole, so a commit costs what the history is long.

Kept are: those that are protected (`expiry` says which); the newest `keep_all` snapshots; of the older ones the first
of each hour. Nothing else that is older than `max_age_ms` is kept, but for the newest `min_keep`.

pyiceberg clears the parent id of a snapshot whose parent expires. So the ancestors of the head end at the last of the
newest ones, and the hourly ones are found by id and by time only. A sink reads its progress from its newest own
ancestor, which is why `expiry` protects everything between that and the head.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

HOUR_MS = 3_600_000
MAX_AGE_MS = 7 * 24 * HOUR_MS
KEEP_ALL = 50
BATCH = 10
"""Snapshots expire in batches of at least this many: it takes a commit of its own."""


@dataclass(frozen=True)
class Retention:
    """How long snapshots are kept."""

    max_age_ms: int = MAX_AGE_MS
    min_keep: int = 1
    keep_all: int = KEEP_ALL

    @classmethod
    def of(cls, table_properties: Mapping[str, str], max_age_ms: int | None, min_keep: int | None) -> "Retention":
        """What the table says; the two values of its branch, where set, come first."""
        age = table_properties.get("history.expire.max-snapshot-age-ms", str(MAX_AGE_MS))
        least = table_properties.get("history.expire.min-snapshots-to-keep", "1")
        return cls(
            max_age_ms=max_age_ms if max_age_ms is not None else _number(age, MAX_AGE_MS),
            min_keep=min_keep if min_keep is not None else _number(least, 1),
        )


@dataclass(frozen=True)
class Aged:
    """A snapshot as far as its retention is concerned."""

    snapshot_id: int
    sequence_number: int
    timestamp_ms: int


def expired(
    snapshots: Iterable[Aged], protected: Collection[int], retention: Retention, now_ms: int
) -> tuple[int, ...]:
    """Ids of the snapshots that go, oldest first; none while they are fewer than a batch."""
    newest_first = sorted(snapshots, key=lambda s: s.sequence_number, reverse=True)
    gone: list[int] = []
    hours: set[int] = set()
    for age_rank in range(len(newest_first) - 1, retention.min_keep - 1, -1):
        snapshot = newest_first[age_rank]
        hour = snapshot.timestamp_ms // HOUR_MS
        if snapshot.snapshot_id in protected:
            hours.add(hour)
        elif now_ms - snapshot.timestamp_ms > retention.max_age_ms:
            gone.append(snapshot.snapshot_id)
        elif age_rank >= retention.keep_all:
            if hour in hours:
                gone.append(snapshot.snapshot_id)
            hours.add(hour)
    return tuple(gone) if len(gone) >= BATCH else ()


def _number(text: str, default: int) -> int:
    return int(text) if text.isdigit() else default
