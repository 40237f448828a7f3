"""Writes docs/metrics.md from the declarations of metrics: `python scripts/metrics_page.py [--check]`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from pages import finish

from calve.metrics import EVENTS, LABELS, STATES, labels_of

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
HEAD = """# Metrics

Every metric has the label `sink`. How to get them: [operations](operations.md#metrics). Counters of Prometheus end in
`_total`, a histogram has `_bucket`, `_sum` and `_count`. A value that is unknown is left out.

`make docs` generates this page.
"""
STATE_HEAD = """## States

Read from the status of a sink whenever somebody asks. Counters count since the sink was created, so they continue after
a restart.
"""
EVENT_HEAD = """## Events

Counted by the process that runs the sink, from its start; `calve run` exports them.
"""
LABEL_HEAD = """## Labels

All values of every label but `sink`:
"""


def page() -> str:
    """The whole page."""
    states = [
        (m.name, "counter" if m.counter else "gauge", ", ".join(f"`{label}`" for label in m.labels), m.help)
        for m in STATES
    ]
    events = [
        (m._name, m._type, ", ".join(f"`{label}`" for label in labels_of(m)[1:]), m._documentation)  # noqa: SLF001
        for m in EVENTS
    ]
    labels = [(name, ", ".join(f"`{value}`" for value in values)) for name, values in LABELS.items()]
    return "\n".join(
        [
            HEAD,
            STATE_HEAD,
            *_table(("metric", "kind", "labels", "meaning"), states),
            EVENT_HEAD,
            *_table(("metric", "kind", "labels", "meaning"), events),
            LABEL_HEAD,
            *_table(("label", "values"), labels),
        ]
    )


def _table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    lines += [f"| `{row[0]}` | {' | '.join(row[1:])} |" for row in rows]
    return [*lines, ""]


if __name__ == "__main__":
    sys.exit(finish(PAGE, page()))
