"""What Spark's streaming engine says of a query while it runs: whether it waits for data, and what it left behind.

Spark 3.5 tells offsets as parsed JSON, Spark 4 as text. Sources that do not report their latest offset say nothing.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

_WAITING = ("Waiting for data to arrive", "Waiting for next trigger")


def waits_for_data(status: Mapping[str, Any]) -> bool:
    """Whether the sources were asked and had nothing; False while they are being asked."""
    return not status["isDataAvailable"] and str(status["message"]).startswith(_WAITING)


def unread_of(sources: Iterable[Mapping[str, Any]]) -> int | None:
    """How much the sources had beside a batch: offsets of Kafka, else 1 for something; None where one does not say."""
    total = 0
    for source in sources:
        end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
        if latest is None:
            return None
        total += _ahead(end, latest)
    return total


def _ahead(end: Any, latest: Any) -> int:
    if end == latest:
        return 0
    try:
        return sum(
            max(0, offset - end.get(topic, {}).get(partition, 0))
            for topic, partitions in latest.items()
            for partition, offset in partitions.items()
        )
    except (AttributeError, TypeError):  # not of Kafka's kind
        return 1


def _offset(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value in {"", "None", "null"}:
        return None
    try:
        return json.loads(value)
    except ValueError:
        return value
