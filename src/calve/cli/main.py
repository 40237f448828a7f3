"""`calve`: entry point and commands.

Exit codes: 0 done, 1 failed or work left pending, 2 invalid input, 3 fenced.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from calve import __version__
from calve.cli.demo import run_demo
from calve.cli.read import Format, ReadOptions, run_read
from calve.cli.show import show_error, show_statuses
from calve.errors import CalveError, InvalidInput
from calve.runtime.api import connect, default_home
from calve.runtime.monitor import read_statuses

app = typer.Typer(
    help="Keeps Apache Iceberg tables equal to a stream of changes, exactly once, on Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Home = Annotated[
    Path | None,
    typer.Option("--home", help="Folder with catalog, warehouse, state and logs. Default: $CALVE_HOME or .calve"),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print results only, no progress.")]


@app.callback()
def _main() -> None:
    """Keeps Apache Iceberg tables equal to a stream of changes, exactly once, on Spark."""


@app.command()
def demo(
    home: Annotated[
        Path | None, typer.Option("--home", help="Keep the demo in this folder. Default: a temporary one.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, max=5_000_000, help="Orders to insert.")] = 100_000,
    updates: Annotated[int, typer.Option(min=0, max=5_000_000, help="Changes to apply to them.")] = 100_000,
    *,
    quiet: Quiet = False,
) -> None:
    """Run a change stream into an Iceberg table, show what happened, and check the rows with another engine."""
    raise typer.Exit(run_demo(Console(quiet=False, stderr=False), home=home, rows=rows, updates=updates, quiet=quiet))


@app.command()
def status(
    sink: Annotated[str | None, typer.Argument(help="Name of a sink. Default: all.")] = None,
    home: Home = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show health, frontier, pending work and the last commit of sinks."""
    folder = home or default_home()
    statuses = read_statuses(folder)
    if sink is not None:
        statuses = [s for s in statuses if s.sink == sink]
        if not statuses:
            raise InvalidInput(
                f'there is no sink "{sink}"', detail=f"Looked in {folder}.", hint="Give --home, or no name to see all."
            )
    if as_json:
        sys.stdout.write(json.dumps([asdict(s) for s in statuses], indent=2) + "\n")
    else:
        show_statuses(Console(), statuses, folder)


@app.command()
def read(  # noqa: PLR0913 - a parameter for each option
    table: Annotated[str, typer.Argument(help="namespace.table")],
    *,
    limit: Annotated[int | None, typer.Option(min=0, help="Rows to print. Default: 20 in a table, else all.")] = None,
    as_of_frontier: Annotated[int | None, typer.Option(help="Milliseconds: as it was at this frontier.")] = None,
    snapshot: Annotated[int | None, typer.Option(help="As it was at the snapshot with this id.")] = None,
    sink: Annotated[str | None, typer.Option(help="Whose frontier, where several sinks write.")] = None,
    output: Annotated[Format, typer.Option("--format", help="How to print rows.")] = Format.TABLE,
    home: Home = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print what would be read, and read nothing.")] = False,
) -> None:
    """Print rows of a table, now or as of a frontier or a snapshot."""
    run_read(
        connect(home=home).table(table),
        {"as_of_frontier": as_of_frontier, "snapshot_id": snapshot, "sink": sink},
        ReadOptions(output, limit, explain),
        Console(),
    )


@app.command()
def version() -> None:
    """Print the version."""
    sys.stdout.write(f"calve {__version__}\n")


def main() -> None:
    """Run a command; errors become a text on stderr and an exit code."""
    try:
        app()
    except CalveError as error:
        show_error(Console(stderr=True), error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
