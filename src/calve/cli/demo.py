"""`calve demo`: a change stream into an Iceberg table, its snapshots, and an independent check of the rows.

DuckDB reads the table with its own code, and plain Python computes the reference from the generator's definition.
Neither shares code with the path of the rows.
"""

import tempfile
import time
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import calve
from calve.cli.show import styled
from calve.errors import CalveError, InvalidInput
from calve.lake import Lake
from calve.pipeline.query import Query, exit_code
from calve.source.generator import TABLE_COLUMNS, OrderRow, Orders, expected_orders

TABLE = "demo.orders"
CHECKPOINTS = 8


@dataclass(frozen=True)
class Demo:
    """One run of the demo."""

    console: Console
    definition: Orders
    quiet: bool

    @property
    def total(self) -> int:
        """The number of all changes."""
        return self.definition.rows + (self.definition.changes or 0)


def run_demo(console: Console, *, home: Path | None, rows: int, updates: int, quiet: bool) -> int:
    """Run the demo; the exit code is 0 if the table is correct."""
    per_checkpoint = -(-(rows + updates) // CHECKPOINTS)
    definition = calve.orders(rows=rows, changes=updates, per_checkpoint=per_checkpoint)
    demo = Demo(console, definition, quiet)
    began = time.monotonic()
    if home is not None:
        code = _run(demo, home.absolute())
        where = f"The table {TABLE} stays in {home.absolute()}."
    else:
        with tempfile.TemporaryDirectory(prefix="calve-demo-", ignore_cleanup_errors=True) as folder:
            code = _run(demo, Path(folder))
        where = "The table was temporary; --home keeps it."
    console.print(f"\n{where} {time.monotonic() - began:.0f} s in all.", soft_wrap=True)
    return code


def _run(demo: Demo, home: Path) -> int:
    console, definition = demo.console, demo.definition
    console.print(
        styled(
            ("calve demo", "bold"),
            f": {definition.rows:,} orders are inserted, then {definition.changes or 0:,} changes "
            "(90 % updates, 5 % inserts, 5 % deletes) are applied by key.",
        )
    )
    lake = calve.connect(home=home)
    query = _stream(demo, lake)
    if query.failure is not None:
        if isinstance(query.failure, CalveError):
            raise query.failure
        return exit_code(query)
    _show_commits(console, query)
    location = lake.open().load_table(TABLE).metadata_location
    return 0 if _compare(demo, location) else 1


def _stream(demo: Demo, lake: Lake) -> Query:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} changes"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=demo.console, disable=demo.quiet, transient=True) as progress:
        task = progress.add_task("starting Spark", total=demo.total)
        lake.spark()
        progress.update(task, description="writing")
        query = calve.sink(demo.definition, name="demo", into=lake.table(TABLE), key=["id"]).start()
        if not query.active and not query.recent_commits():
            raise InvalidInput(
                "the demo has already run in this folder", detail=f"{lake.home}", hint="Choose another --home, or none."
            )
        while query.active:
            progress.update(task, completed=sum(c.changes for c in query.recent_commits()))
            time.sleep(0.1)
    return query


def _show_commits(console: Console, query: Query) -> None:
    table = Table(title="\nSnapshots", title_justify="left", box=None, pad_edge=False)
    for heading in ("snapshot", "changes", "rows written", "keys deleted", "files", "MB", "commit ms"):
        table.add_column(heading, justify="right")
    for commit in query.recent_commits():
        table.add_row(
            str(commit.snapshot_id),
            f"{commit.changes:,}",
            f"{commit.rows:,}",
            f"{commit.deletes:,}",
            str(commit.files),
            f"{commit.bytes / 1e6:.1f}",
            f"{commit.seconds * 1000:.0f}",
        )
    console.print(table)


def _compare(demo: Demo, location: str) -> bool:
    console = demo.console
    if find_spec("duckdb_extension_iceberg") is None:
        missing = ' DuckDB\'s Iceberg extension is not installed (pip install "calve[demo]").'
        console.print(styled(("\nNot compared:", "yellow"), missing), soft_wrap=True)
        return True
    found = _duckdb_rows(location)
    first = Table(title="\nFirst rows, read by DuckDB", title_justify="left", box=None, pad_edge=False)
    for heading in TABLE_COLUMNS:
        first.add_column(heading)
    for row in sorted(found)[:5]:
        first.add_row(*(str(value) for value in row))
    console.print(first)
    expected = expected_orders(demo.definition, demo.total)
    table: dict[int, OrderRow] = {row[0]: row for row in found}
    if len(found) == len(table) and table == expected:
        console.print(
            styled(
                ("\nRight:", "bold green"),
                f" DuckDB reads {len(found):,} rows, all equal to the reference, no key twice.",
            )
        )
        return True
    wrong = {k for k in table.keys() | expected.keys() if table.get(k) != expected.get(k)}
    console.print(
        styled(
            ("\nWrong:", "bold red"),
            f" DuckDB reads {len(found):,} rows, the reference has {len(expected):,}; "
            f"{len(wrong):,} keys differ, among them {sorted(wrong)[:5]}.",
        )
    )
    return False


def _duckdb_rows(location: str) -> list[Any]:
    import duckdb

    with duckdb.connect(":memory:") as connection:
        for name in (
            "avro",
            "iceberg",
        ):  # from the packages of PyPI: nothing is installed in the user's home
            package = Path(str(files(f"duckdb_extension_{name}")))
            connection.load_extension(
                str(package / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension")
            )
        connection.execute("SET TimeZone = 'UTC'")
        return connection.table_function("iceberg_scan", [location]).project(", ".join(TABLE_COLUMNS)).fetchall()
