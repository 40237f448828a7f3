"""How batches are written: Spark's own writer beside a plain Parquet write, the driver beside tasks, memory of tasks.

    python benchmarks/writers.py [load] [sizes] [partitions] [memory] [--rounds 5]

`load`: an initial load of 5M rows by every way, beside `repartition(n, key).write.parquet` of the same rows, which
neither sorts nor looks for repeated keys nor has field ids; "may delete" is a load whose plan does not say that all
rows are upserts. `sizes`: batches of 1,000 to 1M changes by every way; the bounds in `write/batch.py` come from here.
`partitions`: 100,000 and 1M changes of tables with partitions. `memory`: peak memory of the Python
workers for 1M and 10M changes.

All ways take turns in one process, so that noise of the machine falls on all of them. CPU is that of this process and
its children; where others use the machine, it says more than the seconds.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from harness import DATA, Case, Recording, add_arguments, recording
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from workload import COLUMNS, make_workload

from calve.clock import RandomIds
from calve.iceberg.schema.creation import iceberg_schema, partition_spec
from calve.model.change import BAD, DELETE, OP, ORDER_PREFIX, UPSERT
from calve.model.checkpoint import SizeHint
from calve.model.files import WriteResult, WriteTarget
from calve.model.spec import PartitionBy
from calve.spark.session import embedded_session
from calve.write.changes import check_changes
from calve.write.driver_writer import DriverWriter
from calve.write.job import WriteJob, Writer, layout_of
from calve.write.native_writer import NativeWriter
from calve.write.task_writer import TaskWriter

PLAIN_WRITE = "plain write.parquet"
ROWS = 5_000_000
PARTITIONS = 4
SIZES = (1_000, 10_000, 100_000, 300_000, 1_000_000)
TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


# ---------------------------------------------------------------------------------------------------------- processes


def descendants() -> list[int]:
    """This process and all that it started."""
    children: dict[int, list[int]] = {}
    for stat in _stats():
        children.setdefault(stat[1], []).append(stat[0])
    found, todo = [], [os.getpid()]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def _stats() -> Iterator[tuple[int, int, int]]:
    """Pid, parent and CPU ticks of every process."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended
                continue
            yield int(entry.name), int(fields[1]), sum(int(ticks) for ticks in fields[11:15])


def cpu_seconds() -> float:
    """Of this process and all that it started."""
    own = set(descendants())
    return sum(ticks for pid, _, ticks in _stats() if pid in own) / TICKS


@contextmanager
def peak_of_workers() -> Iterator[list[int]]:
    """The highest resident memory, in bytes, of any Python worker meanwhile."""
    peak, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            for pid in descendants()[1:]:
                try:
                    if b"\0-m\0calve.spark.workers\0" not in (_PROC / str(pid) / "cmdline").read_bytes():
                        continue
                    lines = (_PROC / str(pid) / "status").read_text().splitlines()
                except OSError:
                    continue
                resident = next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)
                peak[0] = max(peak[0], resident << 10)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


# --------------------------------------------------------------------------------------------------------------- ways


class Bench:
    """Writes frames of changes into a folder that is emptied before every write."""

    def __init__(self, spark: SparkSession, folder: Path, results: Recording) -> None:
        self.spark = spark
        self.folder = folder
        self.results = results

    def write(
        self, writer: Writer, frame: DataFrame, rows: int, *, deletes: bool, by: tuple[PartitionBy, ...] = ()
    ) -> WriteResult:
        """One batch."""
        shutil.rmtree(self.folder, ignore_errors=True)
        schema = iceberg_schema(frame.select(*COLUMNS).schema, ["id"])
        spec = partition_spec(schema, by).model_dump_json() if by else ""
        target = WriteTarget(schema.model_dump_json(), (1,), f"file://{self.folder}/data", 0, 0, data_spec_json=spec)
        layout = layout_of(frame.columns, target)
        job = WriteJob(check_changes(frame, layout), layout, target, deletes, SizeHint(rows=rows), RandomIds().new_id())
        result = writer.write(job)
        if result.changes != rows:
            raise SystemExit(f"{result.changes} changes instead of {rows}")
        return result

    def plain(self, frame: DataFrame) -> None:
        """Spark's Parquet writer after the same shuffle, and nothing else."""
        shutil.rmtree(self.folder, ignore_errors=True)
        frame = frame.select(*COLUMNS).repartition(PARTITIONS, "id")
        frame.write.option("compression", "zstd").parquet(str(self.folder / "plain"))


