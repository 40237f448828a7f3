"""What tasks leave that die without a word, as those do whose executor is lost."""

import os

from pyspark import TaskContext

from calve.storage.state import LocalState


class DyingState(LocalState):
    """A folder. The process of a task that puts a record into it ends as soon as the record is there."""

    def put_new(self, name: str, data: bytes) -> None:
        super().put_new(name, data)
        if TaskContext.get() is not None:
            os._exit(1)
