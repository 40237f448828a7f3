"""A steady stream: changes per second, CPU per million changes, and where the time goes; calve beside Flink.

    PYTHONPATH=. python benchmarks/stream.py [--rows 5000000] [--files 30] [--changes 100000 ...]
        [--systems positions,flink] [--maintenance on|off|both] [--runs 1]

A table of `--rows` rows gets `--files` files of `--changes` changes (90 % updates of uniform keys, 5 % inserts, 5 %
deletes), which are all there from the start; several numbers of changes are measured one after the other, each on a
table of its own. 1,000, 10,000, 100,000 and 1,000,000 are the usual ones.

    positions, vectors, equality    a sink that reads the folder, one commit per file, as `calve run --until-caught-up`
                                    does; with `--maintenance off` it compacts nothing, with `both` there is a stream of
                                    each, and the batch times of both are compared
    flink                           Flink's upsert sink (equality deletes, no maintenance), commits every second, from
                                    the same changes in Parquet (`peer_flink.py`); `scripts/fetch_flink.py .cache/flink`
                                    fetches it, and without it the benchmark says so and leaves it out

Systems run one after the other, each in processes of its own, on two cores. The rate is that between the first and the
last commit of the stream, after the table was loaded by the same job. The batch time is the time between two commits: a
stream that is never idle pays for maintenance in it; the time of a commit is that of its last attempt. CPU is that of
all processes of a system from the first file to the last commit. Where the time goes is wall clock per file by phase,
as the log of commits states it, for the two threads of a sink, which work at the same time: the one that reads and the
one that commits; what is left of the stream's time is idle (waiting for the other thread, or for the machine). Beside
them: CPU seconds of the JVM by what its threads do (tasks; compilation of Java code; garbage; the driver, which plans
and schedules: Spark's own bookkeeping), the time of maintenance, by kind, and the rows that it rewrote.

Every row is checked: DuckDB compares the table with what the changes say, and a wrong table ends the benchmark. DuckDB
does not read equality deletes; it joins the files of such tables with their deletes (`checking.py`). Rates mean little
on a machine that does something else; CPU seconds still do.
"""

import argparse
import itertools
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checking import CHECK, Digest, difference, digest_of_keyed, digest_of_table, expected_digest
from harness import DATA, JAR, ROOT, Case, Recording, add_arguments, recording
from peer_merge import session_with_runtime
from upserts import Peer
from workload import CHANGES, COLUMNS, Workload, make_workload

from calve.model.health import PHASES
from tests.support.cpu import cpu_seconds

FLINK = ROOT / ".cache" / "flink"
CALVE = {"positions": ("position", "2"), "vectors": ("vector", "3"), "equality": ("equality", "2")}
"""DELETES and FORMAT VERSION of the sinks."""
SYSTEMS = (*CALVE, "flink")
FEED = tuple(PHASES[: PHASES.index("load")])
"""Phases of the thread that reads; the others are the committer's."""


