"""Writes small batches: collects them on the driver as Arrow, unless they are there already, with a few threads.

A shuffle and a Python task cost several tenths of a second before any work is done; `toArrow` of a small frame does
not. The driver's share is bounded: by rows if the size is unknown, and always by `spark.driver.maxResultSize`.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from calve.model.files import WriteResult, WriteTarget, WrittenFile
from calve.spark.version import collected
from calve.write.consolidate import last_places, upserts
from calve.write.data_files import FileNames, data_files, key_files, partitioner_for
from calve.write.job import BatchTooLarge, ChangeColumns, WriteJob

_THREADS = 2
_PIECE_PARTITIONS = 16
_PIECES = 8
"""Rows of so many partitions or more are divided: to create a file takes longer than to write a few rows."""
_RESULT_LIMIT = "spark.driver.maxResultSize"


@dataclass(frozen=True)
class DriverWriter:
    """Writes batches of at most `max_rows` rows; None if the size is known, since a limit adds a shuffle."""

    max_rows: int | None

    def write(self, job: WriteJob) -> WriteResult:
        with job.timed("collect"):
            changes = self._collect(job)
        return write_rows(changes, job.layout, job.target, job.batch_id, deletes=job.deletes)

    def _collect(self, job: WriteJob) -> pa.Table:
        frame = job.frame if self.max_rows is None else job.frame.limit(self.max_rows + 1)
        changes = collect_within_limit(frame)
        if self.max_rows is not None and changes.num_rows > self.max_rows:
            raise BatchTooLarge
        return changes


def collect_within_limit(frame: DataFrame) -> pa.Table:
    """Collect the rows of a frame. Raises BatchTooLarge if they are more than Spark lets the driver have."""
    try:
        return collected(frame)
    except (PySparkException, Py4JError) as error:
        if _RESULT_LIMIT in str(error):
            raise BatchTooLarge from error
        raise


def write_rows(
    changes: pa.Table, layout: ChangeColumns, target: WriteTarget, batch_id: str, *, deletes: bool, parts: int = 1
) -> WriteResult:
    """Write the last change of each key of checked changes, in `parts` by key, each with files of its own."""
    names = FileNames(target, batch_id, "driver")
    last = last_places(changes, layout.key_names, layout.order) if layout.key else None
    rows = changes.num_rows if last is None else len(last)
    step = max(1, -(-rows // parts))

    def part(start: int) -> pa.Table:
        return changes.slice(start, step) if last is None else changes.take(last.slice(start, step))

    threads = max(_PIECES if target.data_spec_json else _THREADS, os.cpu_count() or 1)
    with names.removed_on_failure(), ThreadPoolExecutor(threads) as pool:
        taken = list(pool.map(part, range(0, rows, step)))
        keys = [pool.submit(_write_keys, rows, target, names) for rows in taken if deletes]
        pieces = [piece for clustered in pool.map(lambda rows: _clustered(rows, target), taken) for piece in clustered]
        data = [pool.submit(_write_data, piece, target, names) for piece in pieces]
        return WriteResult(tuple(file for job in (*data, *keys) for file in job.result()), changes.num_rows)


def _clustered(part: pa.Table, target: WriteTarget) -> list[pa.Table]:
    """The rows to write, by partition; of many partitions in several pieces, which are written at the same time."""
    partitioner, kept = partitioner_for(target), upserts(part)
    if partitioner is None:
        return [kept]
    return partitioner.pieces(partitioner.clustered(kept), _PIECE_PARTITIONS, _PIECES)


def _write_data(part: pa.Table, target: WriteTarget, names: FileNames) -> tuple[WrittenFile, ...]:
    with data_files(target, names) as out:
        out.write(part)
    return out.files


def _write_keys(part: pa.Table, target: WriteTarget, names: FileNames) -> tuple[WrittenFile, ...]:
    with key_files(target, names) as out:
        out.write(part)
    return out.files
