"""`calve sql`: statements from the command line, from a file, or at a prompt (`prompt.py`)."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from calve.cli.options import Format
from calve.definitions.workplace import Workplace, workplace
from calve.errors import InvalidInput
from calve.model.engine import Engine
from calve.spark.on_demand import spark_on_demand
from calve.sql.parser import parse
from calve.sql.statements import SelectQuery, Statement
from calve.statements.answers import Outcome, PlainRows, QueryAnswer, RowsAnswer, TextAnswer, TypedRows
from calve.statements.execute import execute

if TYPE_CHECKING:
    from calve.cli.rows import PrintedRows

MOST_ROWS = 1_000
"""Rows of a query that are shown in a table."""


def run_sql(
    console: Console, home: Path, *, text: str | None, file: Path | None, output: Format, engine: Engine
) -> int:
    """Execute statements and print their results."""
    place = workplace(home, spark_on_demand(home))
    if text is not None and file is not None:
        raise InvalidInput("statements and --file exclude each other")
    if text is None and file is None and sys.stdin.isatty():
        from calve.cli.prompt import run_prompt

        return run_prompt(console, place, engine)
    for statement in parse(text if text is not None else _read(file)):
        show_outcome(console, answer(place, statement, engine), output)
    return 0


def answer(place: Workplace, statement: Statement, engine: Engine) -> Outcome:
    """Execute a statement; a query with this engine."""
    if isinstance(statement, SelectQuery):
        from calve.statements.select import select

        return select(place, statement, engine)
    return execute(place, statement)


def _read(file: Path | None) -> str:
    if file is None or str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f'cannot read "{file}"', detail=f"{error}.") from error


def show_outcome(console: Console, outcome: Outcome, output: Format = Format.TABLE) -> None:
    """Print the result of a statement."""
    match outcome:
        case TextAnswer(text):
            console.print(text, soft_wrap=True)
        case QueryAnswer(found):
            from calve.cli.rows import print_rows

            rows = _printed(found)
            print_rows(rows, output, None, console, table_limit=MOST_ROWS, more="LIMIT or --format shows others")
        case RowsAnswer() if output is not Format.TABLE:
            from calve.cli.rows import print_rows, rows_of_texts

            print_rows(rows_of_texts(outcome), output, None, console)
        case RowsAnswer(headings, rows):
            table = Table(box=None, pad_edge=False)
            for heading in headings:
                table.add_column(heading)
            for row in rows:
                table.add_row(*row)
            console.print(table)


def _printed(found: TypedRows | PlainRows) -> "PrintedRows":
    if isinstance(found, PlainRows):
        from calve.cli.rows import PrintedPlainRows

        return PrintedPlainRows(found)
    from calve.cli.read import ArrowRows

    return ArrowRows(found)
