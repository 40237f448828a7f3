"""Events for OpenLineage, one per commit; needs the extra `calve[openlineage]`.

The client of OpenLineage sends them, to an address or a file, as its own variables and its configuration say
(`OPENLINEAGE_URL`, `OPENLINEAGE_CONFIG`). A thread sends; if it cannot keep up, events are dropped and counted in the
log: no commit waits for lineage.
"""

import logging
import os
import queue
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version as version_of

from calve.errors import InvalidInput
from calve.model.health import CommitReport, Status
from calve.watch.commits import listening

try:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import (
        dataset_version_dataset,
        job_type_job,
        output_statistics_output_dataset,
        processing_engine_run,
    )
except ImportError as error:
    raise InvalidInput("OpenLineage is not installed", hint='pip install "calve[openlineage]"') from error

_log = logging.getLogger("calve")

VERSION = version_of("calve")
PRODUCER = f"urn:calve:{VERSION}"
WAITING = 1_000
"""Events that may wait to be sent."""
CLOSING_SECONDS = 10.0
"""How long the end of a process waits for them."""
_RUNS = uuid.UUID("0c7a1b0e-7f7c-5b43-9d0a-63616c766532")


def event_of(status: Status, report: CommitReport, namespace: str) -> RunEvent:
    """The event of a commit: a complete run that read the source and wrote a version of the table."""
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=report.rows, size=report.bytes, fileCount=report.files
    )
    version = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(report.snapshot_id))
    output = OutputDataset(
        namespace, status.table, facets={"version": version}, outputFacets={"outputStatistics": statistics}
    )
    engine = processing_engine_run.ProcessingEngineRunFacet(version=VERSION, name="calve")
    kind = job_type_job.JobTypeJobFacet(processingType="STREAMING", integration="CALVE", jobType="SINK")
    return RunEvent(
        eventType=RunState.COMPLETE,
        eventTime=datetime.fromtimestamp(report.at_ms / 1000, UTC).isoformat(),
        run=Run(str(uuid.uuid5(_RUNS, f"{status.sink}\0{report.snapshot_id}")), {"processing_engine": engine}),
        job=Job(namespace, status.sink, {"jobType": kind}),
        producer=PRODUCER,
        inputs=[InputDataset(namespace, status.source_name)] if status.source_name else [],
        outputs=[output],
    )


@contextmanager
def emit_lineage(client: OpenLineageClient | None = None) -> Iterator[None]:
    """Send an event after every commit of this process, until the end of the block."""
    sender = _Sender(client or OpenLineageClient(), os.environ.get("OPENLINEAGE_NAMESPACE", "calve"))
    with listening(sender.put):
        try:
            yield
        finally:
            sender.close()


class _Sender:
    """The thread that sends."""

    def __init__(self, client: OpenLineageClient, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._waiting: queue.Queue[tuple[Status, CommitReport] | None] = queue.Queue(WAITING)
        self._dropped = 0
        self._thread = threading.Thread(target=self._main, name="calve-lineage", daemon=True)
        self._thread.start()

    def put(self, status: Status, report: CommitReport) -> None:
        try:
            self._waiting.put_nowait((status, report))
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Send what waits; a server that does not answer holds the process back for a while only."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=CLOSING_SECONDS)
            self._thread.join(CLOSING_SECONDS)
        dropped = self._dropped + (self._waiting.qsize() if self._thread.is_alive() else 0)
        if dropped:
            _log.warning("%d lineage events were dropped: they could not be sent fast enough", dropped)

    def _main(self) -> None:
        while (item := self._waiting.get()) is not None:
            try:
                self._client.emit(event_of(*item, self._namespace))
            except Exception as error:  # noqa: BLE001 - lineage is a report: nothing else depends on it
                _log.warning("a lineage event of sink %s could not be sent: %s", item[0].sink, error)
