"""What watching costs: changes per second with everything on, as a ratio to the same run with everything off.

    python benchmarks/watching.py [--rows 2000000] [--rounds 5]

On: heartbeats, the status file, the log of commits, metrics, their endpoint scraped every second, the survey of the
table. Off: the same run with a monitor that does nothing but what the run needs. Rounds alternate, each in a fresh
home; the ratio is that of the medians, and the bar is 0.98.
"""

import argparse
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import calve
from calve import metrics
from calve.cli.exports import serve_metrics
from calve.pipeline.monitor import RunMonitor
from calve.pipeline.survey import Survey
from calve.spark.session import embedded_session
from calve.watch.reporter import StatusReporter

BAR = 0.98


@contextmanager
def scraped(every: float = 1.0) -> Iterator[None]:
    """Serve the metrics and read them at an interval, as Prometheus does."""
    ended = threading.Event()
    with serve_metrics("127.0.0.1", 0) as url:

        def scrape() -> None:
            while not ended.wait(every):
                with urllib.request.urlopen(url) as answer:  # noqa: S310 - its own
                    answer.read()

        thread = threading.Thread(target=scrape, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


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
            (Survey, "finish"),
            *((type(metrics.CHECKPOINTS), name) for name in ("inc",)),
            (type(metrics.COMMIT_SECONDS), "observe"),
        ):
            stack.enter_context(patch.object(owner, name, nothing))
        yield


def run(home: Path, rows: int, step: int) -> float:
    """Changes per second of one run from start to end."""
    lake = calve.connect(home=home)
    source = calve.orders(rows=rows // 2, changes=rows // 2, per_checkpoint=step)
    began = time.perf_counter()
    query = calve.sink(source, name="orders", into=lake.table("shop.orders"), key=["id"]).start()
    query.await_caught_up()
    seconds = time.perf_counter() - began
    query.stop()
    return rows / seconds


def main() -> None:
    """Print both medians and their ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--step", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    found: dict[str, list[float]] = {"on": [], "off": []}
    with tempfile.TemporaryDirectory() as folder:
        embedded_session(Path(folder) / "spark")
        run(Path(folder) / "warm", given.rows // 4, given.step)
        for number in range(given.rounds):
            for kind in ("on", "off") if number % 2 else ("off", "on"):
                with scraped() if kind == "on" else unwatched():
                    found[kind].append(run(Path(folder) / f"{kind}-{number}", given.rows, given.step))
    on, off = (statistics.median(found[kind]) for kind in ("on", "off"))
    for kind, values in found.items():
        print(f"{kind:>4}: {statistics.median(values):,.0f} changes/s, of {', '.join(f'{v:,.0f}' for v in values)}")
    print(f"ratio {on / off:.3f}, bar {BAR}")


if __name__ == "__main__":
    main()
