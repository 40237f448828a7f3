"""`calve`: entry point and commands.

Exit codes: 0 done, 1 failed or work left pending, 2 invalid input, 3 fenced.

A command imports what it needs in its body, so that `--help`, `--version`, `status` and the shell's completion do not
wait for Spark, Iceberg or Arrow. A module that is imported at the top must be light; a test keeps it so.
"""

import gc
import logging
import os
import sys
from contextlib import suppress
from copy import copy
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer.models import CommandInfo

from calve import __version__
from calve.cli.logs import LogFormat, log_to_stderr
from calve.cli.options import (
    LOOPBACK,
    ChangeSpan,
    Connection,
    Format,
    Home,
    Host,
    Level,
    Logs,
    PageOptions,
    Prune,
    QueryEngine,
    Quiet,
    ReadOptions,
    Token,
)
from calve.cli.parameters import InstantCommand, InstantCommands
from calve.errors import CalveError, InvalidInput
from calve.model.engine import Engine, ReadingEngine
from calve.spark.worker_packages import WorkerExtra
from calve.storage.local_folders import default_home

if TYPE_CHECKING:
    from calve.definitions.workplace import Workplace

app = typer.Typer(
    cls=InstantCommands,
    help="Keeps Apache Iceberg tables equal to a stream of changes, exactly once, on Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_COMPLETE = "_CALVE_COMPLETE"
"""Set by the shell's completion, which asks for the words that can follow."""
_YOUNG_OBJECTS = 10_000
"""Between two runs of the garbage collector. With Python's 700, a twentieth of a short command's time goes there."""


def _names_of_sinks(context: typer.Context, incomplete: str) -> list[str]:
    """For the shell's completion."""
    from calve.definitions.store import HomeDefinitions
    from calve.sql.statements import ObjectKind
    from calve.watch.status_files import read_statuses

    home = _folder(context.params.get("home"))
    defined = set[str]()
    with suppress(CalveError):  # nobody wants to see it here
        defined = {d.name for d in HomeDefinitions(home).copied() or () if d.kind is ObjectKind.SINK}
    known = {status.sink for status in read_statuses(home)} | defined
    return sorted(name for name in known if name.startswith(incomplete))


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"calve {__version__}\n")
        raise typer.Exit


