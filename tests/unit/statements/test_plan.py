"""What `calve plan` prints, and that applying it leaves nothing to do: tests/cases/plan/*.txt."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from calve.cli.plan import apply_files
from calve.cli.show import console
from calve.definitions.workplace import Workplace, workplace
from calve.errors import InvalidInput
from calve.plan.changes import DefinitionPlan
from calve.sql.parser import parse, parse_one
from calve.statements.execute import execute
from calve.statements.reconcile import apply, plan, read_files
from tests.support.golden import cases_of, check
from tests.support.plans import Planned, write_progress

CASES = [path for path in cases_of("plan") if path.stem != "views"]
"""Views need Spark: tests/e2e/test_plan.py."""


def no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed here")


def at(home: Path) -> Workplace:
    return workplace(home, no_spark, {"K": "kept outside"})


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_plan_is_as_the_file_says_and_applying_it_leaves_nothing_to_do(path: Path, tmp_path: Path) -> None:
    planned = Planned(tmp_path, at)
    check(path, planned.answer)
    assert planned.blocks, "every block is an error"


SCRIPT = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE CONNECTION c TO AWS (ACCESS KEY ID = 'x', SECRET ACCESS KEY = 'wolfram', REGION = 'r');
CREATE SECRET t AS 'tantal';
CREATE SOURCE g FROM LOAD GENERATOR orders (ROWS = 100);
CREATE SINK s FROM g TO ICEBERG CATALOG lake NAMESPACE shop TABLE g WITH (SNAPSHOT RETENTION = '7d');
"""


def applied(place: Workplace, text: str, *, yes: bool = False) -> None:
    """As `calve run` applies a file."""
    file = place.home.with_name("p.sql")
    file.write_text(text)
    apply_files(console(quiet=True), place, [file], prune=False, yes=yes)


def test_applying_a_file_again_changes_nothing(tmp_path: Path) -> None:
    place = at(tmp_path / "home")
    applied(place, SCRIPT)
    revision = place.store.revision
    applied(place, SCRIPT)
    assert place.store.revision == revision


def test_safe_changes_are_applied_and_dangerous_ones_only_with_yes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = at(tmp_path / "home")
    applied(place, SCRIPT)
    applied(place, SCRIPT.replace("'wolfram'", "'osmium'").replace("'tantal'", "'rhenium'"))
    revision = place.store.revision
    assert capsys.readouterr().err == ""
    changed = SCRIPT.replace("'wolfram'", "'iridium'").replace("'tantal'", "'rhenium'").replace("'7d'", "'1d'")
    with pytest.raises(InvalidInput, match="nothing was changed") as caught:
        applied(place, changed)
    assert "--yes" in caught.value.hint
    assert caught.value.exit_code == 2
    assert place.store.revision == revision
    printed = capsys.readouterr().err
    assert "ALTER SINK s SET (SNAPSHOT RETENTION = '1d');" in printed
    assert "older snapshots of table shop.g may expire sooner" in printed
    for text in ("wolfram", "osmium", "iridium", "tantal", "rhenium"):
        assert text not in printed + str(caught.value)
    applied(place, changed, yes=True)
    assert plan(place, list(parse(changed))).empty


def test_what_cannot_change_stops_the_file_even_with_yes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = at(tmp_path / "home")
    applied(place, SCRIPT)
    revision = place.store.revision
    with pytest.raises(InvalidInput, match="the file cannot be applied") as caught:
        applied(place, SCRIPT.replace("TO AWS (", "TO KAFKA (BROKER = 'b', ").replace("'7d'", "'30d'"), yes=True)
    assert "connection c" in caught.value.detail
    assert place.store.revision == revision
    assert "another name" in capsys.readouterr().err


REPLACED = """
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE o (id BIGINT NOT NULL, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '/in/o', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq);
CREATE SOURCE x (id BIGINT NOT NULL, PRIMARY KEY (id) NOT ENFORCED)
  FROM FILES (PATH = '/in/x', FORMAT = 'json') ENVELOPE UPSERT (ORDER BY seq);
CREATE SINK s FROM o TO ICEBERG CATALOG lake NAMESPACE shop TABLE o;
CREATE SINK t FROM x TO ICEBERG CATALOG lake NAMESPACE shop TABLE t;
"""
CHANGED = REPLACED.replace("BY seq);\nCREATE SOURCE x", "BY seq, DELETE WHEN d);\nCREATE SOURCE x").replace(
    "SINK t FROM x", "SINK t FROM o"
)
"""Another envelope of o, and another source of t."""


def replacing(place: Workplace) -> DefinitionPlan:
    """The plan that drops a source with the sinks s and other, and creates them again."""
    applied(place, REPLACED)
    for text in (
        "CREATE SINK other FROM o TO ICEBERG CATALOG lake NAMESPACE shop TABLE other",
        "ALTER SINK s PAUSE",
    ):
        execute(place, parse_one(text))
    write_progress(place, "s")
    write_progress(place, "other")
    return plan(place, list(parse(CHANGED)))


def stored(place: Workplace) -> dict[str, tuple[object, ...]]:
    return {d.label: (d.uid, d.statement.to_sql(), d.uses, d.standing) for d in place.definitions()}