@dataclass(frozen=True)
class Result:
    """One stream into one table."""

    system: str
    rows: int
    files: int
    changes: int
    maintenance: bool
    rate: float
    """Changes per second between the first and the last commit."""
    commits: int
    cpu: float
    """CPU seconds per million changes."""
    python_cpu: float | None = None
    """Of them those of the driver's Python; the others are the JVM's."""
    load_seconds: float = 0.0
    seconds: float = 0.0
    """From the first file to the last commit."""
    batches: list[float] = field(default_factory=list)
    """Seconds between two commits."""
    commit_seconds: list[float] = field(default_factory=list)
    """Of each commit, the attempt that succeeded."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds by phase, of all commits."""
    jvm_cpu: dict[str, float] = field(default_factory=dict)
    """CPU seconds of the JVM per million changes, by what its threads do."""
    upkeep: dict[str, float] = field(default_factory=dict)
    settled_seconds: float = 0.0
    """How long maintenance went on after the last commit."""
    settled_cpu: float = 0.0
    rewritten: int = 0
    """Rows that maintenance wrote again until the last commit."""
    settled_rewritten: int = 0
    """After it."""

    def lines(self) -> list[str]:
        """For people."""
        kind = f"maintenance {'on' if self.maintenance else 'off'}"
        mine = (
            ""
            if self.python_cpu is None
            else f" ({self.python_cpu:.2f} driver, {self.cpu - self.python_cpu:.2f} JVM and rewrites)"
        )
        found = [
            f"{self.system}: {self.files} x {self.changes:,} changes on {self.rows:,} rows, {kind}",
            f"  {self.rate:,.0f} changes/s in {self.commits} commits; {self.cpu:.2f} CPU s per million changes{mine}",
        ]
        if not self.phases:
            return found
        found.append(f"  batch time {_spread(self.batches)}; commits {_spread(self.commit_seconds)}")
        for thread, phases in (("reads", FEED), ("commits", tuple(p for p in PHASES if p not in FEED))):
            spent = {name: self.phases[name] for name in phases if name in self.phases}
            spent["idle"] = max(0.0, self.seconds - sum(spent.values()))
            words = ", ".join(f"{name} {1000 * seconds / self.files:.1f}" for name, seconds in spent.items())
            found.append(f"  {thread + ':':9} {words} ms per file of {1000 * self.seconds / self.files:.1f}")
        beside = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in self.upkeep.items()) or "none"
        jvm = ", ".join(f"{kind} {seconds:.2f}" for kind, seconds in self.jvm_cpu.items())
        found.append(f"  JVM, CPU s per million: {jvm}; maintenance: {beside}")
        if self.maintenance:
            changes = self.files * self.changes
            during, after = self.rewritten / changes, (self.rewritten + self.settled_rewritten) / changes
            found.append(
                f"  rows rewritten per changed row: {during:.2f} during the stream, {after:.2f} with what followed"
            )
        if self.settled_seconds > 1:
            found.append(f"  maintenance went on for {self.settled_seconds:.1f} s and {self.settled_cpu:.1f} CPU s")
        return found


def run_calve(system: str, workload: Workload, home: Path, *, maintenance: bool) -> Result:
    """One stream by a sink, checked."""
    peer = Peer.of(("peer_stream.py", *CALVE[system], "auto" if maintenance else "off"), workload, home)
    loaded = peer.ask("load")
    before = cpu_seconds(peer.pid)
    answer = peer.ask("stream")
    after = cpu_seconds(peer.pid)
    settled = peer.ask("settle")
    end = cpu_seconds(peer.pid)
    table = peer.ask("table")["table"]
    peer.end()
    expected = expected_digest(workload)
    found = digest_of_keyed(table) if system == "equality" else digest_of_table(table)
    _check(system, found, expected)
    phases: dict[str, float] = {}
    for commit in answer["commits"]:
        for name, seconds in commit["phases"].items():
            phases[name] = phases.get(name, 0.0) + seconds
    millions = workload.batches * workload.changes / 1e6
    return Result(
        system,
        workload.rows,
        workload.batches,
        workload.changes,
        maintenance,
        rate=_rate(answer["commits"]),
        commits=len(answer["commits"]),
        cpu=(after - before) / millions,
        python_cpu=answer["python_cpu"] / millions,
        load_seconds=loaded["seconds"],
        seconds=answer["seconds"],
        batches=_between(answer["commits"]),
        commit_seconds=[commit["seconds"] for commit in answer["commits"]],
        phases=phases,
        jvm_cpu={kind: seconds / millions for kind, seconds in answer["jvm_cpu"].items()},
        upkeep=answer["upkeep"],
        settled_seconds=settled["seconds"],
        settled_cpu=end - after,
        rewritten=answer["rewritten"],
        settled_rewritten=settled["rewritten"],
    )


