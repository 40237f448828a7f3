"""Options that several commands share. Imported for `calve --help`: nothing here is slow to import."""

from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from calve.cli.logs import LogFormat, LogLevel
from calve.model.engine import Engine
from calve.values import value

Home = Annotated[
    Path | None,
    typer.Option("--home", help="Folder with catalog, warehouse, state and logs. Default: $CALVE_HOME or .calve"),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only results, no progress.")]
Logs = Annotated[LogFormat, typer.Option("--log-format", help="Log lines on stderr: text for people, or json.")]
Level = Annotated[
    LogLevel | None,
    typer.Option("--log-level", help="The least severe lines that are logged. Default: warning; info with json."),
]
Connection = Annotated[
    str | None, typer.Option("--connection", help="Connection to the table's catalog. Default: the embedded one.")
]
Prune = Annotated[bool, typer.Option("--prune", help="Also drop objects that the file does not create.")]
LOOPBACK = "127.0.0.1"
Host = Annotated[str, typer.Option("--host", help="Address of the page. One that other machines reach needs a token.")]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="CALVE_TOKEN",
        help="Required to see the page. Better set in the environment: the list of processes shows arguments.",
    ),
]


QueryEngine = Annotated[Engine, typer.Option("--engine", help="What executes SELECT: duckdb if installed, or spark.")]


class Format(StrEnum):
    """How rows are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@value
class ReadOptions:
    """The options of `calve read`."""

    output: Format = Format.TABLE
    limit: int | None = None
    explain: bool = False
    where: str | None = None


@value
class PageOptions:
    """Where to serve the page, and who may see it."""

    host: str
    port: int
    token: str | None = field(default=None, repr=False)


@value
class ChangeSpan:
    """The options of `calve read --changes`."""

    since: str | None = None
    until: str | None = None
    every_step: bool = False
    before: bool = False
    sink: str | None = None
