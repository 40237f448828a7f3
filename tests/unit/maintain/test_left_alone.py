"""A sink that nobody looks after stays as it was on its first day: space, files, metadata, memory, time of a batch."""

import gc
import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

import calve
from calve.iceberg.snapshot.expired_files import IcebergFiles
from calve.maintain.expire import work_in
from calve.maintain.removal import Removal
from calve.model.spec import HOUR_MS, RetentionOptions
from calve.pipeline.upkeep import Upkeep
from tests.support.readers import duckdb_rows
from tests.support.runs import NAME, Run, spec_of
from tests.unit.iceberg.sample import SetClock

KEYS, CHANGES = 200, 20
TICK_MS = 120_000
"""Between two commits: retention and grace, an hour each, take 30 commits each."""
LOOK = 10
"""Commits between two looks."""
SETTLED = 100
"""Commits until what expires, and what is removed, is as much as what is written."""
BLOCK = 200
MEMORY_ROOM = 32 << 20
"""What the process may grow in the long test, less than 19 kB for each commit: two caches of manifests fill first."""
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Look:
    """What a home holds at one time."""

    files: int
    """Of the table and of the state location."""
    snapshots: int
    metadata_bytes: int
    """Of the newest metadata file."""
    live_bytes: int
    """Files that the head names."""
    young_bytes: int
    """Files written within retention and grace."""
    bytes: int
    """All files but those of the metadata log, which has a fixed length."""


@dataclass
class LeftAlone:
    """A sink with its upkeep, one commit every two minutes: updates of keys that are drawn from all."""

    home: Path
    clock: SetClock = field(default_factory=SetClock)
    rows: dict[int, str] = field(default_factory=dict)
    states: dict[int, dict[int, str]] = field(default_factory=dict)
    """The rows of each snapshot of the sink."""
    looks: list[Look] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """CPU of each commit."""

    def __post_init__(self) -> None:
        spec = spec_of("alone", retention=RetentionOptions(HOUR_MS, grace_ms=HOUR_MS))
        self.run = Run(self.home, spec, clock=self.clock)
        self.upkeep: Upkeep = self.run.upkeep()
        self._random = random.Random(0)
        self._seen: dict[Path, int] = {}
        lake = calve.connect(home=self.home)
        work = work_in(lake.state_root(None), lake.state_root)
        files = IcebergFiles(lake.open(), NAME)
        self._removal = Removal(files, self.run.removals, work, self.clock, grace_ms=HOUR_MS)

    def live(self, commits: int) -> Iterator[int]:
        """Commit as often; yields the number of commits after each look."""
        for number in range(1, commits + 1):
            chosen = range(KEYS) if number == 1 else self._random.sample(range(KEYS), CHANGES)
            changes = {key: self._random.randbytes(100).hex() for key in chosen}
            self.rows |= changes
            self.run.record(changes)
            before = time.thread_time()
            receipt = self.run.run.commits.commit_next()
            self.seconds.append(time.thread_time() - before)
            assert receipt is not None
            self.states[receipt.snapshot_id] = dict(self.rows)
            self._maintain()
            self.clock.now += TICK_MS
            if number % LOOK == 0:
                report = self._removal.run()
                assert not report.refusal
                kept = {one.snapshot_id for one in self.run.now.snapshots()}
                self.states = {one: rows for one, rows in self.states.items() if one in kept}
                self.looks.append(self._look())
                yield number

    def _maintain(self) -> None:
        """As between two batches, but wait for what was begun: the machine's pace must not decide what is compacted."""
        self.upkeep.maintain()
        if self.upkeep._join is not None:
            self.upkeep._join()

    def _look(self) -> Look:
        table = self.run.now
        head = table.current_snapshot()
        assert head is not None
        live = {head.manifest_list}
        for manifest in head.manifests(table.io):
            live.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            live |= {entry.data_file.file_path for entry in entries}
        folders = (self.home / "warehouse", self.home / "state")
        sizes = {path: path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file()}
        now = self.clock.now
        self._seen = {path: self._seen.get(path, now) for path in sizes}
        counted = {path: size for path, size in sizes.items() if not path.name.endswith(".metadata.json")}
        return Look(
            files=len(sizes),
            snapshots=len(table.snapshots()),
            metadata_bytes=sizes[_path(table.metadata_location)],
            live_bytes=sum(sizes[_path(location)] for location in live),
            young_bytes=sum(size for path, size in counted.items() if now - self._seen[path] <= 2 * HOUR_MS),
            bytes=sum(counted.values()),
        )

    def check_kept(self) -> int:
        """Compare every snapshot that is kept with what was committed, as DuckDB reads it; their number."""
        table = self.run.now
        kept = [one.snapshot_id for one in table.snapshots() if one.snapshot_id in self.states]
        for number in kept:
            rows = duckdb_rows(table.metadata_location, snapshot_id=number)
            assert len(rows) == KEYS
            assert {row["id"]: row["v"] for row in rows} == self.states[number], number
        return len(kept)

    def check_flat(self, since: int) -> None:
        """From this commit on, nothing grows, and the files are the live ones and those that retention keeps."""
        looks = self.looks[since // LOOK :]
        half = len(looks) // 2
        for what in ("files", "snapshots", "metadata_bytes", "bytes"):
            values = [getattr(look, what) for look in looks]
            assert max(values[half:]) <= 1.1 * max(values[:half]), (what, values)
        for look in looks:
            assert look.bytes <= 2.5 * look.live_bytes + look.young_bytes, look

    def close(self) -> None:
        """End the sink."""
        self.upkeep.close(failed=False)
        self.run.catalog.close()


def _path(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def _memory() -> int:
    """Bytes of this process that are in memory, without what its allocators keep."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def _undisturbed(seconds: Sequence[float]) -> float:
    """What a commit takes when nothing else works on the machine: other work makes them take longer, and never less."""
    return statistics.quantiles(seconds, n=5)[0]


@pytest.mark.long
def test_files_snapshots_and_metadata_stay_as_they_were(tmp_path: Path) -> None:
    sink = LeftAlone(tmp_path)
    for _ in sink.live(200):
        pass
    sink.close()
    assert sink.run.monitor.status.compactions > 10
    sink.check_flat(SETTLED)
    assert sink.check_kept() >= 30


@pytest.mark.soak
@pytest.mark.slow
def test_a_sink_of_2000_commits_is_as_it_was_after_200(tmp_path: Path) -> None:
    """Space as above; every kept snapshot has its rows; the process does not grow; the CPU of a commit stays."""
    sink = LeftAlone(tmp_path)
    memory: list[int] = []
    for number in sink.live(2000):
        if number % BLOCK == 0:
            assert sink.check_kept() >= 30
            memory.append(_memory())
    sink.close()
    sink.check_flat(SETTLED)
    blocks = [1000 * _undisturbed(sink.seconds[at : at + BLOCK]) for at in range(0, 2000, BLOCK)]
    print([n >> 20 for n in memory], [round(n, 2) for n in blocks], sink.looks[::20])  # noqa: T201
    assert min(blocks[-3:]) <= 1.5 * min(blocks[1:4]), blocks
    assert max(memory) <= memory[0] + MEMORY_ROOM, memory