def test_a_plan_that_ends_early_restores_what_it_dropped_to_create_it_again(tmp_path: Path) -> None:
    planned = replacing(at(tmp_path / "0"))
    kept = {'source "o"', 'sink "s"', 'sink "other"'}
    last = max(number for number, step in enumerate(planned.steps) if step.name in {"o", "s", "other"})
    assert last == 4
    for executed in range(1, last + 1):
        place = at(tmp_path / f"{executed}")
        planned = replacing(place)
        before, versions = stored(place), {d.uid: d.version for d in place.definitions()}
        applying = apply(place, planned)
        for _ in range(executed):
            next(applying)
        applying.close()
        after = stored(place)
        assert {label: after[label] for label in kept} == {label: before[label] for label in kept}, executed
        assert after.keys() == before.keys()
        assert all(d.version >= versions[d.uid] for d in place.definitions())
        known = {d.uid for d in place.definitions()}
        assert all(known.issuperset(d.uses) for d in place.definitions())


@pytest.mark.parametrize(("generation", "continued"), [(3, True), (0, False)])
def test_a_sink_that_is_created_again_keeps_its_generation(tmp_path: Path, generation: int, *, continued: bool) -> None:
    place = at(tmp_path / "home")
    replacing(place)
    execute(place, parse_one("ALTER SINK s SET FROM o WITH (SNAPSHOT = true)"))
    (before,) = (d for d in place.definitions() if d.name == "s")
    assert before.standing.generation == 3
    write_progress(place, "s", generation=generation)  # 0: the table has not been refilled yet
    list(apply(place, plan(place, list(parse(CHANGED)))))
    (after,) = (d for d in place.definitions() if d.name == "s")
    if continued:
        assert (after.uid, after.standing) == (before.uid, before.standing)
    else:
        assert (after.uid == before.uid, after.standing.generation) == (False, 1)


def test_a_statement_that_fails_after_a_drop_says_that_the_objects_are_restored(tmp_path: Path) -> None:
    place = at(tmp_path / "home")
    planned = replacing(place)
    before = stored(place)
    write_progress(place, "s", uid="another")  # meanwhile: RESUME is refused
    with pytest.raises(InvalidInput, match="more than one dropped sink") as caught:
        list(apply(place, planned))
    assert 'Restored as before: source "o"' in caught.value.detail
    assert stored(place) == before


def test_a_connection_is_tested_when_all_of_its_options_are_as_the_file_says(tmp_path: Path) -> None:
    place = at(tmp_path / "home")
    text = "CREATE CONNECTION far TO ICEBERG CATALOG (TYPE = 'rest', URI = 'http://localhost:1', "
    applied(place, text + "USER = 'a', PASSWORD = 'wolfram') WITH (VALIDATE = false)")
    steps = plan(place, list(parse(text + "TOKEN = 'tantal')"))).steps
    assert [step.statement.to_sql() for step in steps] == [
        "ALTER CONNECTION far RESET (PASSWORD, USER) WITH (VALIDATE = false)",
        "ALTER CONNECTION far SET (TOKEN = <hidden>)",
    ]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "calve", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.long
def test_the_command_prints_a_plan_for_people_and_programs_without_iceberg(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "p.sql"
    applied(at(home), SCRIPT)
    file.write_text(SCRIPT)
    same = command("plan", str(file), "--check", "--home", str(home))
    assert (same.returncode, same.stdout) == (0, "Nothing to do: the definitions are as the file says.\n")
    file.write_text(SCRIPT.replace("'7d'", "'1d'").replace("wolfram", "iridium"))
    shown = command("plan", str(file), "--home", str(home))
    assert shown.returncode == 0
    assert "iridium" not in shown.stdout
    found = command("plan", str(file), "--check", "--json", "--home", str(home))
    assert found.returncode == 1
    body = json.loads(found.stdout)
    assert [(c["action"], c["kind"], c["name"], c["dangerous"]) for c in body["changes"]] == [
        ("alter", "connection", "c", False),
        ("alter", "sink", "s", True),
    ]
    assert "iridium" not in found.stdout
    file.write_text(SCRIPT.replace("ROWS", "ROWSS"))
    assert command("plan", str(file), "--home", str(home)).returncode == 2


APPLY = """
import sys
from pathlib import Path
from calve.cli.plan import apply_files
from calve.cli.show import console
from calve.definitions.workplace import workplace
apply_files(console(quiet=True), workplace(Path(sys.argv[1]), None, {}), [Path(sys.argv[2])], prune=False, yes=False)
"""


@pytest.mark.long
@pytest.mark.parametrize(("said", "agreed"), [("y\n", True), ("\n", False)])
def test_at_a_terminal_the_user_is_asked(tmp_path: Path, said: str, *, agreed: bool) -> None:
    place, file = at(tmp_path / "home"), tmp_path / "after.sql"
    applied(place, SCRIPT)
    file.write_text(SCRIPT.replace("'7d'", "'1d'"))
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", APPLY, str(place.home), str(file)]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        shown = ""
        while "[y/N]" not in shown:
            shown += os.read(ours, 4096).decode()
        os.write(ours, said.encode())
        process.wait(60)
    os.close(ours)
    assert "ALTER SINK s SET (SNAPSHOT RETENTION = '1d');" in shown
    assert (process.returncode == 0) is agreed
    assert plan(place, read_files([file])).empty is agreed