@app.callback()
def _main(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Keeps Apache Iceberg tables equal to a stream of changes, exactly once, on Spark."""


@app.command(cls=InstantCommand)
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
    from calve.cli.demo import run_demo
    from calve.cli.show import console

    raise typer.Exit(run_demo(console(), home=home, rows=rows, updates=updates, quiet=quiet))


@app.command(cls=InstantCommand)
def run(  # noqa: PLR0913 - a parameter for each option
    pipeline: Annotated[list[Path] | None, typer.Argument(help="Files with statements to apply first.")] = None,
    *,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Read what the sources have now, commit it, and exit.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Apply dangerous changes of the file without a question; see `calve plan`.")
    ] = False,
    prune: Prune = False,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    conf: Annotated[list[str] | None, typer.Option("--conf", help="A Spark setting, KEY=VALUE.")] = None,
    cache_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory for key indexes and totals of views. Default: $CALVE_CACHE_MEMORY, or 1/12 of the machine's.",
        ),
    ] = None,
    serve: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="PORT", help="Serve the page meanwhile, as `calve serve`."),
    ] = None,
    host: Host = LOOPBACK,
    token: Token = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve metrics for Prometheus at this port; 0: a free one.")
    ] = None,
    metrics_address: Annotated[str, typer.Option(help="The address of the metrics port.")] = "127.0.0.1",
    metrics_file: Annotated[
        Path | None, typer.Option(help="Write metrics to this file (*.prom), for node_exporter.")
    ] = None,
    otel: Annotated[
        bool, typer.Option("--otel", help="Export metrics by OTLP, as the variables OTEL_* say; needs calve[otel].")
    ] = False,
    lineage: Annotated[
        bool, typer.Option("--lineage", help="Send an OpenLineage event per commit; needs calve[openlineage].")
    ] = False,
    home: Home = None,
    log_format: Logs = LogFormat.TEXT,
    log_level: Level = None,
    quiet: Quiet = False,
) -> None:
    """Apply a pipeline file and keep its sinks running, until Ctrl-C.

    The definitions are made equal to the file first (`calve plan` shows how). Dangerous changes are applied only with
    --yes, or if you agree at the terminal; otherwise nothing is changed. Running sinks notice changes by `calve sql`
    (ALTER, DROP, PAUSE). Without a file, the sinks that are already defined run.
    """
    from calve.cli.exports import Exports
    from calve.cli.run import run_pipeline
    from calve.cli.show import console
    from calve.reader.resources import limit_caches

    log_to_stderr(log_format, quiet=quiet, level=log_level)
    settings = dict(_setting(text) for text in conf or ())
    if cache_memory:
        limit_caches(cache_memory)
    screen = console(quiet=quiet)
    page = None if serve is None else PageOptions(host, serve, token)
    exports = Exports(metrics_port, metrics_address, metrics_file, otel, lineage)
    code = run_pipeline(
        screen,
        pipeline or [],
        _folder(home),
        until_caught_up=until_caught_up,
        master=master,
        conf=settings,
        exports=exports,
        page=page,
        prune=prune,
        yes=yes,
    )
    raise typer.Exit(code)


@app.command(cls=InstantCommand)
def plan(  # noqa: PLR0913 - a parameter for each option
    pipeline: Annotated[list[Path], typer.Argument(help="Files with statements, as for `calve run`.")],
    *,
    prune: Prune = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if there is something to do, for CI; with 0 otherwise.")
    ] = False,
    home: Home = None,
    log_format: Logs = LogFormat.TEXT,
    log_level: Level = None,
    quiet: Quiet = False,
) -> None:
    """Show the statements that make the definitions equal to a pipeline file, and what they do; changes nothing.

    Exits with 0, or with 2 if the file is not valid or says what no statement can do.
    """
    from calve.cli.plan import run_plan
    from calve.cli.show import console

    log_to_stderr(log_format, quiet=quiet, level=log_level)
    screen = console(quiet=quiet)
    raise typer.Exit(run_plan(screen, pipeline, _folder(home), prune=prune, as_json=as_json, check=check))


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidInput("--conf takes KEY=VALUE", detail=f'Got "{name}".')
    return name, value


@app.command(cls=InstantCommand)
def sql(  # noqa: PLR0913 - a parameter for each option
    statements: Annotated[str | None, typer.Argument(help="Statements separated by semicolons.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A file of statements; - for stdin.")] = None,
    *,
    output: Annotated[Format, typer.Option("--format", help="How to print rows.")] = Format.TABLE,
    engine: QueryEngine = Engine.AUTO,
    home: Home = None,
    log_format: Logs = LogFormat.TEXT,
    log_level: Level = None,
    quiet: Quiet = False,
) -> None:
    """Execute statements, or open a prompt if none are given.

    Secrets on the command line are visible in the list of processes: write them to a file, or enter them at the prompt.
    """
    from calve.cli.show import console
    from calve.cli.sql import run_sql

    log_to_stderr(log_format, quiet=quiet, level=log_level)
    raise typer.Exit(run_sql(console(), _folder(home), text=statements, file=file, output=output, engine=engine))


@app.command(cls=InstantCommand)
def status(  # noqa: PLR0913 - a parameter for each option
    sink: Annotated[
        str | None, typer.Argument(help="Name of a sink. Default: all.", autocompletion=_names_of_sinks)
    ] = None,
    home: Home = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="For monitors: print what is wrong, and exit with 1 if anything is.")
    ] = False,
    max_lag: Annotated[
        str | None, typer.Option("--max-lag", help="With --check: how far a table may be behind its source, e.g. 5m.")
    ] = None,
    max_commit_age: Annotated[
        str | None, typer.Option("--max-commit-age", help="With --check: how old the last commit may be, e.g. 1h.")
    ] = None,
    max_poll_age: Annotated[
        str | None, typer.Option("--max-poll-age", help="With --check: how long ago the source was polled, e.g. 6h.")
    ] = None,
    running: Annotated[
        bool, typer.Option("--running", help="With --check: stopped and paused sinks are a problem, too.")
    ] = False,
) -> None:
    """Show health, frontier, pending work and the last commit of sinks.

    Exit codes of --check: 0 all sinks are healthy; 1 one is stalled, halted, fenced, gone or unreadable, or exceeds a
    limit, or no sink ever ran; 2 invalid input.
    """
    from calve.cli.status import limits_of, run_status

    limits = limits_of(max_lag, max_commit_age, max_poll_age, running=running)
    if not check and limits != limits_of(None, None, None, running=False):
        raise InvalidInput("--max-lag, --max-commit-age, --max-poll-age and --running need --check")
    raise typer.Exit(run_status(_folder(home), sink, as_json=as_json, check=limits if check else None))


@app.command(cls=InstantCommand)
def read(  # noqa: PLR0913 - a parameter for each option
    table: Annotated[str, typer.Argument(help="namespace.table, or a folder of Parquet, CSV or JSON files")],
    *,
    where: Annotated[str | None, typer.Option(help="A condition in Spark SQL; starts Spark.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Rows to print. Default: 20 in a table, else all.")] = None,
    as_of: Annotated[
        str | None, typer.Option(help="Read the table as it was at this time, '2026-11-17 13:30' in UTC.")
    ] = None,
    as_of_frontier: Annotated[
        str | None, typer.Option(help="Read the table as of this frontier: a time, or milliseconds.")
    ] = None,
    snapshot: Annotated[int | None, typer.Option(help="Read the table as of the snapshot with this id.")] = None,
    sink: Annotated[str | None, typer.Option(help="The sink whose frontier counts, if several write.")] = None,
    changes: Annotated[bool, typer.Option("--changes", help="Print what changed instead of the rows.")] = False,
    since: Annotated[
        str | None, typer.Option(help="Changes after this snapshot, time, [frontier] or tag. Default: the start.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Changes up to this one. Default: the newest snapshot.")] = None,
    every_step: Annotated[
        bool, typer.Option("--every-step", help="Changes of each snapshot, not the net changes.")
    ] = False,
    before: Annotated[bool, typer.Option("--before", help="Also print rows as they were before.")] = False,
    output: Annotated[Format, typer.Option("--format", help="How to print rows.")] = Format.TABLE,
    connection: Connection = None,
    home: Home = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print what would be read, without reading.")] = False,
) -> None:
    """Print rows of a table, now or as of a time, a frontier or a snapshot, or its changes; or rows of a folder."""
    from calve.cli.read import run_read, run_read_changes, run_read_folder
    from calve.cli.show import console
    from calve.reader.local import TimeTravel

    options = ReadOptions(output, limit, explain, where)
    at: TimeTravel = {"as_of": as_of, "as_of_frontier": as_of_frontier, "snapshot_id": snapshot, "sink": sink}
    span = ChangeSpan(since, until, every_step, before, sink)
    if changes and (snapshot is not None or as_of is not None or as_of_frontier is not None):
        raise InvalidInput("changes are read between two snapshots", hint="Write --since and --until.")
    if not changes and span != ChangeSpan(sink=sink):
        raise InvalidInput("--since, --until, --every-step and --before need --changes")
    if _is_folder(table):
        if connection is not None or changes or any(value is not None for value in at.values()):
            raise InvalidInput("a folder has neither a connection nor snapshots", detail=f'Got "{table}".')
        run_read_folder(_workplace(home), table, options, console())
        return
    from calve.pipeline.lakes import chosen_lake

    chosen = chosen_lake(_used_folder(home), connection).table(table)
    if changes:
        run_read_changes(chosen, span, options, console())
    else:
        run_read(chosen, at, options, console())


def _is_folder(name: str) -> bool:
    """Whether a name refers to a folder: names of tables have a dot and no slash."""
    return "/" in name or ("." not in name and Path(name).exists())


@app.command(cls=InstantCommand)
def letters(  # noqa: PLR0913 - a parameter for each option
    sink: Annotated[str, typer.Argument(help="Name of a sink.", autocompletion=_names_of_sinks)],
    limit: Annotated[int | None, typer.Option(min=0, help="Rows to print. Default: 20 in a table, else all.")] = None,
    output: Annotated[Format, typer.Option("--format", help="How to print rows.")] = Format.TABLE,
    home: Home = None,
    log_format: Logs = LogFormat.TEXT,
    log_level: Level = None,
    *,
    reason: Annotated[str, typer.Option(help="Only letters whose reason contains this text, in any case.")] = "",
    since: Annotated[str | None, typer.Option(help="Only letters that were added at this time or later.")] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Apply them to the table, once their cause is gone. The sink must not run.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --replay: print what would happen, and change nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --replay: apply them as the newest changes of their keys.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Print the dead letters of a sink: records that could not be converted, with the reason and where they were.

    With --replay those that can be converted now are applied to the table, each once, and leave the dead letters.
    """
    from calve.cli.show import console

    if replay:
        from calve.api.replay import replay_letters
        from calve.cli.letters import show_replay

        log_to_stderr(log_format, quiet=quiet, level=log_level)
        report = replay_letters(
            _workplace(_used_folder(home)), sink, reason=reason, since=since, force=force, dry_run=dry_run
        )
        show_replay(report, console())
        raise typer.Exit(1 if report.left else 0)
    if dry_run or force:
        raise InvalidInput("--dry-run and --force need --replay")
    from calve.cli.letters import show_letters

    show_letters(
        _workplace(_used_folder(home)), sink, console(), reason=reason, since=since, output=output, limit=limit
    )


@app.command(cls=InstantCommand)
def init(  # noqa: PLR0913 - a parameter for each option
    subject: Annotated[
        str, typer.Argument(help="A folder (a path, a URI or a pattern), or a topic.", metavar="FOLDER|TOPIC")
    ],
    *,
    broker: Annotated[str | None, typer.Option(help="Kafka brokers, host:port: the argument is a topic.")] = None,
    connection: Annotated[
        str | None, typer.Option(help="A defined connection to Kafka, instead of --broker: for logins and TLS.")
    ] = None,
    registry: Annotated[str | None, typer.Option(help="URL of the schema registry of the topic.")] = None,
    registry_user: Annotated[
        str | None, typer.Option(help="User of the registry; its password is in $CALVE_REGISTRY_PASSWORD.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; - for stdout.")] = Path("pipeline.sql"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    home: Home = None,
) -> None:
    """Write a pipeline file for a folder or a topic: columns, types, and guesses at key, order and envelope.

    It reads a sample of the records and the schemas that there are; nothing is created. Every guess is marked in the
    file, to be looked at before `calve run`.
    """
    from calve.cli.init import InitOptions, run_init

    options = InitOptions(subject, broker, connection, registry, registry_user, output, force)
    run_init(options, _folder(home))


@app.command("connect-info", cls=InstantCommand)
def connect_info(
    subject: Annotated[str, typer.Argument(help="namespace.table, or the name of a sink", metavar="TABLE|SINK")],
    engine: Annotated[ReadingEngine | None, typer.Option(help="Print only the text for this engine.")] = None,
    connection: Connection = None,
    home: Home = None,
) -> None:
    """Print how other engines read a table: statements to paste, with the names of secrets in place of them."""
    from calve.api.engines import readable_table, recipe, recipes

    table = readable_table(_workplace(_used_folder(home)), subject, connection)
    if engine is not None:
        sys.stdout.write(recipe(table, engine).text)
        return
    from calve.cli.show import console, show_recipes

    show_recipes(console(), recipes(table))


@app.command(cls=InstantCommand)
def verify(
    sink: Annotated[str, typer.Argument(help="Name of a sink.", autocompletion=_names_of_sinks)],
    home: Home = None,
    log_format: Logs = LogFormat.TEXT,
    log_level: Level = None,
    *,
    changes: Annotated[
        bool, typer.Option("--changes", help="Compare the table with the sum of its own changes instead.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Compare the table of a sink with its source, as of the table's progress.

    Exit code 0: equal; 1: different, with samples.
    """
    from calve.api.verify import verify as verify_sink
    from calve.api.verify import verify_changes
    from calve.cli.show import console, show_differences

    log_to_stderr(log_format, quiet=quiet, level=log_level)
    found = (verify_changes if changes else verify_sink)(_workplace(_used_folder(home)), sink)
    show_differences(console(), sink, found)
    raise typer.Exit(0 if found.none else 1)


@app.command(cls=InstantCommand)
def maintain(  # noqa: PLR0913 - a parameter for each option
    subject: Annotated[str, typer.Argument(help="namespace.table, or the name of a sink", metavar="TABLE|SINK")],
    *,
    only: Annotated[
        str,
        typer.Option(
            help="Jobs, separated by commas: compact, convert, manifests, expire, orphans. Default: the first three"
        ),
    ] = "",
    where: Annotated[
        str, typer.Option(help="Compact only files that may have rows for which this is true; starts Spark.")
    ] = "",
    sort_by: Annotated[
        str, typer.Option(help="Compact all files, sorted by columns, 'region, created', or by 'zorder(lat, lon)'.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, without doing it.")] = False,
    older_than: Annotated[
        str, typer.Option(help="Age from which on snapshots expire, or files are orphans: 7d, 12h.")
    ] = "",
    grace: Annotated[str, typer.Option(help="Time from the expiry of snapshots to the removal of their files.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Permit ages that are shorter than is safe.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Remove orphan files of other writers, too.")] = False,
    forget: Annotated[
        list[str] | None,
        typer.Option(metavar="SINK", help="Exclude a sink whose state is lost from the table, for good."),
    ] = None,
    connection: Connection = None,
    home: Home = None,
    log_format: Logs = LogFormat.TEXT,
    log_level: Level = None,
    quiet: Quiet = False,
) -> None:
    """Merge small files, convert equality deletes, group manifests; if asked, expire snapshots and remove orphans.

    Rows do not change, and sinks may keep running. This does everything that improves the table, while the maintenance
    of a running sink waits until it is worth the cost.
    """
    from calve.cli.maintain import MaintainOptions, run_maintain
    from calve.cli.show import console

    log_to_stderr(log_format, quiet=quiet, level=log_level)
    options = MaintainOptions(only, where, sort_by, dry_run, older_than, grace, force, everything, tuple(forget or ()))
    run_maintain(console(), _used_folder(home), subject, connection, options, quiet=quiet)


class Shell(StrEnum):
    """Shells with completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command(cls=InstantCommand)
def completion(shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Print the script that completes commands, options and names of sinks in a shell.

    bash: eval "$(calve completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc, after compinit;
    fish: calve completion fish > ~/.config/fish/completions/calve.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name="calve", complete_var=_COMPLETE, shell=shell.value)
    sys.stdout.write(f"{script}\n")


@app.command(cls=InstantCommand)
def serve(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0: any free one.")] = 8080,
    host: Host = LOOPBACK,
    token: Token = None,
    home: Home = None,
    log_format: Logs = LogFormat.TEXT,
    *,
    quiet: Quiet = False,
) -> None:
    """Serve a page with the state of all sinks of a home, and /metrics and /healthz; read-only, until Ctrl-C."""
    from calve.cli.serve import run_page
    from calve.cli.show import console

    log_to_stderr(log_format, quiet=quiet)
    run_page(console(quiet=quiet), _folder(home), PageOptions(host, port, token))


@app.command("worker-requirements", cls=InstantCommand)
def worker_requirements(
    extra: Annotated[
        list[WorkerExtra] | None, typer.Option("--extra", help="Also what this extra of calve needs.")
    ] = None,
) -> None:
    """Print the packages that Spark's executors need, with the versions that are installed here.

    calve worker-requirements > workers.txt; on the executors: pip install --no-deps -r workers.txt, and calve itself
    with pip install --no-deps. PySpark comes with the cluster.
    """
    from calve.spark.worker_packages import worker_requirements as packages

    sys.stdout.writelines(f"{one}\n" for one in packages(extra or []))


@app.command(cls=InstantCommand)
def version() -> None:
    """Print the version."""
    sys.stdout.write(f"calve {__version__}\n")


def _folder(home: Path | None) -> Path:
    return (home or default_home()).absolute()


def _used_folder(home: Path | None) -> Path:
    """The home folder, for commands that read what a sink wrote. Raises InvalidInput if nothing ever wrote there."""
    folder = _folder(home)
    if not os.path.lexists(folder):
        raise InvalidInput(
            f'there is no home folder "{folder}"',
            detail="Definitions, tables and progress are in the home folder of the run that made them.",
            hint="Go to the folder where calve ran, or name its home with --home or $CALVE_HOME.",
        )
    return folder


def _workplace(home: Path | None) -> "Workplace":
    from calve.definitions.workplace import workplace
    from calve.spark.on_demand import spark_on_demand

    return workplace(_folder(home), spark_on_demand(_folder(home)))


def _app_for(arguments: list[str]) -> typer.Typer:
    """All commands, or only the one that is called: typer inspects every parameter of every command that it has."""
    called = [one for one in app.registered_commands if arguments and _name(one) == arguments[0]]
    if not called:
        return app
    chosen = copy(app)
    chosen.registered_commands = called
    return chosen


def _name(command: CommandInfo) -> str | None:
    return command.name or (command.callback and command.callback.__name__)


def main() -> None:
    """Run a command; print errors to stderr and set the exit code."""
    _open_missing_streams()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # escapes what the terminal cannot encode
    try:
        if _COMPLETE in os.environ:
            from typer.completion import completion_init  # type: ignore[attr-defined]

            completion_init()
        _app_for([] if _COMPLETE in os.environ else sys.argv[1:])(prog_name="calve")
    except CalveError as error:
        _end_with(error)
    except OSError as error:  # of this machine: a folder that cannot be written, a full disk
        from calve.catalog.failures import transient

        logging.getLogger("calve").debug("the command failed", exc_info=error)
        _end_with(transient("the command failed", error))


def _open_missing_streams() -> None:
    """Replace streams that the caller has closed: Python has none then, and the next file would take their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - for as long as the process lives


def _end_with(error: CalveError) -> NoReturn:
    from calve.cli.show import console, show_error

    show_error(console(stderr=True), error)
    sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
