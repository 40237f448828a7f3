"""Refuses changes of a definition that would reinterpret staged rows with event times.

The time column, the key and the envelope at the time of staging determined where such a row belongs in time. Under
different ones it could be late, or come before rows that it followed, so the change has to wait until they are closed.
"""

from collections.abc import Sequence
from typing import Any

from calve.commit.journal import RunRecords
from calve.commit.takeover import is_staged
from calve.errors import InvalidInput
from calve.model.checkpoint import CheckpointEntry, RowKind
from calve.model.frontier import START, Frontier


def check_waiting(staged: Sequence[CheckpointEntry], now: RowKind, sink: str) -> None:
    """Raise InvalidInput if a sink that stages rows of kind `now` cannot close the rows that are staged."""
    for entry in staged:
        kind = entry.staged.kind if entry.staged and entry.staged.rows else None
        if kind is None:
            continue
        fixed = kind.fixed if entry.timed else {"MODE": kind.fixed["MODE"]}
        changed = {name: value for name, value in fixed.items() if now.fixed[name] != value}
        if changed:
            raise _refusal(sink, changed, entry)


def check_change(records: RunRecords | None, before: RowKind, after: RowKind, sink: str) -> None:
    """Raise InvalidInput if a definition changes how staged rows are interpreted, as far as the records show any."""
    changed = {name: value for name, value in before.fixed.items() if after.fixed[name] != value}
    entries = [*records.adoption.entries, *records.entries] if records else []
    minted = max((e.committable.batch.upper for e in entries if e.committable), default=START)
    waiting = [e for e in entries if is_staged(e) and e.timed and not Frontier(e.time) < minted]
    if changed and waiting:
        raise _refusal(sink, changed, waiting[0])


def _refusal(sink: str, former: dict[str, Any], entry: CheckpointEntry) -> InvalidInput:
    values = [f"{name} was {_text(value)}" for name, value in former.items()]
    return InvalidInput(
        f'{" and ".join(former)} of sink "{sink}" cannot change while rows wait for their time',
        detail=f"{', '.join(values)} when checkpoint {entry.identity} was staged.",
        hint="Catch up with the previous definition first: calve run --until-caught-up.",
    )


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value or "none")
