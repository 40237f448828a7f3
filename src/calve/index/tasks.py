"""Takes many data files in, by Spark tasks: each reads the keys of some files and writes parts of its own.

A task that runs twice writes two sets of parts, and one of them is reported. The other is removed with everything that
no manifest names when a process begins to use the index.
"""

import itertools
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from calve.errors import CalveError, TransientError, decode
from calve.iceberg.readable import ReadTarget
from calve.index.build import KeyReader, build, file_groups, run_of
from calve.index.manifest import Run
from calve.index.parts import Entries, Part, encoded
from calve.model.scan import ScanFile
from calve.scan.positions import Remembered
from calve.state import StateStore

_REPORT = "report"


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

        def put(entries: Entries) -> Part:
            part, data = encoded(f"{self.stem}-{writer}-{next(sequence)}", entries)
            self.store.put_new(part.name, data)
            return part

        return tuple(run_of(built, put) for built in build(reader, files))


def taken_in_by_tasks(work: BuildTasks, files: Sequence[ScanFile], spark: SparkSession) -> tuple[Run, ...]:
    """Runs of all files. Raises TransientError."""
    groups = tuple(pickle.dumps(group) for group in file_groups(files, work.target, work.key_ids))
    numbers = spark.range(0, len(groups), 1, len(groups))
    try:
        reports = numbers.mapInArrow(partial(_build_partition, work, groups), f"{_REPORT} binary").collect()
    except (PySparkException, Py4JError) as error:
        raise decode(str(error)) or TransientError("keys could not be indexed") from error
    return tuple(run for row in reports for run in pickle.loads(row[_REPORT]))  # noqa: S301 - of our own tasks


def _build_partition(
    work: BuildTasks, groups: Sequence[bytes], numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    attempt = context.taskAttemptId() if context else 0
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            try:
                runs = work.runs(pickle.loads(groups[number]), f"{number}-{attempt}")  # noqa: S301 - of our own driver
            except CalveError as error:
                raise RuntimeError(error.encode()) from error  # Spark keeps nothing of an error but its text
            yield pa.RecordBatch.from_pydict({_REPORT: pa.array([pickle.dumps(runs)], pa.binary())})
