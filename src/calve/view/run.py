"""A view in a running sink: turns the changes of its input into its own, checkpoint by checkpoint."""

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from calve.errors import InvalidInput
from calve.model.change import BEFORE
from calve.model.checkpoint import UNKNOWN, CheckpointIdentity, Offsets, SizeHint
from calve.spark.failures import failure_of
from calve.storage.state import StateFolder, StateStore
from calve.view.aggregate import group_changes
from calve.view.plan import Resolve, ViewPlan
from calve.view.rows import row_changes
from calve.view.scope import ViewScope
from calve.view.totals import TotalsLimits, ViewTotals


class View:
    """A checked view, opened in a session. Not thread-safe."""

    def __init__(
        self,
        spark: SparkSession,
        plan: ViewPlan,
        *,
        state: StateStore | None = None,
        resolve: Resolve | None = None,
        limits: TotalsLimits | None = None,
    ) -> None:
        """`state` is where the sink keeps its state; stateful views need it."""
        if plan.stateful and state is None:
            raise InvalidInput(f'view "{plan.name}" keeps totals, but has no state location')
        self.plan = plan
        self._scope = ViewScope(spark, plan.source, plan.queries, resolve)
        self._totals = (
            ViewTotals(StateFolder(state, f"view/{plan.definition}"), plan.name, limits=limits, spark=spark)
            if plan.stateful and state
            else None
        )

    def changes(
        self, frame: DataFrame, identity: CheckpointIdentity, *, size: SizeHint = UNKNOWN, epoch: int = 0
    ) -> DataFrame:
        """Compute the view's changes from those of one checkpoint; with `plan.needs_before`, they must have BEFORE.

        A stateful view computes and stores its totals here, under the epoch of the run; any other view only plans.
        `size` is that of the checkpoint, as far as it is known. Raises TransientError if a retry may succeed.
        """
        if self.plan.needs_before and BEFORE not in frame.columns:
            raise InvalidInput(f'view "{self.plan.name}" needs the old rows, but the changes do not contain them')
        try:
            if self._totals is not None:
                return group_changes(self._scope, self.plan, frame, self._totals, identity, size=size, epoch=epoch)
            return row_changes(self._scope, self.plan, frame)
        except (PySparkException, Py4JError) as error:
            raise failure_of(error, f'view "{self.plan.name}" could not be computed') from error

    def committed(self, offsets: Offsets, *, epoch: int = 0) -> None:
        """Note that everything before these offsets is committed, so that totals of earlier positions may be merged."""
        if self._totals is not None:
            self._totals.committed(offsets, epoch=epoch)

    def close(self) -> None:
        """Give the memory of the totals back: the run has ended."""
        if self._totals is not None:
            self._totals.close()
