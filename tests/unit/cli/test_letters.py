"""What `calve letters` prints about replays, and what it refuses."""

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from calve.cli.letters import show_replay
from calve.cli.main import app
from calve.errors import InvalidInput
from calve.model.letters import ReplayReport


def printed(report: ReplayReport) -> list[str]:
    out = io.StringIO()
    show_replay(report, Console(file=out, width=200, markup=True))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_replay_says_what_was_applied_and_why_the_rest_was_not() -> None:
    report = ReplayReport(
        "orders",
        applied=1200,
        finished=1,
        failed=(('column "n" is "[red]", which is not INT', 2),),
        skipped=(("it is a row of a view, not a record", 1),),
        snapshots=(7, 9),
    )
    assert printed(report) == [
        "1 letter had been applied by a replay that was interrupted; now removed",
        "1,200 letters applied, in snapshot 7, 9",
        "left  because",
        '   2  still bad: column "n" is "[red]", which is not INT',
        "   1  no record: it is a row of a view, not a record",
    ]
    assert str(report) == "orders: 1200 applied, 1 of an interrupted replay, 3 left"


def test_a_dry_run_says_what_would_happen() -> None:
    assert printed(ReplayReport("orders", dry_run=True, applied=1)) == ["1 letter can be applied"]


@pytest.mark.parametrize("option", ["--dry-run", "--force"])
def test_options_of_a_replay_need_one(option: str) -> None:
    refused = CliRunner().invoke(app, ["letters", "orders", option])
    assert isinstance(refused.exception, InvalidInput)
    assert refused.exception.primary == "--dry-run and --force need --replay"
