"""The report of benchmarks says what the results say: medians, ratios of one run, who was wrong, and the load."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.readers import ROOT

OWN = ("harness", "benchmarks_page", "bar_chart", "pages")


@pytest.fixture(scope="module")
def scripts() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as path:
        path.syspath_prepend(str(ROOT / "benchmarks"))
        path.syspath_prepend(str(ROOT / "scripts"))
        import benchmarks_page  # noqa: PLC0415 - a script

        yield benchmarks_page
    for name in OWN:
        sys.modules.pop(name, None)


@pytest.fixture
def harness(scripts: Any) -> Any:
    assert scripts is not None
    return sys.modules["harness"]


def given(folder: Path) -> argparse.Namespace:
    return argparse.Namespace(results=folder)


def test_a_ratio_above_one_is_better_for_times_and_for_rates(harness: Any) -> None:
    fast, slow = harness.Spread((1.0, 2.0, 3.0)), harness.Spread((4.0, 8.0, 12.0))
    assert harness.Ratio.of(fast, slow, "s") == harness.Ratio(4.0, 6 / 2.5, 10 / 1.5)
    assert harness.Ratio.of(slow, fast, "changes/s").median == 4.0
    assert harness.Ratio.of(slow, fast, "s").median == 0.25


def test_a_case_measured_again_replaces_all_systems_of_the_earlier_run(harness: Any, tmp_path: Path) -> None:
    one, other = harness.Case("one", "s", "peer"), harness.Case("other", "s", "peer")
    with harness.recording("some", "Some", given(tmp_path)) as results:
        for case in (one, other):
            results.add(case, "calve", [1.0])
            results.add(case, "peer", [2.0])
    with harness.recording("some", "Some", given(tmp_path)) as results:
        results.add(one, "calve", [3.0, 5.0])
    runs = json.loads((tmp_path / "some.json").read_text())["runs"]
    kept = [[(r["case"], r["system"], r["median"]) for r in run["results"]] for run in runs]
    assert kept == [[("other", "calve", 1.0), ("other", "peer", 2.0)], [("one", "calve", 4.0)]]
    assert all(len(run["load"]) == 2 and run["versions"]["python"] and run["command"] for run in runs)


def test_a_wrong_system_keeps_no_numbers_and_ends_the_script_with_1(harness: Any, scripts: Any, tmp_path: Path) -> None:
    case = harness.Case("one", "s", "peer")

    def measure() -> None:
        with harness.recording("some", "Some", given(tmp_path)) as results:
            results.add(case, "peer", [2.0])
            results.add(case, "calve", [1.0])
            results.disqualify(case, "calve", "5 rows too many")

    with pytest.raises(SystemExit) as ended:
        measure()
    assert ended.value.code == 1
    wrong = [r for r in scripts.all_results(scripts.results_of(tmp_path)) if r.system == "calve"]
    assert [one.number() for one in wrong] == ["**wrong**: 5 rows too many"]
    assert wrong[0].spread is None


def test_a_script_that_fails_leaves_earlier_results_alone(harness: Any, tmp_path: Path) -> None:
    with harness.recording("some", "Some", given(tmp_path)) as results:
        results.add(harness.Case("one", "s"), "calve", [1.0])
    before = (tmp_path / "some.json").read_text()

    def measure() -> None:
        with harness.recording("some", "Some", given(tmp_path)) as results:
            results.add(harness.Case("one", "s"), "calve", [7.0])
            results.add(harness.Case("two", "s"), "calve", [])

    with pytest.raises(ValueError, match="has no values"):
        measure()
    assert (tmp_path / "some.json").read_text() == before


def test_ratios_are_to_the_peer_of_the_same_run_only(harness: Any, scripts: Any, tmp_path: Path) -> None:
    with harness.recording("some", "Some", given(tmp_path)) as results:
        results.add(harness.Case("one", "s", "peer"), "calve", [4.0])
        results.add(harness.Case("one", "s", "peer"), "peer", [2.0])
        results.add(harness.Case("alone", "s", "peer"), "calve", [4.0])
    found = scripts.all_results(scripts.results_of(tmp_path))
    ratios = {one.case: scripts.ratio_of(one, found) for one in found if one.own}
    assert ratios["one"].median == 0.5
    assert ratios["alone"] is None
    assert "- one: calve, 0.50x to peer" in scripts._where_a_peer_wins(found)
    assert "alone" not in scripts._where_a_peer_wins(found)


def test_a_run_beside_other_work_is_marked(scripts: Any) -> None:
    assert scripts.load_words({"load": [7.9, 9.0], "cores": 2}) == "**busy**: load 7.9 before and 9.0 after"
    assert scripts.load_words({"load": [0.4, 2.1], "cores": 2}) == "load 0.4 before and 2.1 after"
    assert scripts.load_words({"load": [], "cores": 2}) == "load not recorded"


def test_a_row_of_the_readme_needs_all_of_its_cases(harness: Any, scripts: Any, tmp_path: Path) -> None:
    row = scripts.Row("loads", "some", ("cold", "warm"), ("calve",), "peer", "a peer")
    with harness.recording("some", "Some", given(tmp_path)) as results:
        results.add(harness.Case("cold", "s", "peer"), "calve", [4.0])
        results.add(harness.Case("cold", "s", "peer"), "peer", [8.0])
    assert scripts._row_cells(row, scripts.all_results(scripts.results_of(tmp_path))) == []
    with harness.recording("some", "Some", given(tmp_path)) as results:
        results.add(harness.Case("warm", "s", "peer"), "calve", [1.0])
        results.add(harness.Case("warm", "s", "peer"), "peer", [0.5])
    label, mine, peer, ratios, when = scripts._row_cells(row, scripts.all_results(scripts.results_of(tmp_path)))
    assert (label, mine) == ("loads", "4.00, 1.00 s")
    assert (peer, ratios) == ("a peer: 8.00, 0.50 s", "2x, 0.5x")
    assert when.startswith("20")


def test_the_tables_say_when_and_beside_what_they_were_measured(scripts: Any) -> None:
    run = {"date": "2026-11-18T09:41:00", "cores": 2}
    assert scripts._when({**run, "load": [0.4, 2.1]}) == "2026-11-18"
    assert scripts._when({**run, "load": [7.9, 9.0]}) == "2026-11-18, **busy**"
    assert scripts._when({**run, "load": []}) == "2026-11-18, load not recorded"


def test_commands_beside_an_empty_python_are_no_defeat_of_the_page(harness: Any, scripts: Any, tmp_path: Path) -> None:
    with harness.recording("startup", "Commands", given(tmp_path)) as results:
        results.add(harness.Case("one command", "CPU ms", "python -c pass"), "python -c pass", [10.0])
        results.add(harness.Case("one command", "CPU ms", "python -c pass"), "calve --version", [100.0])
    found = scripts.all_results(scripts.results_of(tmp_path))
    assert [scripts.ratio_of(one, found).median for one in found if one.own] == [0.1]
    assert "one command" not in scripts._where_a_peer_wins(found)


def test_every_script_of_the_suites_exists_and_keeps_results_with_the_harness() -> None:
    sys.path.append(str(ROOT / "benchmarks"))
    try:
        import suite  # noqa: PLC0415 - a script
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    for line in (line for lines in suite.SUITES.values() for line in lines):
        text = (ROOT / "benchmarks" / line.split()[0]).read_text(encoding="utf-8")
        assert "from harness import" in text, line
    for name in ("suite", "harness"):
        sys.modules.pop(name, None)


def test_the_suite_lists_commands_of_scripts_that_exist() -> None:
    listing = [sys.executable, str(ROOT / "benchmarks/suite.py"), "--list"]
    printed = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(printed) > 20
    assert all((ROOT / line.split()[1]).exists() for line in printed)
    wrong = subprocess.run([*listing, "ful"], check=False, capture_output=True, text=True)
    assert "unknown suite: ful; expected main or full" in wrong.stderr
