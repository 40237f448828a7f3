"""The one way in which benchmarks keep what they measured: JSON out of which `make docs` makes docs/benchmarks.md.

    with recording("load", "Initial load", given) as results:
        cold = Case("5,000,000 rows, cold JVM", "s", peer="Spark's own write", check="rows and sum, by DuckDB")
        results.add(cold, "calve", [5.0, 4.9, 5.1])
        results.add(cold, "Spark's own write", [8.6, 8.5, 8.9])

A script declares its cases, runs its systems in turns, checks what they wrote, and adds the values of all runs: the
median, quartiles and ratios to the peer of the same run are worked out here and nowhere else. A system whose result is
wrong is added with `disqualify`: its numbers are not kept, the report says so, and the script ends with 1.

benchmarks/results/<name>.json has runs, each with its command, date, machine, load, versions and commit. A case that is
measured again replaces the one of an earlier run as a whole, so that all systems of a case are always those of one run;
other cases stay. `--results FOLDER` keeps the results elsewhere, for trials.
"""

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DATA = ROOT / ".cache" / "bench"
"""Generated workloads."""
JAR = ROOT / ".cache" / "jars" / "iceberg-spark-runtime-4.1_2.13-1.12.0.jar"
PACKAGES = ("calve", "pyspark", "pyiceberg", "pyarrow", "numpy", "duckdb")
"""Those whose versions every run states."""
MORE_IS_BETTER = ("changes/s", "rows/s")


@dataclass(frozen=True)
class Case:
    """What systems are compared in. The name states the sizes: other sizes are another case."""

    name: str
    unit: str
    """`s`, `ms`, `changes/s`, ...; of rates more is better, of all others less."""
    peer: str = ""
    """The system that ratios are to."""
    check: str = ""
    """How results were found to be right."""
    note: str = ""


@dataclass(frozen=True)
class Spread:
    """Values of repeated runs."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Half of the values are lower."""
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third."""
        if len(self.values) < 2:
            return self.values[0], self.values[0]
        first, _, third = statistics.quantiles(self.values, n=4, method="inclusive")
        return first, third

    def percentile(self, percent: int) -> float:
        """Of so many hundredths of the values none is higher; with few values, close to the highest."""
        if len(self.values) < 2:
            return self.values[0]
        return statistics.quantiles(self.values, n=100, method="inclusive")[percent - 1]


@dataclass(frozen=True)
class Ratio:
    """How many times as good one system is as another; above 1 is better."""

    median: float
    low: float
    """The worse quartile by the other's better one."""
    high: float

    @classmethod
    def of(cls, mine: Spread, peer: Spread, unit: str) -> Self:
        """Of times (less is better) or of rates (more is)."""
        above, below = (mine, peer) if unit in MORE_IS_BETTER else (peer, mine)
        (low, high), (least, most) = above.quartiles, below.quartiles
        return cls(above.median / below.median, low / most, high / least)


