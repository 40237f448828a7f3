"""What is printed is what is there: no text of a user or an error is markup, an emoji or a command to the terminal."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.table import Table
from typer.testing import CliRunner

from calve.cli.main import app
from calve.cli.show import PlainConsole, console, show_error, show_statuses
from calve.cli.visible import visible
from calve.errors import InvalidInput
from calve.model.health import Health, Status, TableHealth
from calve.watch.status_files import status_file, write_status
from tests.unit.iceberg.sample import Sample

ODD = '[/x] [bold]b[/] :smile: pip install "calve[demo]"'


def test_rows_are_printed_as_they_are(tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    sample.commit({1: ODD, 2: "\x1b[2Jgone\x07", 3: "\u202eabc"})
    result = CliRunner().invoke(app, ["read", "shop.orders", "--home", str(tmp_path)], catch_exceptions=False)
    assert ODD in result.stdout
    assert "\\x1b[2Jgone\\x07" in result.stdout
    assert "\\u202eabc" in result.stdout
    assert not {"\x1b", "\x07", "\u202e"} & set(result.stdout)
    sample.close()


def test_errors_and_hints_keep_their_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(console(), InvalidInput(ODD, detail=f"{ODD}\n\ud800 [red]", hint=ODD))
    out = capsys.readouterr().out
    assert out.splitlines() == [f"error: {ODD}", f"  {ODD}", "  \\ud800 [red]", f"  hint: {ODD}"]


def test_one_sink_with_an_odd_name_or_cause_does_not_hide_the_others(tmp_path: Path) -> None:
    for name in ("[/x]", "a/b", "plain"):
        status = replace(Status.unknown(name, 1), health=Health.HALTED, cause=f"{name} {ODD}\ud800", dead_letters=2)
        write_status(status_file(tmp_path, name), status)
    (tmp_path / "status" / "bad.json").write_text("{")
    result = CliRunner().invoke(app, ["status", "--home", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    for name in ("[/x]", "a/b", "plain"):
        assert f"{name}: {name} {ODD}\\ud800" in result.stdout
    assert "unknown" in result.stdout


def test_a_terminal_gets_styles_but_no_markup_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = PlainConsole(force_terminal=True, width=100)
    table = Table()
    table.add_column(ODD)
    table.add_row(ODD)
    with screen.capture() as captured:
        screen.print(table)
        show_statuses(screen, [replace(Status.unknown("s", 1), cause=ODD)], Path(), 1)
    assert captured.get().count(ODD) == 3
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("lag_ms", "unread", "words"),
    [(None, None, "-"), (0, 0, "0s"), (65_400, 0, "1m 5s"), (4000, 1234, "4s, 1,234 files unread"), (None, 7, "-, 7")],
)
def test_the_lag_of_a_sink_is_a_time_and_what_was_not_read(lag_ms: int | None, unread: int | None, words: str) -> None:
    screen = PlainConsole(width=200)
    with screen.capture() as captured:
        status = replace(Status.unknown("s", 1), lag_ms=lag_ms, unread=unread, counts="files")
        show_statuses(screen, [status], Path(), 1)
    assert words in captured.get().splitlines()[1]


def test_a_sink_that_had_caught_up_when_it_stopped_says_how_long_ago_that_was() -> None:
    screen = PlainConsole(width=200)
    found = replace(Status.unknown("s", 1), lag_ms=0, current_ms=1_000, polled_ms=1_000, health=Health.STOPPED)
    with screen.capture() as captured:
        show_statuses(screen, [found], Path(), 1_148_000)
        show_statuses(screen, [replace(found, polled_ms=1_001)], Path(), 1_148_000)
    _, stopped, _, note, _, behind = captured.get().splitlines()
    assert " 0s " in stopped
    assert note == "s: it had caught up when its source was last polled, 19m 7s ago"
    assert " 19m 7s " in behind


def test_sizes_of_state_home_and_table_are_shown() -> None:
    screen = PlainConsole(width=200)
    found = TableHealth(1, 1, 3, 100, 2, 6_000, 1, 1, 400, 25)
    sizes = (("key index", 1_500_000), ("records", 120))
    status = replace(Status.unknown("s", 1), state_sizes=sizes, home_sizes=(("logs", 9_000),), table_health=found)
    with screen.capture() as captured:
        show_statuses(screen, [status], Path("home"), 1)
    out = captured.get()
    assert "s: 2 data files (1 small), 1 delete file, 6.4 kB, 25.0% of rows deleted, 3 snapshots\n" in out
    assert "s: 1.5 MB in its state location (key index 1.5 MB, records 120 B)\n" in out
    assert "In home besides tables and state: logs 9.0 kB\n" in out


def test_texts_that_control_nothing_stay_as_they_are() -> None:
    text = "ümläut 漢字 👩‍💻 a\tb\nc"
    assert visible(text) == text


def test_nothing_but_the_one_console_prints() -> None:
    folder = Path(__file__).parents[3] / "src" / "calve" / "cli"
    banned = ("rich.markup", "from_markup", "markup=True", " Console(", "[/]")
    found = [
        f"{path.name}: {word}" for path in sorted(folder.glob("*.py")) for word in banned if word in path.read_text()
    ]
    assert found == []


@pytest.mark.long
def test_a_terminal_that_lacks_a_character_gets_an_escape(tmp_path: Path) -> None:
    status = replace(Status.unknown("s", 1), cause="the name is ü, 表 or \ud800")
    write_status(status_file(tmp_path, "s"), status)
    command = [sys.executable, "-m", "calve.cli.main", "status", "--home", str(tmp_path)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=True
    )
    assert r"the name is \xfc, \u8868 or \ud800" in done.stdout


@pytest.mark.parametrize("millis", [253_402_300_800_000, 2**63 - 1, -(2**63)])
def test_a_frontier_may_be_any_number(tmp_path: Path, millis: int) -> None:
    write_status(status_file(tmp_path, "s"), replace(Status.unknown("s", 1), frontier=f"[{millis}]"))
    result = CliRunner().invoke(app, ["status", "--home", str(tmp_path)], catch_exceptions=False)
    assert f"{millis} ms" in result.stdout


@pytest.mark.parametrize("number", [10**20, -(10**20), 2**63, -1])
def test_numbers_that_are_no_time_hide_no_sink(tmp_path: Path, number: int) -> None:
    odd = replace(Status.unknown("odd", 0), frontier=f"[{number}]", last_commit_ms=number, lag_ms=number)
    write_status(status_file(tmp_path, "odd"), odd)
    write_status(status_file(tmp_path, "other"), replace(Status.unknown("other", 0), frontier="of another version"))
    result = CliRunner().invoke(app, ["status", "--home", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "odd" in result.stdout
    assert "of another version" in result.stdout
