"""What watching costs: throughput and CPU with page and metrics on, as a ratio to the same sink with both off.

    python benchmarks/watching.py [--rounds 10] [--commits 30] [--step 20000]
    python benchmarks/watching.py --page [--rounds 5] [--seconds 20]

**The first form** runs one sink that reads generated orders without an end, so every commit has the same number of
changes. After every few commits it is watched in another way:

    on        the page is served in its process; a client follows it as a browser does (events, and what changed about
              the sink at every change) and scrapes the metrics every second
    off       neither; as without `--serve` and `--metrics-port`
    nothing   also no heartbeats, status file, log of commits, counters and survey of the table

So all three share one JVM and one table. A round has all of them, and the next one has them in the opposite order: what
changes slowly, like the size of the table, affects them alike. A ratio is that of two neighbours in a round; printed
are the median and the quartiles of all rounds. The bar is 0.98 for the throughput of on/off; off/nothing says what
everybody pays. The client is a process of its own: it costs the sink its requests, and on two cores its own time. CPU
is that of the process that runs the sink and of all processes below it, the JVM and Python's workers, but not of the
client. A page stays open for days: its start, with that of the client, is not part of a measurement, which begins when
the client was told a few states.

**The second form** needs no quiet machine: a thread commits twice a second to a table with a few hundred snapshots,
without Spark, and what the process uses beyond that while the page is open is the CPU of the page and the metrics, as a
share of one core.
"""

import argparse
import io
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from unittest.mock import patch

from commits import commit_on_demand
from harness import Case, add_arguments, recording

import calve
from calve import metrics
from calve.cli.options import PageOptions
from calve.cli.serve import page_beside
from calve.cli.show import PlainConsole
from calve.model.health import CommitReport, Status
from calve.pipeline.monitor import RunMonitor
from calve.pipeline.survey import Survey
from calve.spark.session import embedded_session
from calve.watch.commits import listening
from calve.watch.reporter import StatusReporter

BAR = 0.98
KINDS = ("on", "off", "nothing")
PACE = 0.5
"""Seconds between two commits beside the page alone."""
SNAPSHOTS = 300
"""Commits to the table before that."""
SETTLED = 10.0
"""Seconds that a page is open before its CPU is measured: it has loaded the table then."""
WARM_COMMITS = 15
"""Commits before the first measurement: a fresh JVM is slow."""
PATIENCE = 120.0
"""Seconds that a commit may take."""
STATES = 3
"""States that the client is told before a measurement."""

CLIENT = """
import http.client, json, sys, threading, time
port = int(sys.argv[1])

class Connection:
    # stays open between requests, as those of browsers and of Prometheus do
    def __init__(self):
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def get(self, path):
        self.http.request("GET", path)
        return self.http.getresponse().read()

def scrape():
    metrics = Connection()
    while True:
        assert b"calve_commits_total" in metrics.get("/metrics")
        time.sleep(1)

threading.Thread(target=scrape, daemon=True).start()
events = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
events.request("GET", "/events")
stream, details, shown, cursor, states = events.getresponse(), Connection(), None, "", 0
while line := stream.readline():
    if line.startswith(b"data: "):
        for sink in json.loads(line[6:])["sinks"]:
            if sink["revision"] != shown:
                shown = sink["revision"]
                cursor = json.loads(details.get("/api/sinks/" + sink["name"] + "?since=" + cursor)).get("cursor", "")
        states += 1
        print(states, flush=True)
"""


@dataclass(frozen=True)
class Measured:
    """What some commits took."""

    rate: float
    """Changes per second."""
    cpu: float
    """CPU seconds per million changes."""


@dataclass
class Commits:
    """The commits of the sink, as they happen."""

    seen: list[tuple[float, int]] = field(default_factory=list)
    """When, and of how many changes."""
    news: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, _status: Status, report: CommitReport) -> None:
        with self.news:
            self.seen.append((time.perf_counter(), report.changes))
            self.news.notify_all()

    def measure(self, commits: int, left_out: int | None = None) -> Measured:
        """What the next commits take, after one that may have begun before."""
        self._wait_for(2)
        first, cpu = len(self.seen), tree_seconds(left_out)
        began = self.seen[first - 1][0]
        self._wait_for(commits)
        cpu = tree_seconds(left_out) - cpu
        found = self.seen[first:]
        changes = sum(changes for _, changes in found)
        return Measured(changes / (found[-1][0] - began), cpu / changes * 1_000_000)

    def _wait_for(self, commits: int) -> None:
        with self.news:
            wanted = len(self.seen) + commits
            while (known := len(self.seen)) < wanted:
                self.news.wait(PATIENCE)
                if len(self.seen) == known:
                    raise TimeoutError(f"the sink has not committed for {PATIENCE:g} s")


def tree_seconds(left_out: int | None = None) -> float:
    """CPU seconds of this process and all below it, those that ended included, but for one of them."""
    parents, used = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = sum(map(int, fields[11:15]))  # its own, and that of children that ended
    tree = {os.getpid()}
    while below := {pid for pid, parent in parents.items() if parent in tree} - tree - {left_out}:
        tree |= below
    return sum(used[pid] for pid in tree) / os.sysconf("SC_CLK_TCK")


