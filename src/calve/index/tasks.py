"""Takes many data files in, by Spark tasks: each reads the keys of some files and writes parts of its own.

A task that runs twice writes two sets of parts, and one of them is reported. The other is removed with everything that
no manifest names when a process begins to use the index.
"""

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyspark.sql import SparkSession

from calve.errors import TransientError
from calve.iceberg.readable import ReadTarget
from calve.index.build import KeyReader, build, file_groups, run_of
from calve.index.manifest import Run
from calve.index.parts import Entries, Part, encoded
from calve.model.scan import ScanFile
from calve.scan.positions import Remembered
from calve.spark.tasks import Tasks
from calve.state import NewRecords, StateStore


@dataclass(frozen=True)
class BuildTasks:
    """What every task has to know."""

    target: ReadTarget
    key_ids: tuple[int, ...]
    store: StateStore
    stem: str
    """Nobody else's: names of parts are derived from it."""

    def runs(self, files: Sequence[ScanFile], writer: str) -> tuple[Run, ...]:
        """Runs of some files, by this process. Raises TransientError."""
        reader = KeyReader(self.target, self.key_ids, Remembered(), threads=1)
        sequence = itertools.count()

        records = NewRecords(self.store)

        def put(entries: Entries) -> Part:
            part, data = encoded(f"{self.stem}-{writer}-{next(sequence)}", entries)
            records.put_new(part.name, data)
            return part

        with records.removed_on_failure():
            return tuple(run_of(built, put) for built in build(reader, files))

    def task(self, files: Sequence[ScanFile], attempt: str) -> tuple[Run, ...]:
        """As `runs`, of one attempt of a task."""
        return self.runs(files, attempt.replace("/", "-"))

    def discard(self, runs: Sequence[Run]) -> None:
        """Remove what a task wrote whose job failed elsewhere."""
        for run in runs:
            for part in run.parts:
                with suppress(TransientError):
                    self.store.delete(part.name)


def taken_in_by_tasks(work: BuildTasks, files: Sequence[ScanFile], spark: SparkSession) -> tuple[Run, ...]:
    """Runs of all files. Raises TransientError, TerminalError."""
    groups = list(file_groups(files, work.target, work.key_ids))
    found = Tasks("keys could not be indexed", work.discard).run(spark, groups, work.task)
    return tuple(run for runs in found for run in runs)
