"""`calve maintain`: runs maintenance jobs, shows their progress, and prints what they did."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from calve.cli.visible import visible
from calve.definitions.workplace import workplace
from calve.errors import InvalidInput
from calve.maintain.jobs import USUAL, Job, JobOptions, JobReport, MaintainedTable, Say, maintain
from calve.model.spec import RowOrder
from calve.pipeline.lakes import chosen_lake
from calve.spark.on_demand import spark_on_demand
from calve.sql.names import Identifier
from calve.sql.values import parse_duration
from calve.statements.maintenance import HEADINGS, forget, rows_of, subject_of_sink, subject_of_table
from calve.suggest import suggestion


@dataclass(frozen=True)
class MaintainOptions:
    """The options of the command, as they were written."""

    only: str = ""
    where: str = ""
    sort_by: str = ""
    dry_run: bool = False
    older_than: str = ""
    grace: str = ""
    force: bool = False
    everything: bool = False
    forget: tuple[str, ...] = ()

    @property
    def jobs(self) -> list[Job]:
        """The jobs to run."""
        return [_job(name.strip()) for name in self.only.split(",")] if self.only else list(USUAL)

    @property
    def of_jobs(self) -> JobOptions:
        """The options of the jobs."""
        return JobOptions(
            dry_run=self.dry_run,
            older_than=_age("--older-than", self.older_than),
            grace=_age("--grace", self.grace),
            force=self.force,
            everything=self.everything,
            where=self.where,
            order=RowOrder.parse(self.sort_by) if self.sort_by else None,
        )


def run_maintain(
    console: Console, home: Path, subject: str, connection: str | None, options: MaintainOptions, *, quiet: bool
) -> None:
    """Run the jobs, and print a table of what they did. Raises CalveError."""
    jobs, given = options.jobs, options.of_jobs
    place = workplace(home, spark_on_demand(home))
    chosen: MaintainedTable
    if "." in subject:
        chosen = subject_of_table(chosen_lake(home, connection).table(subject))
    else:
        chosen = subject_of_sink(place, Identifier.exact(subject))
    for sink in options.forget:
        if options.dry_run:
            console.print(f"sink {sink} would be excluded from table {chosen.table}", soft_wrap=True)
        else:
            sink_id = forget(place, chosen, sink)
            console.print(f"sink {sink_id} is excluded from table {chosen.table}", soft_wrap=True)
    reports: list[JobReport] = []
    with _shown_progress(console, len(jobs), quiet=quiet) as (say, advance):
        for report in maintain(chosen, jobs, given, say):
            reports.append(report)
            advance()
    show_reports(console, reports)


@contextmanager
def _shown_progress(console: Console, jobs: int, *, quiet: bool) -> Iterator[tuple[Say, Callable[[], None]]]:
    """A progress bar on a terminal, otherwise a line for each step; and what to call after each job."""
    if quiet:
        yield (lambda _: None), (lambda: None)
        return
    if not console.is_terminal:
        yield (lambda text: console.print(text, soft_wrap=True)), (lambda: None)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("maintenance", total=jobs)
        yield (lambda text: progress.update(task, description=visible(text))), (lambda: progress.advance(task))


def show_reports(console: Console, reports: list[JobReport]) -> None:
    """Print what the jobs did: results, then numbers, then notes."""
    for report in reports:
        console.print(f"{report.job}: {report.result}", soft_wrap=True)
        for note in report.notes:
            console.print(f"  {note}", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for number, heading in enumerate(HEADINGS[:-1]):
        table.add_column(heading, justify="right" if number else "left")
    for row in rows_of(reports).rows:
        if row[0]:
            table.add_row(*row[:-1])
    console.print()
    console.print(table)


def _job(name: str) -> Job:
    try:
        return Job(name)
    except ValueError:
        jobs = ", ".join(Job)
        raise InvalidInput(
            f'unknown maintenance job "{name}"', hint=suggestion(name, list(Job)) or f"Jobs are {jobs}."
        ) from None


def _age(option: str, text: str) -> timedelta | None:
    if not text:
        return None
    try:
        return parse_duration(text)
    except InvalidInput as error:
        raise InvalidInput(
            f"{option} is not a duration", detail=f'Got "{text}".', hint="Write 7d, 12h or 30m."
        ) from error
