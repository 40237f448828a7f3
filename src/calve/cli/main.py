"""`calve`: entry point and commands.

Exit codes: 0 done, 1 failed or work left pending, 2 invalid input, 3 fenced.
"""

import json
import sys
from dataclasses import asdict
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from calve import __version__
from calve.api.maintain import Job, subject_of_sink, subject_of_table
from calve.api.maintain import maintain as maintain_subject
from calve.api.verify import verify as verify_sink
from calve.cli.demo import run_demo
from calve.cli.logs import LogFormat, log_to_stderr
from calve.cli.read import Format, ReadOptions, is_folder, run_read, run_read_folder
from calve.cli.run import run_pipeline
from calve.cli.show import console, show_differences, show_error, show_statuses
from calve.cli.sql import run_sql
from calve.definitions.workplace import workplace
from calve.errors import CalveError, InvalidInput
from calve.lake import connect, default_home
from calve.pipeline.build import connected_lake
from calve.pipeline.monitor import read_statuses
from calve.reader.read import TimeTravel
from calve.spark.session import embedded_session

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
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only results, no progress.")]
Logs = Annotated[LogFormat, typer.Option("--log-format", help="Log lines on stderr: text for people, or json.")]


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
    raise typer.Exit(run_demo(console(), home=home, rows=rows, updates=updates, quiet=quiet))


@app.command()
def run(  # noqa: PLR0913 - a parameter for each option
    pipeline: Annotated[list[Path] | None, typer.Argument(help="Files with statements to apply first.")] = None,
    *,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Read what the sources have now, commit it, and exit.")
    ] = False,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    conf: Annotated[list[str] | None, typer.Option("--conf", help="A Spark setting, KEY=VALUE.")] = None,
    home: Home = None,
    log_format: Logs = LogFormat.TEXT,
    quiet: Quiet = False,
) -> None:
    """Apply a pipeline file and keep its sinks running, until Ctrl-C.

    An existing object with the same definition is left alone; one that differs is an error: use ALTER. Running sinks
    notice changes by `calve sql` (ALTER, DROP, PAUSE). Without a file, the sinks that are already defined run.
    """
    log_to_stderr(log_format, quiet=quiet)
    settings = dict(_setting(text) for text in conf or ())
    screen = console(quiet=quiet)
    folder = (home or default_home()).absolute()
    code = run_pipeline(screen, pipeline or [], folder, until_caught_up=until_caught_up, master=master, conf=settings)
    raise typer.Exit(code)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidInput("--conf takes KEY=VALUE", detail=f'Got "{name}".')
    return name, value


@app.command()
def sql(
    statements: Annotated[str | None, typer.Argument(help="Statements separated by semicolons.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A file of statements; - for stdin.")] = None,
    home: Home = None,
    log_format: Logs = LogFormat.TEXT,
    *,
    quiet: Quiet = False,
) -> None:
    """Execute statements, or open a prompt if none are given.

    Secrets on the command line are visible in the list of processes: write them to a file, or enter them at the prompt.
    """
    log_to_stderr(log_format, quiet=quiet)
    raise typer.Exit(run_sql(console(), (home or default_home()).absolute(), text=statements, file=file))


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
        show_statuses(console(), statuses, folder)


@app.command()
def read(  # noqa: PLR0913 - a parameter for each option
    table: Annotated[str, typer.Argument(help="namespace.table, or a folder of Parquet, CSV or JSON files")],
    *,
    where: Annotated[str | None, typer.Option(help="A condition in Spark SQL; starts Spark.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Rows to print. Default: 20 in a table, else all.")] = None,
    as_of_frontier: Annotated[
        int | None, typer.Option(help="Read the table as of this frontier, in milliseconds.")
    ] = None,
    snapshot: Annotated[int | None, typer.Option(help="Read the table as of the snapshot with this id.")] = None,
    sink: Annotated[str | None, typer.Option(help="The sink whose frontier counts, if several write.")] = None,
    output: Annotated[Format, typer.Option("--format", help="How to print rows.")] = Format.TABLE,
    connection: Annotated[
        str | None, typer.Option(help="Connection to the table's catalog. Default: the embedded one.")
    ] = None,
    home: Home = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print what would be read, without reading.")] = False,
) -> None:
    """Print rows of a table, now or as of a frontier or a snapshot; or of a folder."""
    options = ReadOptions(output, limit, explain, where)
    at: TimeTravel = {"as_of_frontier": as_of_frontier, "snapshot_id": snapshot, "sink": sink}
    if is_folder(table):
        if connection is not None or any(value is not None for value in at.values()):
            raise InvalidInput("a folder has neither a connection nor snapshots", detail=f'Got "{table}".')
        folder = (home or default_home()).absolute()
        run_read_folder(workplace(folder, lambda: embedded_session(folder)), table, options, console())
        return
    lake = connect(home=home) if connection is None else connected_lake(home or default_home(), connection)
    run_read(lake.table(table), at, options, console())


@app.command()
def verify(
    sink: Annotated[str, typer.Argument(help="Name of a sink.")],
    home: Home = None,
    log_format: Logs = LogFormat.TEXT,
    *,
    quiet: Quiet = False,
) -> None:
    """Compare the table of a sink with its source, as of the table's progress.

    Exit code 0: equal; 1: different, with samples.
    """
    log_to_stderr(log_format, quiet=quiet)
    folder = (home or default_home()).absolute()
    found = verify_sink(workplace(folder, lambda: embedded_session(folder)), sink)
    show_differences(console(), sink, found)
    raise typer.Exit(0 if found.none else 1)


@app.command()
def maintain(  # noqa: PLR0913 - a parameter for each option
    subject: Annotated[str, typer.Argument(help="namespace.table, or the name of a sink", metavar="TABLE|SINK")],
    *,
    only: Annotated[str, typer.Option(help="Jobs, separated by commas. Default: compact,convert")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, without doing it.")] = False,
    connection: Annotated[
        str | None, typer.Option(help="Connection to the table's catalog. Default: the embedded one.")
    ] = None,
    home: Home = None,
    log_format: Logs = LogFormat.TEXT,
    quiet: Quiet = False,
) -> None:
    """Merge small files, rewrite files with deleted rows, and convert the remaining equality deletes.

    Rows do not change, and sinks may keep running. This does everything that improves the table, while the maintenance
    of a running sink waits until it is worth the cost.
    """
    log_to_stderr(log_format, quiet=quiet)
    folder = (home or default_home()).absolute()
    if "." in subject:
        lake = connect(home=home) if connection is None else connected_lake(folder, connection)
        chosen = subject_of_table(lake.table(subject))
    else:
        chosen = subject_of_sink(workplace(folder, lambda: embedded_session(folder)), subject)
    for line in maintain_subject(
        chosen, [_job(name) for name in only.split(",")] if only else list(Job), dry_run=dry_run
    ):
        console().print(line, soft_wrap=True)


def _job(name: str) -> Job:
    try:
        return Job(name.strip())
    except ValueError:
        jobs = ", ".join(Job)
        raise InvalidInput(f'unknown maintenance job "{name.strip()}"', hint=f"Jobs are {jobs}.") from None


@app.command()
def version() -> None:
    """Print the version."""
    sys.stdout.write(f"calve {__version__}\n")


def main() -> None:
    """Run a command; print errors to stderr and set the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # escapes what the terminal cannot encode
    try:
        app()
    except CalveError as error:
        show_error(console(stderr=True), error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
