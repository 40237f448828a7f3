"""A stream of changes as a Python data source of Spark 4: no jar, offsets in Spark's checkpoint.

Spark starts a Python process for each query, which asks the reader for offsets and tasks; executors read the tasks. The
definition, with the credentials of the catalog, goes to that process only, inside the pickled class: options would show
in plans. Executors get a reader without it, and tasks with the credentials of files.

`latestOffset` has no arguments, as in Spark 4.0 and 4.1; later versions call it like that, too. Spark calls
`partitions` with an empty range to tell where a restarted query is.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from calve.clock import SystemClock
from calve.reader.worker import failing_in_task
from calve.source.table_stream import BEGINNING, ChangeStream, ChangeStreamDefinition, Offset, StreamTask


class TaskPartition(InputPartition):
    """A task; its text shows nothing of it, since it contains credentials."""

    def __init__(self, task: StreamTask) -> None:
        super().__init__(None)
        self.task = task

    def __repr__(self) -> str:
        return "TaskPartition()"


class TaskReader(DataSourceStreamReader):
    """What executors get."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of a task."""
        if not isinstance(partition, TaskPartition):
            raise TypeError("not a partition of this source")
        with failing_in_task():
            yield from partition.task.read()


class ChangeReader(TaskReader):
    """What the process of a query gets. Follows the table from the first call on."""

    def __init__(self, definition: ChangeStreamDefinition) -> None:
        self._definition = definition
        self._opened: ChangeStream | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return TaskReader, ()

    @property
    def _stream(self) -> ChangeStream:
        if self._opened is None:
            self._opened = self._definition.open(SystemClock())
        return self._opened

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Nothing was read."""
        return BEGINNING

    def latestOffset(self) -> Offset:  # type: ignore[override, unused-ignore]  # noqa: N802 - as in Spark 4.0
        """How far the next batch can read."""
        return self._stream.latest()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        return [TaskPartition(task) for task in self._stream.plan(start, end)]

    def commit(self, end: Offset) -> None:
        """Let the consumer's tag follow."""
        self._stream.commit(end)

    def stop(self) -> None:
        """Close the catalog."""
        if self._opened is not None:
            self._opened.close()


def data_source(name: str, definition: ChangeStreamDefinition, schema: StructType) -> type[DataSource]:
    """The class of a source, to be registered. Pickled by value, with all that it reads."""

    class CalveChanges(DataSource):
        """A stream of changes of one table."""

        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> StructType:
            return schema

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
            del schema
            return ChangeReader(definition)

    return CalveChanges
