"""`calve letters SINK --replay`: applies dead letters of a defined sink again."""

from datetime import datetime

from calve.definitions.workplace import Workplace
from calve.model.letters import ReplayReport
from calve.pipeline.build import sink_of
from calve.pipeline.monitor import report_paused
from calve.plan.lookup import required
from calve.plan.sinks import plan_sink
from calve.sql.names import Identifier
from calve.sql.statements import ObjectKind


def replay_letters(
    place: Workplace,
    sink: str,
    *,
    reason: str = "",
    since: datetime | str | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> ReplayReport:
    """Apply dead letters of a sink again, see `Sink.replay_letters`; Spark is started. Raises CalveError."""
    definitions = place.definitions()
    found = required(definitions, Identifier.exact(sink), ObjectKind.SINK)
    plan = plan_sink(found, definitions)
    place.spark()
    made = sink_of(place.home, plan, definitions, place.vault)
    try:
        return made.replay_letters(state=plan.state, reason=reason, since=since, force=force, dry_run=dry_run)
    finally:
        if found.standing.paused:
            report_paused(place.home, found.name)