def run_flink(workload: Workload, home: Path) -> Result:
    """One stream by Flink's sink, checked."""
    _make_changes(workload, home)
    jars = sorted((FLINK / "jars").glob("*.jar"))
    iceberg = [jar for jar in jars if "iceberg" in jar.name]
    hadoop = ":".join(str(jar) for jar in jars if jar not in iceberg)
    changes = workload.batches * workload.changes
    began = time.perf_counter()
    peer = Peer(
        [
            *(str(FLINK / "venv" / "bin" / "python"), str(Path(__file__).parent / "peer_flink.py")),
            *(str(home / "hadoop"), str(workload.rows), str(changes), *map(str, iceberg)),
        ],
        {"HADOOP_CLASSPATH": hadoop},
    )
    before_stream = sum(commit["changes"] for commit in peer.ask("load")["commits"])
    loaded, before = time.perf_counter(), cpu_seconds(peer.pid)
    answer = peer.ask("stream")
    seconds, after = time.perf_counter() - loaded, cpu_seconds(peer.pid)
    peer.end()
    _check("flink", digest_of_keyed(answer["table"]), expected_digest(workload, deletes=False))
    commits, done = [], 0
    for commit in answer["commits"]:
        done += commit["changes"]
        if done >= before_stream:
            commits.append(commit)
    return Result(
        *("flink", workload.rows, workload.batches, workload.changes),
        maintenance=False,
        rate=_rate(commits),
        commits=len(commits),
        cpu=(after - before) / (workload.rows + changes - before_stream) * 1e6,
        load_seconds=loaded - began,
        seconds=seconds,
    )


def _between(commits: list[dict[str, Any]]) -> list[float]:
    return [later["at"] - earlier["at"] for earlier, later in itertools.pairwise(commits)]


def _p90(seconds: Sequence[float]) -> float:
    return statistics.quantiles(seconds, n=10, method="inclusive")[-1] if len(seconds) > 1 else sum(seconds)


def _spread(seconds: Sequence[float]) -> str:
    if not seconds:
        return "unknown"
    return f"{1000 * statistics.median(seconds):.0f} ms in the median, {1000 * _p90(seconds):.0f} ms at p90"


def _rate(commits: list[dict[str, Any]]) -> float:
    first, *others = [commit for commit in commits if commit["changes"]]
    if not others:
        raise SystemExit("the stream is too short to be measured: it was one commit; give more --files or --changes")
    changes, seconds = sum(commit["changes"] for commit in others), others[-1]["at"] - first["at"]
    return float(changes / seconds)


def _make_changes(workload: Workload, home: Path) -> None:
    """The changes as an Iceberg table for Flink, one snapshot per file."""
    spark = session_with_runtime(home, JAR)
    spark.sql("CREATE NAMESPACE IF NOT EXISTS i.b")
    columns = "id BIGINT, customer INT, amount DOUBLE, status STRING, updated TIMESTAMP"
    spark.sql(f"CREATE TABLE i.b.changes ({columns}) USING iceberg TBLPROPERTIES ('format-version' = '2')")
    for file in workload.files():
        spark.read.parquet(str(file)).select(*COLUMNS).coalesce(1).writeTo("i.b.changes").append()
    spark.stop()


def _check(system: str, found: Digest, expected: Digest) -> None:
    if wrong := difference(found, expected):
        raise SystemExit(f"{system} is wrong: {wrong}")


def _flink_versions() -> dict[str, str]:
    code = "from importlib.metadata import version; print(version('apache-flink'))"
    command = [str(FLINK / "venv" / "bin" / "python"), "-c", code]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    runtime = next((FLINK / "jars").glob("iceberg-flink-runtime*")).stem.rpartition("-")[2]
    return {"apache-flink": found, "iceberg-flink-runtime": runtime}