def compare(
    results: Recording, case: Case, ways: Mapping[str, Callable[[], object]], rounds: int
) -> dict[str, tuple[float, float]]:
    """Median seconds and CPU seconds of every way; they take turns, and the first turn does not count."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            cpu, started = cpu_seconds(), time.perf_counter()
            way()
            if turn:
                times[name].append((time.perf_counter() - started, cpu_seconds() - cpu))
    found = {n: (statistics.median(s for s, _ in t), statistics.median(c for _, c in t)) for n, t in times.items()}
    for name, taken in times.items():
        system = name if name == case.peer else f"calve, {name}"
        results.add(case, system, [seconds for seconds, _ in taken], cpu_s=found[name][1])
    return found


def changes_of(frame: DataFrame) -> DataFrame:
    """A frame of the workload as a frame of changes."""
    op = F.when(F.col("op") == "d", DELETE).otherwise(UPSERT).cast("byte")
    bad = F.lit(None).cast("string")
    return frame.select(*COLUMNS, op.alias(OP), F.col("seq").alias(f"{ORDER_PREFIX}0"), bad.alias(BAD))


def made(spark: SparkSession, rows: int, keys: int) -> DataFrame:
    """Changes of random keys, made by Spark on the way; every twentieth is a delete."""
    return spark.range(rows).select(
        F.pmod(F.xxhash64("id"), F.lit(keys)).alias("id"),
        F.pmod(F.hash("id"), F.lit(200_000)).alias("customer"),
        (F.pmod(F.hash("id"), F.lit(400_000)) / 4).alias("amount"),
        F.element_at(
            F.array(*map(F.lit, ("NEW", "PAID", "PACKED", "SHIPPED"))), F.pmod("id", F.lit(4)).cast("int") + 1
        ).alias("status"),
        F.timestamp_micros(F.lit(1_760_000_000_000_000) + F.pmod(F.xxhash64("id"), F.lit(10**13))).alias("updated"),
        F.when(F.col("id") % 20 == 0, DELETE).otherwise(UPSERT).cast("byte").alias(OP),
        F.col("id").alias(f"{ORDER_PREFIX}0"),
        F.lit(None).cast("string").alias(BAD),
    )


# ------------------------------------------------------------------------------------------------------------ sections


def load(bench: Bench, rounds: int) -> None:
    """The initial load."""
    workload = make_workload(DATA, ROWS, 10)
    source = bench.spark.read.parquet(workload.initial)
    changes = changes_of(source)
    upserts = changes.withColumn(OP, F.lit(UPSERT).cast("byte"))
    native, tasks = NativeWriter(PARTITIONS), TaskWriter(PARTITIONS, 65_536)
    found = compare(
        bench.results,
        Case(f"load of {ROWS:,} rows", "s", PLAIN_WRITE),
        {
            PLAIN_WRITE: lambda: bench.plain(source),
            "native": lambda: bench.write(native, upserts, ROWS, deletes=False),
            "native, with keys to delete": lambda: bench.write(native, upserts, ROWS, deletes=True),
            "native, may delete": lambda: bench.write(native, changes, ROWS, deletes=False),
            "native, may delete, with keys to delete": lambda: bench.write(native, changes, ROWS, deletes=True),
            "tasks": lambda: bench.write(tasks, upserts, ROWS, deletes=False),
        },
        rounds,
    )
    print(f"initial load of {ROWS:,} rows, {PARTITIONS} partitions (throughput as a ratio to plain)")
    seconds, cpu = found[PLAIN_WRITE]
    for name, (s, c) in found.items():
        print(f"  {name:40} {s:6.2f} s  {seconds / s:5.2f}    CPU {c:6.2f} s  {cpu / c:5.2f}", flush=True)


def sizes(bench: Bench, rounds: int) -> None:
    """Batches of changes of several sizes."""
    print("batches of changes (seconds, CPU seconds)")
    for rows in SIZES:
        frame = made(bench.spark, rows, ROWS)
        ways: dict[str, Writer] = {
            "driver": DriverWriter(None),
            "driver, size unknown": DriverWriter(rows),
            "tasks": TaskWriter(2, 65_536),
            "native": NativeWriter(2),
        }
        turns = {n: partial(bench.write, writer, frame, rows, deletes=True) for n, writer in ways.items()}
        found = compare(bench.results, Case(f"a batch of {rows:,} changes", "s"), turns, rounds)
        print(f"  {rows:>9,}  " + "   ".join(f"{n} {s:5.2f} {c:5.2f}" for n, (s, c) in found.items()), flush=True)


def partitions(bench: Bench, rounds: int) -> None:
    """Batches of changes of tables with and without partitions."""
    tables: dict[str, tuple[PartitionBy, ...]] = {
        "none": (),
        "bucket(16, id)": (PartitionBy("bucket", ("id",), 16),),
        "bucket(16, status)": (PartitionBy("bucket", ("status",), 16),),
        "day(updated)": (PartitionBy("day", ("updated",)),),  # 116 of them
    }
    print("batches of changes by partitions (seconds, CPU seconds)")
    for rows in (100_000, 1_000_000):
        frame = made(bench.spark, rows, ROWS)
        ways: dict[str, Writer] = {"driver": DriverWriter(None), "tasks": TaskWriter(2, 65_536)}
        for name, by in tables.items():
            turns = {n: partial(bench.write, writer, frame, rows, deletes=True, by=by) for n, writer in ways.items()}
            case = Case(f"a batch of {rows:,} changes, partitions: {name}", "s")
            found = compare(bench.results, case, turns, rounds)
            shown = "   ".join(f"{n} {s:5.2f} {c:5.2f}" for n, (s, c) in found.items())
            print(f"  {rows:>9,}  {name:20} {shown}", flush=True)


def memory(bench: Bench, _rounds: int) -> None:
    """Peak memory of a worker."""
    peaks = []
    for rows in (1_000_000, 1_000_000, 10_000_000):  # the first one imports
        with peak_of_workers() as peak:
            bench.write(TaskWriter(2, 65_536), made(bench.spark, rows, rows), rows, deletes=True)
        peaks.append(peak[0])
        if len(peaks) > 1:
            bench.results.add(Case(f"memory, {rows:,} changes", "MB"), "calve", [peak[0] / 1e6])
        print(f"  {rows:>10,} changes in 2 tasks: peak of a Python worker {peak[0] / 1e6:.0f} MB", flush=True)
    print(f"  10M changes to 1M changes: {peaks[2] / peaks[1]:.2f}")


SECTIONS = {"load": load, "sizes": sizes, "partitions": partitions, "memory": memory}


def main() -> None:
    """Run the sections that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], default=list(SECTIONS))
    parser.add_argument("--rounds", type=int, default=5)
    add_arguments(parser)
    options = parser.parse_args()
    with recording("writers", "Writing", options) as results, tempfile.TemporaryDirectory() as folder:
        spark = embedded_session(Path(folder) / "home", master="local[2]")
        for name in options.sections:
            SECTIONS[name](Bench(spark, Path(folder) / "table", results), options.rounds)
        spark.stop()


if __name__ == "__main__":
    main()
