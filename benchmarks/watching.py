"""What watching costs: changes per second with page and metrics on, as a ratio to the same sink with both off.

    python benchmarks/watching.py [--seconds 150] [--commits 15]

One sink reads generated orders without an end. Every few commits it is watched in another way:

    on        the page is served in its process; a client follows it as a browser does (events, and the details of the
              sink at every change) and scrapes the metrics every second
    off       neither; as without `--serve` and `--metrics-port`
    nothing   also no heartbeats, status file, log of commits, counters and survey of the table

So all three share one JVM and one table, and alternate (on, off, nothing, nothing, off, on, ...): what changes slowly,
like the size of the table, affects them alike. A ratio is the median of those of the rounds. The bar is 0.98 for
on/off; off/nothing says what everybody pays. The client is a process of its own: it costs the sink its requests, and on
two cores its own time. A page stays open for days: its start, with that of the client, is not part of a measurement,
which begins when the client was told a few states.
"""

import argparse
import io
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

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
WARM_COMMITS = 15
"""Commits before the first measurement: a fresh JVM is slow."""
PATIENCE = 120.0
"""Seconds that a commit may take."""
STATES = 3
"""States that the client is told before a measurement."""

CLIENT = """
import http.client, json, sys, threading, time
port = int(sys.argv[1])

def get(path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return body

def scrape():
    while True:
        assert b"calve_commits_total" in get("/metrics")
        time.sleep(1)

threading.Thread(target=scrape, daemon=True).start()
events = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
events.request("GET", "/events")
stream, shown, states = events.getresponse(), None, 0
while line := stream.readline():
    if line.startswith(b"data: "):
        for sink in json.loads(line[6:])["sinks"]:
            if sink["revision"] != shown:
                shown = sink["revision"]
                get("/api/sinks/" + sink["name"])
        states += 1
        print(states, flush=True)
"""


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

    def rate_of(self, commits: int) -> float:
        """Changes per second of the next commits, after one that may have begun before."""
        first = len(self.seen) + 1
        with self.news:
            while (known := len(self.seen)) <= first + commits:
                self.news.wait(PATIENCE)
                if len(self.seen) == known:
                    raise TimeoutError(f"the sink has not committed for {PATIENCE:g} s")
        (began, _), *found = self.seen[first : first + commits + 1]
        return sum(changes for _, changes in found) / (found[-1][0] - began)


@contextmanager
def watched(home: Path) -> Iterator[None]:
    """Serve the page, with a client. Fails if the client did: then nothing was measured."""
    with (
        page_at(home) as port,
        subprocess.Popen([sys.executable, "-c", CLIENT, str(port)], stdout=subprocess.PIPE, text=True) as client,
    ):
        assert client.stdout is not None  # it is a pipe
        try:
            told = [client.stdout.readline() for _ in range(STATES)]
            yield
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


def measure(home: Path, seconds: float, commits: int, step: int) -> dict[str, list[float]]:
    """Changes per second by kind, round by round, for about this time."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    seen = Commits()
    lake = calve.connect(home=home)
    source = calve.orders(rows=10 * step, per_checkpoint=step)
    began = time.perf_counter()
    with listening(seen), calve.sink(source, name="orders", into=lake.table("shop.orders"), key=["id"]).start():
        seen.rate_of(WARM_COMMITS)
        order = KINDS
        while not found["on"] or time.perf_counter() - began < seconds:
            for kind in order:
                with ExitStack() as stack:
                    if kind != "off":
                        stack.enter_context(watched(home) if kind == "on" else unwatched())
                    found[kind].append(seen.rate_of(commits))
            order = order[::-1]
    return found


def main() -> None:
    """Print the rates and their ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=150.0, help="Time of the measurement, about.")
    parser.add_argument("--commits", type=int, default=15, help="Commits until the next way of watching.")
    parser.add_argument("--step", type=int, default=20_000, help="Changes of a commit.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        embedded_session(Path(folder) / "spark")
        found = measure(Path(folder) / "home", given.seconds, given.commits, given.step)
    for kind in KINDS:
        values = found[kind]
        print(f"{kind:>8}: {statistics.median(values):,.0f} changes/s, of {', '.join(f'{v:,.0f}' for v in values)}")
    for one, other in (("on", "off"), ("off", "nothing")):
        ratios = [a / b for a, b in zip(found[one], found[other], strict=True)]
        bar = f", bar {BAR}" if one == "on" else ""
        print(f"{one}/{other}: {statistics.median(ratios):.3f} of {', '.join(f'{r:.3f}' for r in ratios)}{bar}")


if __name__ == "__main__":
    main()