@contextmanager
def watched(home: Path) -> Iterator[int]:
    """Serve the page, with a client, whose process id it yields. Fails if the client did: nothing was measured then."""
    with (
        page_at(home) as port,
        subprocess.Popen([sys.executable, "-c", CLIENT, str(port)], stdout=subprocess.PIPE, text=True) as client,
    ):
        assert client.stdout is not None  # it is a pipe
        try:
            told = [client.stdout.readline() for _ in range(STATES)]
            yield client.pid
            if not told[-1] or client.poll() is not None:
                raise RuntimeError("the client of the page ended")
        finally:
            client.kill()
        if not client.stdout.read():
            raise RuntimeError("the client of the page was told nothing while it was measured")


@contextmanager
def page_at(home: Path) -> Iterator[int]:
    """The page of `calve run --serve`, on a free port."""
    said = io.StringIO()
    with page_beside(PlainConsole(file=said), home, PageOptions("127.0.0.1", 0)):
        yield int(said.getvalue().partition("127.0.0.1:")[2].partition("/")[0])


@contextmanager
def unwatched() -> Iterator[None]:
    """Write no status, count no metrics, look at no table."""
    nothing = lambda *_args, **_values: None  # noqa: E731 - what every replacement does
    with ExitStack() as stack:
        for owner, name in (
            (StatusReporter, "write"),
            (StatusReporter, "beat"),
            (RunMonitor, "phase"),
            (RunMonitor, "_log_commit"),
            (Survey, "look_if_due"),
            (type(metrics.CHECKPOINTS), "inc"),
            (type(metrics.COMMIT_SECONDS), "observe"),
        ):
            stack.enter_context(patch.object(owner, name, nothing))
        yield


def measure_sink(home: Path, rounds: int, commits: int, step: int) -> dict[str, list[Measured]]:
    """What every kind of watching takes, round by round."""
    found: dict[str, list[Measured]] = {kind: [] for kind in KINDS}
    seen = Commits()
    lake = calve.connect(home=home)
    source = calve.orders(rows=10 * step, per_checkpoint=step)
    with listening(seen), calve.sink(source, name="orders", into=lake.table("shop.orders"), key=["id"]).start():
        seen.measure(WARM_COMMITS)
        order = KINDS
        for _ in range(rounds):
            for kind in order:
                with ExitStack() as stack:
                    client = stack.enter_context(watched(home)) if kind == "on" else None
                    if kind == "nothing":
                        stack.enter_context(unwatched())
                    found[kind].append(seen.measure(commits, client))
            order = order[::-1]
    return found


def measure_page(home: Path, rounds: int, seconds: float) -> list[float]:
    """The share of a core that the page takes beside a sink that commits twice a second, round by round."""
    ended = threading.Event()
    committing = commit_on_demand(home)
    for _ in islice(committing, SNAPSHOTS):
        pass

    def commit() -> None:
        while not ended.wait(PACE):
            next(committing)

    def share() -> float:
        began = time.process_time()
        time.sleep(seconds)
        return (time.process_time() - began) / seconds

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        without = [share() for _ in range(rounds)]
        with watched(home):
            time.sleep(SETTLED)
            found = [share() for _ in range(rounds)]
        without += [share() for _ in range(rounds)]
    finally:
        ended.set()
        thread.join()
    return [one - statistics.median(without) for one in found]


def spread(values: Sequence[float], form: str) -> str:
    """The median, and the quartiles."""
    low, middle, high = statistics.quantiles(values, method="inclusive") if len(values) > 1 else [*values] * 3
    return f"{middle:{form}} ({low:{form}} to {high:{form}}, {len(values)} rounds)"


def main() -> None:
    """Print what was measured, and the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--commits", type=int, default=30, help="Commits until the next way of watching.")
    parser.add_argument("--step", type=int, default=20_000, help="Changes of a commit.")
    parser.add_argument("--page", action="store_true", help="Measure the CPU of the page alone, without Spark.")
    parser.add_argument("--seconds", type=float, default=20.0, help="Time of a round of --page.")
    add_arguments(parser)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.page:
            shares = measure_page(Path(folder), given.rounds, given.seconds)
            print(f"page, metrics and one client: {spread(shares, '.2%')} of a core, goal 1%")
            return
        with recording("watching", "What watching costs", given) as results:
            embedded_session(Path(folder) / "spark")
            found = measure_sink(Path(folder) / "home", given.rounds, given.commits, given.step)
            case = Case(f"{given.rounds} rounds of {given.commits} commits", "changes/s", "calve, off")
            for kind, measured in found.items():
                results.add(case, f"calve, {kind}", [one.rate for one in measured])
    for kind, measured in found.items():
        rates, cpu = [one.rate for one in measured], [one.cpu for one in measured]
        print(f"{kind:>8}: {spread(rates, ',.0f')} changes/s; {spread(cpu, '.2f')} CPU s per million changes")
    for one, other in (("on", "off"), ("off", "nothing")):
        pairs = list(zip(found[one], found[other], strict=True))
        bar = f", bar {BAR}" if one == "on" else ""
        print(f"{one}/{other}: throughput {spread([a.rate / b.rate for a, b in pairs], '.3f')}{bar}")
        print(f"{one}/{other}: CPU {spread([a.cpu / b.cpu for a, b in pairs], '.3f')}")


if __name__ == "__main__":
    main()