@dataclass
class Recording:
    """The results of one run of one script."""

    name: str
    title: str
    about: str
    run: dict[str, Any]
    results: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, case: Case, system: str, values: Sequence[float], **facts: object) -> None:
        """Keep what a system took in all runs of a case; facts are shown beside it."""
        if not values:
            raise ValueError(f"{case.name}: {system} has no values")
        spread = Spread(tuple(values))
        low, high = spread.quartiles
        self._keep(
            case,
            system,
            values=[_short(value) for value in values],
            median=_short(spread.median),
            quartiles=[_short(low), _short(high)],
            facts=facts,
        )

    def disqualify(self, case: Case, system: str, reason: str) -> None:
        """Keep that a system was wrong, and none of its numbers."""
        self.wrong.append(f"{case.name}: {system}: {reason}")
        print(f"WRONG, {self.wrong[-1]}", flush=True)
        self.results = [one for one in self.results if (one["case"], one["system"]) != (case.name, system)]
        self._keep(case, system, wrong=reason)

    def leave_out(self, case: Case, system: str, reason: str) -> None:
        """Keep why a system has no numbers, where it could have some."""
        print(f"{case.name}: {system} is left out: {reason}", flush=True)
        self._keep(case, system, left_out=reason)

    def ratios(self, case: Case) -> dict[str, Ratio]:
        """Of all systems to the peer, if both were right."""
        found = {one["system"]: Spread(tuple(one["values"])) for one in self._right(case)}
        peer = found.pop(case.peer, None)
        return {} if peer is None else {name: Ratio.of(mine, peer, case.unit) for name, mine in found.items()}

    def lines(self) -> Iterator[str]:
        """All cases, for people."""
        for name in dict.fromkeys(one["case"] for one in self.results):
            own = [one for one in self.results if one["case"] == name]
            case = Case(name, own[0]["unit"], own[0]["peer"])
            ratios = self.ratios(case)
            yield f"{name}:"
            for one in own:
                yield f"  {one['system']:28} {self._words(one)}{_ratio_words(ratios.get(one['system']), case.peer)}"

    def write(self, folder: Path) -> Path:
        """Put the run beside earlier ones, without the cases that it measured again."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        again = {one["case"] for one in self.results}
        earlier = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
        for run in earlier:
            run["results"] = [one for one in run["results"] if one["case"] not in again]
        runs = [run for run in earlier if run["results"]] + [{**self.run, "results": self.results}]
        text = json.dumps({"name": self.name, "title": self.title, "about": self.about, "runs": runs}, indent=1)
        path.write_text(text + "\n", encoding="utf-8")
        return path

    def _keep(self, case: Case, system: str, **what: object) -> None:
        self.results.append(
            {
                "case": case.name,
                "unit": case.unit,
                "peer": case.peer,
                "check": case.check,
                "note": case.note,
                "system": system,
                **what,
            }
        )

    def _right(self, case: Case) -> list[dict[str, Any]]:
        return [one for one in self.results if one["case"] == case.name and "values" in one]

    @staticmethod
    def _words(one: Mapping[str, Any]) -> str:
        if "values" not in one:
            return f"WRONG: {one['wrong']}" if "wrong" in one else f"left out: {one['left_out']}"
        low, high = one["quartiles"]
        return f"{one['median']:,} {one['unit']} ({low:,} to {high:,}, {len(one['values'])} values)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that all scripts share."""
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder that keeps results")


@contextmanager
def recording(name: str, title: str, given: argparse.Namespace, **versions: str) -> Iterator[Recording]:
    """Record what a script measures, and write it when the script is done; a script that fails writes nothing."""
    about = (sys.modules["__main__"].__doc__ or title).partition("\n")[0]
    results = Recording(name, title, about, surroundings(**versions))
    yield results
    results.run["load"].append(_load())
    for line in results.lines():
        print(line)
    path = results.write(given.results)
    print(f"kept in {path}", flush=True)
    if results.wrong:
        raise SystemExit(1)


def surroundings(**versions: str) -> dict[str, Any]:
    """When, where, of what and beside what a run was measured."""
    return {
        "command": _command(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": revision(),
        "machine": machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "load": [_load()],
        "versions": {**package_versions(), **versions},
    }


def machine() -> str:
    """In few words."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def package_versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Of Python, and of the packages that are there."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def revision() -> str:
    """The commit that is measured; `+` says that files were changed since."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    return f"{commit}+" if commit and _git("status", "--porcelain", "src", "benchmarks/*.py") else commit


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def _command() -> str:
    """Without the folder of results, which changes nothing."""
    script = Path(sys.argv[0]).resolve()
    name = str(script.relative_to(ROOT)) if script.is_relative_to(ROOT) else script.name
    arguments = iter(sys.argv[1:])
    kept = [one for one in arguments if one != "--results" or not next(arguments, None)]
    return " ".join(["python", *map(shlex.quote, [name, *kept])])


def _load() -> float:
    return round(os.getloadavg()[0], 1)


def _short(value: float) -> float:
    """With four digits that count."""
    return float(f"{value:.4g}") if abs(value) < 1000 else float(round(value))


def _ratio_words(ratio: Ratio | None, peer: str) -> str:
    if ratio is None:
        return ""
    return f"; {ratio.median:.2f}x ({ratio.low:.2f} to {ratio.high:.2f}) of {peer}"
