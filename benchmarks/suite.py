"""Runs benchmarks one after the other, each in a process of its own; `make docs` then writes the pages.

    python benchmarks/suite.py [main] [full] [engines] [--only stream load] [--results FOLDER] [--list]

`main` has most numbers of the README, in about 20 minutes on two quiet cores; `full` has the rest, in about an hour;
`engines` compares how engines read each encoding of deletes, in a quarter of an hour. A benchmark that fails does not
stop the others; the exit code says whether one did.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time

from harness import RESULTS, ROOT

SUITES = {
    "main": (
        "upserts.py --rows 5000000 --batches 12 --systems positions vectors merge",
        "stream.py --files 24 --systems positions,vectors,flink",
        "stream.py --files 60 --systems positions --maintenance both",
        "stream.py --files 100 --changes 1000 10000 --systems positions",
        "microbatch.py",
        "load.py --runs 2",
        "apply.py --rows 1000000 --batches 4 --cases uniform",
        "latency.py --intervals 1 10 --seconds 25 --warm 15",
        "commits.py",
        "startup.py",
    ),
    "full": (
        "apply.py --rows 1000000 --batches 3 --cases recent inserts wide partitioned",
        "apply.py --rows 1000000 --batches 3 --changes 1000 --cases uniform --systems positions merge-v2 pyiceberg",
        "refresh.py",
        "recovery.py",
        "growth.py --full",
        "changes.py --rows 5000000 20000000",
        "stream.py --files 24 --systems positions,equality,flink,vectors --runs 3",
        "stream.py --files 20 --changes 1000 10000 100000 1000000 --systems positions",
        "latency.py --intervals 60 --seconds 120",
        "upserts.py --rows 5000000 --batches 100 --changes 10000 --systems positions vectors --fresh",
        "reads.py --rows 5000000",
        "upkeep.py --files 3000 --orphans 10000 --minutes 6",
        "executors.py --share 0.5",
        "topics.py",
        "writers.py memory",
        "footprint.py --batches 6",
        "watching.py --rounds 4 --commits 100",
    ),
    "engines": ("encodings.py",),
}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="{main,full,engines}", help="main by default; all with --list")
    parser.add_argument("--only", nargs="+", default=[], help="names of scripts")
    parser.add_argument("--results", default=str(RESULTS))
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    suites = given.suites or (SUITES if given.list else ["main"])
    if unknown := sorted(set(suites) - SUITES.keys()):
        parser.error(f"unknown suite: {', '.join(unknown)}; expected {' or '.join(SUITES)}")
    commands = [shlex.split(line) for suite in suites for line in SUITES[suite]]
    commands = [one for one in commands if not given.only or one[0].removesuffix(".py") in given.only]
    if given.list:
        print("\n".join(shlex.join(["python", f"benchmarks/{one[0]}", *one[1:]]) for one in commands))
        return
    sys.exit(max((run(one, given.results) for one in commands), default=0))


def run(command: list[str], results: str) -> int:
    """Run one; 1 if it failed."""
    script, *arguments = command
    print(f"== {shlex.join(command)}", flush=True)
    began = time.perf_counter()
    keep = [] if script == "encodings.py" else ["--results", results]  # it has one result, and a page of its own
    done = subprocess.run(
        [sys.executable, f"benchmarks/{script}", *arguments, *keep],
        cwd=ROOT,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    words = "done" if done.returncode == 0 else f"FAILED with {done.returncode}"
    print(f"== {script} {words} in {time.perf_counter() - began:.0f} s", flush=True)
    return int(done.returncode != 0)


if __name__ == "__main__":
    main()
