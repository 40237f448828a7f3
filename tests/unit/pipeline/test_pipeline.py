"""Parts of a pipeline that need no Spark."""

from types import SimpleNamespace
from typing import Any, cast

from calve.commit.committer import Signals
from calve.model.checkpoint import UNKNOWN
from calve.model.files import NO_NEEDS
from calve.model.spec import NoEnvelope, SinkSpec, TableName
from calve.pipeline.pipeline import Pipeline

SPEC = SinkSpec("s", "sink", TableName(("n",), "t"), ("k",), NoEnvelope())


class Letters:
    """Keeps the frame of every attempt that is not released."""

    def __init__(self) -> None:
        self.kept: list[object] = []

    def release(self) -> None:
        self.kept.clear()


def test_an_attempt_that_is_repeated_keeps_the_rows_of_one_attempt_only() -> None:
    letters = Letters()
    intake = SimpleNamespace(changes=lambda *_, size, epoch, needs: letters.kept.append((size, epoch, needs)))
    run = SimpleNamespace(state=SimpleNamespace(fence=SimpleNamespace(epoch=1), waiter=Signals()))
    table = SimpleNamespace(needs=NO_NEEDS)
    around: Any = SimpleNamespace(spark=None, state=None, table=table, monitor=None, clock=None, ids=None)
    around.letters = letters
    pipeline = Pipeline(SPEC, cast("Any", intake), cast("Any", run), around)
    checkpoint: Any = SimpleNamespace(records=SimpleNamespace(frame=None), identity=None, size=UNKNOWN)
    for _ in range(5):
        pipeline._changes(checkpoint)
        assert len(letters.kept) == 1
