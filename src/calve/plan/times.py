"""Which time the rows of a sink have, as its options and its source say."""

from datetime import timedelta

from calve.model.relation import SourcePlan
from calve.model.spec import Diff, LateRows, RowTimes
from calve.plan.settings import Given

_OF_TIMES = ("WATERMARK DELAY", "IDLE TIMEOUT", "LATE ROWS")


def planned_times(given: Given, source: SourcePlan, *, append: bool) -> RowTimes | None:
    """None where rows have the time of their checkpoint."""
    envelope, column = source.envelope, given.name("TIME COLUMN")
    if isinstance(envelope, Diff):
        if column:
            raise given.error("TIME COLUMN", "the envelope DIFF names its time itself", "Leave it out.")
        if envelope.progress and "WATERMARK DELAY" in given:
            raise given.error("WATERMARK DELAY", "progress rows say which times are complete", "Leave it out.")
    elif column is None:
        for name in _OF_TIMES:
            if name in given:
                raise given.error(name, f"{name} is for rows with a time of their own", "Give a TIME COLUMN, too.")
        return None
    known = next((c.name for c in source.relation.columns or () if column and column.matches(c.name)), None)
    idle = given.duration("IDLE TIMEOUT")
    return RowTimes(
        late=LateRows(given.text("LATE ROWS") or (LateRows.ADVANCE if append else LateRows.ERROR)),
        field=known or (column.name if column else None),
        by_progress=isinstance(envelope, Diff) and envelope.progress is not None,
        delay_ms=_millis(given.duration("WATERMARK DELAY") or timedelta(0)),
        idle_ms=None if idle is None else _millis(idle),
    )


def _millis(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)
