"""calve's side of `stream.py`: a sink that reads a folder, one commit per file, and says where its time went."""

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from workload import COLUMNS, DDL, Workload

import calve
from calve.metrics import COMPACTED_ROWS, MAINTENANCE_SECONDS
from calve.model.health import CommitReport, Status
from calve.model.spec import Upsert
from calve.pipeline.query import Query
from calve.watch.commits import listening

PATIENCE = 3600.0
_TICKS = os.sysconf("SC_CLK_TCK")
_THREADS = {
    "Executor task": "tasks",
    "C1 Comp": "compiler",
    "C2 Comp": "compiler",
    "G1 ": "garbage",
    "GC Thread": "garbage",
}
"""What the threads of a JVM do, by the start of their names."""


@dataclass
class Spent:
    """What a run took since it was made."""

    jvm: int
    """Its process id."""
    python: float = field(default_factory=time.process_time)
    seconds: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        """Note where counters stand."""
        self._threads, self._upkeep, self._rewritten = self._jvm(), self._upkeep_seconds(), self._rewritten_rows()

    def so_far(self) -> dict[str, object]:
        """As JSON."""
        return {
            "seconds": time.perf_counter() - self.seconds,
            "python_cpu": time.process_time() - self.python,
            "jvm_cpu": _more(self._jvm(), self._threads),
            "upkeep": _more(self._upkeep_seconds(), self._upkeep),
            "rewritten": self._rewritten_rows() - self._rewritten,
        }

    def _jvm(self) -> dict[str, float]:
        """CPU seconds of the JVM by what its threads do: tasks, compilation, garbage; the rest plans and schedules."""
        found = defaultdict[str, float](float)
        for stat in Path(f"/proc/{self.jvm}/task").glob("*/stat"):
            with suppress(OSError):  # it has just ended
                name, _, fields = stat.read_text().partition("(")[2].rpartition(")")
                kind = next((kind for start, kind in _THREADS.items() if name.startswith(start)), "driver")
                found[kind] += sum(map(int, fields.split()[11:13])) / _TICKS
        return found

    def _upkeep_seconds(self) -> dict[str, float]:
        samples = (sample for metric in MAINTENANCE_SECONDS.collect() for sample in metric.samples)
        return {s.labels["kind"]: s.value for s in samples if s.name.endswith("_sum")}

    def _rewritten_rows(self) -> int:
        samples = (sample for metric in COMPACTED_ROWS.collect() for sample in metric.samples)
        return sum(int(sample.value) for sample in samples if sample.name.endswith("_total"))


def _more(now: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in now.items() if value > before.get(name, 0.0)}


def jvm_below(process: int) -> int:
    """The process id of the JVM that a process has started."""
    children = [pid for file in Path(f"/proc/{process}/task").glob("*/children") for pid in file.read_text().split()]
    return next(int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == "java")


@contextmanager
def commits_kept() -> Iterator[list[CommitReport]]:
    """All commits that change something, while the block runs."""
    kept: list[CommitReport] = []

    def keep(_status: Status, report: CommitReport) -> None:
        if report.changes:
            kept.append(report)

    with listening(keep):
        yield kept


def _one_file(query: Query, file: Path, incoming: Path) -> float:
    """Seconds from the arrival of a file to its commit."""
    began = time.perf_counter()
    (incoming / file.name).hardlink_to(file)
    query.await_caught_up(PATIENCE)
    return time.perf_counter() - began


def main() -> None:
    """Answer requests from standard input."""
    folder, home, _, deletes, version, maintenance = sys.argv[1:]
    first, *others = Workload.at(Path(folder)).files()
    incoming = Path(home) / "incoming"
    incoming.mkdir(parents=True)
    lake = calve.connect(home=Path(home) / "home")
    lake.spark(master="local[2]", conf={"spark.driver.memory": "6g"})
    jvm = jvm_below(os.getpid())
    envelope = Upsert(order_by=("seq",), delete_when="op = 'd'", columns=", ".join(COLUMNS))
    source = calve.files(incoming, format="parquet", schema=DDL, envelope=envelope, max_files_per_checkpoint=1)
    sink = calve.sink(source, name="orders", into=lake.table("b.orders"), key=["id"])
    query = sink.options(deletes=deletes, format_version=int(version), maintenance=maintenance).start()
    with commits_kept() as commits:
        for line in sys.stdin:
            commits.clear()
            spent = Spent(jvm)
            answer: dict[str, object] = {}
            match line.strip():
                case "load":
                    (incoming / first.name).hardlink_to(first)
                    query.await_caught_up(PATIENCE)
                case "stream":
                    for file in others:
                        (incoming / file.name).hardlink_to(file)
                    query.await_caught_up(PATIENCE)
                    answer["commits"] = [
                        {"at": c.at_ms / 1000, "changes": c.changes, "seconds": c.seconds, "phases": dict(c.phases)}
                        for c in commits
                    ]
                case "each":
                    answer["files"] = [_one_file(query, file, incoming) for file in others]
                case "settle":
                    query.await_maintained(600)
                case _:
                    answer["table"] = lake.open().load_table("b.orders").metadata_location
            print(json.dumps(answer | spent.so_far()), flush=True)
    query.stop()


if __name__ == "__main__":
    main()
