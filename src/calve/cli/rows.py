"""Prints rows as a table, JSON or CSV, whatever they come from. Needs no Arrow."""

import base64
import datetime as dt
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Any, Protocol, TextIO
from uuid import UUID

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from calve.cli.options import Format
from calve.cli.show import counted
from calve.statements.answers import PlainColumn, PlainRows, RowsAnswer

TABLE_LIMIT = 20
"""Default number of rows of the format `table`."""

_MAX_TEXT = 60
"""Characters of a value on a terminal."""
_NULL = Text("null", style="dim")
_SPECIAL = frozenset('",\r\n')


@dataclass(frozen=True)
class PrintedColumn:
    """A column and how its values are written; a null is written by the format."""

    name: str
    is_number: bool
    text: Callable[[Any], str]
    json: Callable[[Any], Any]


class PrintedRows(Protocol):
    """Rows that can be printed."""

    @property
    def columns(self) -> Sequence[PrintedColumn]:
        """The columns, in order."""
        ...

    def values(self, limit: int | None = None) -> Iterator[tuple[Any, ...]]:
        """The rows, at most `limit`."""
        ...


@dataclass(frozen=True)
class PrintedPlainRows:
    """Rows of plain values, with how to print them."""

    rows: PlainRows

    @property
    def columns(self) -> Sequence[PrintedColumn]:
        """The columns, in order."""
        return [PrintedColumn(one.name, one.is_number, plain_text, plain_json) for one in self.rows.columns]

    def values(self, limit: int | None = None) -> Iterator[tuple[Any, ...]]:
        """The rows, at most `limit`."""
        return self.rows.values(limit)


def rows_of_texts(answer: RowsAnswer) -> PrintedPlainRows:
    """A table of texts."""
    columns = tuple(PlainColumn(heading, is_number=False) for heading in answer.headings)
    return PrintedPlainRows(PlainRows(columns, answer.rows))


def print_rows(
    rows: PrintedRows,
    output: Format,
    limit: int | None,
    console: Console,
    *,
    table_limit: int = TABLE_LIMIT,
    more: str = "--limit shows more",
) -> None:
    """Print rows as a table, JSON or CSV."""
    if output is Format.TABLE:
        _print_table(rows, table_limit if limit is None else limit, more, console)
        return
    write = write_json if output is Format.JSON else write_csv
    try:
        write(rows, limit, sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe: discard the rest of the buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_json(rows: PrintedRows, limit: int | None, out: TextIO) -> None:
    """Write one JSON object per line."""
    columns = rows.columns
    for row in rows.values(limit):
        values = {c.name: None if v is None else c.json(v) for c, v in zip(columns, row, strict=True)}
        out.write(json.dumps(values, ensure_ascii=False) + "\n")


def write_csv(rows: PrintedRows, limit: int | None, out: TextIO) -> None:
    """Write CSV with a header; a null is an empty field, an empty text is quoted."""
    columns = rows.columns
    out.write(",".join(csv_field(column.name) for column in columns) + "\n")
    for row in rows.values(limit):
        fields = ("" if v is None else csv_field(c.text(v)) for c, v in zip(columns, row, strict=True))
        out.write(",".join(fields) + "\n")


def csv_field(text: str) -> str:
    """A text as a CSV field."""
    if text and not _SPECIAL & set(text):
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def plain_json(value: Any) -> Any:
    """A value for JSON: decimals as text, since a number would be rounded; binary in base64."""
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return plain_text(value)


def plain_text(value: Any) -> str:
    """A value as text: ISO dates, a zone for instants, base64 for binary."""
    match value:
        case bool():
            return "true" if value else "false"
        case bytes():
            return base64.b64encode(value).decode()
        case dt.datetime():
            text = value.replace(tzinfo=None).isoformat(sep=" ")
            return f"{text}Z" if value.tzinfo is not None else text
        case dt.date() | dt.time():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
        case str() | UUID():
            return str(value)
        case _:
            return repr(value) if isinstance(value, float) else str(value)


def _print_table(printed: PrintedRows, limit: int, more: str, console: Console) -> None:
    columns = printed.columns
    shown = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        shown.add_column(column.name, justify="right" if column.is_number else "left", overflow="fold")
    rows = list(islice(printed.values(limit + 1), limit + 1))
    for row in rows[:limit]:
        cells = zip(row, columns, strict=True)
        shown.add_row(*[_NULL if value is None else _short(column.text(value)) for value, column in cells])
    console.print(shown)
    count = min(len(rows), limit)
    console.print(f"the first {counted(count, 'row')}; {more}" if len(rows) > limit else counted(count, "row"))


def _short(text: str) -> str:
    text = text.replace("\n", "\\n")
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