def record(results: Recording, measured: Sequence[Result]) -> None:
    """Keep the rates and times of streams of one size."""
    one = measured[0]
    name = f"{one.files} x {one.changes:,} changes on {one.rows:,} rows"
    rate = Case(name, "changes/s", "Flink" if any(r.system == "flink" for r in measured) else "", CHECK)
    between = Case(f"{name}, between two commits", "ms", "", CHECK)
    for system in dict.fromkeys(_title(result) for result in measured):
        own = [result for result in measured if _title(result) == system]
        cpu = statistics.median(result.cpu for result in own)
        results.add(rate, system, [r.rate for r in own], commits=own[0].commits, cpu_s_per_million=cpu)
        if batches := [1000 * seconds for result in own for seconds in result.batches]:
            phases = {name: 1000 * seconds / own[0].files for name, seconds in own[0].phases.items()}
            results.add(between, system, batches, p90=_p90(batches), **{f"{n}_ms": ms for n, ms in phases.items()})


def _title(result: Result) -> str:
    if result.system == "flink":
        return "Flink"
    return f"calve, {result.system}{'' if result.maintenance else ', no maintenance'}"


def _systems(text: str) -> list[str]:
    found = text.split(",")
    for name in found:
        if name not in SYSTEMS:
            raise argparse.ArgumentTypeError(f"invalid system {name!r}; expected some of {', '.join(SYSTEMS)}")
    return found


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--files", type=int, default=30)
    parser.add_argument("--changes", type=int, nargs="+", default=[CHANGES])
    parser.add_argument("--systems", type=_systems, default=["positions", "flink"])
    parser.add_argument("--maintenance", choices=("on", "off", "both"), default="on")
    parser.add_argument("--runs", type=int, default=1)
    add_arguments(parser)
    given = parser.parse_args()
    if "flink" in given.systems and not (FLINK / "complete").exists():
        print("Flink is left out: scripts/fetch_flink.py .cache/flink has not fetched it")
        given.systems = [system for system in given.systems if system != "flink"]
    versions = _flink_versions() if "flink" in given.systems else {}
    with recording("stream", "A steady stream", given, **versions) as results:
        for measured in measure(given):
            record(results, measured)


def measure(given: argparse.Namespace) -> Iterator[list[Result]]:
    """All streams of one size after the other."""
    for changes in given.changes:
        workload = make_workload(DATA, given.rows, given.files, changes)
        workload.files()
        kinds = {"on": (True,), "off": (False,), "both": (False, True)}[given.maintenance]
        measured: list[Result] = []
        planned = [(s, on) for s in given.systems for on in (kinds if s in CALVE else (False,))]
        for _ in range(given.runs):
            for system, maintenance in planned:
                with tempfile.TemporaryDirectory(prefix="calve-stream-") as folder:
                    home = Path(folder)
                    if system == "flink":
                        result = run_flink(workload, home)
                    else:
                        result = run_calve(system, workload, home, maintenance=maintenance)
                measured.append(result)
                print("\n".join(result.lines()), flush=True)
        _compare(measured)
        _compare_maintenance(measured)
        yield measured


def _compare_maintenance(results: list[Result]) -> None:
    """Print what maintenance costs a batch, where streams with and without it were measured."""
    for system in dict.fromkeys(result.system for result in results if result.system in CALVE):
        own = [result for result in results if result.system == system]
        if {result.maintenance for result in own} != {True, False}:
            continue
        for what, name in (("batches", "batch time"), ("commit_seconds", "commits")):
            on, off = ([s for r in own if r.maintenance is kind for s in getattr(r, what)] for kind in (True, False))
            if on and off:
                median, high = statistics.median(on) / statistics.median(off), _p90(on) / _p90(off)
                print(f"{system}, {name} with maintenance to without: {median:.2f}x in the median, {high:.2f}x at p90")


def _compare(results: list[Result]) -> None:
    """Print ratios to Flink, with their spread."""
    flink = [result.rate for result in results if result.system == "flink"]
    for system in dict.fromkeys(r.system for r in results if flink and r.system != "flink"):
        rates = [result.rate for result in results if result.system == system]
        ratio = statistics.median(rates) / statistics.median(flink)
        spread = f"{min(rates) / max(flink):.2f} to {max(rates) / min(flink):.2f}"
        print(f"{system} to flink: {ratio:.2f}x changes per second ({spread})")


if __name__ == "__main__":
    main()
