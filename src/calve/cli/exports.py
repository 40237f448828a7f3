"""Where the metrics of a run go: an endpoint for Prometheus, a file for node_exporter, OpenTelemetry."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import start_http_server, write_to_textfile

from calve.cli.repeating import repeating
from calve.errors import InvalidInput
from calve.metrics import REGISTRY

_log = logging.getLogger("calve")

LOOPBACK = "127.0.0.1"
FILE_SECONDS = 15.0
"""Seconds between two writes of the file."""


@dataclass(frozen=True)
class Exports:
    """What the user asked for."""

    port: int | None = None
    address: str = LOOPBACK
    file: Path | None = None
    otel: bool = False
    lineage: bool = False


@contextmanager
def serve_metrics(address: str, port: int) -> Iterator[str]:
    """Serve the metrics of this process over HTTP; yields the address. Port 0 takes a free one."""
    try:
        server, thread = start_http_server(port, addr=address, registry=REGISTRY)
    except (OSError, OverflowError) as error:
        raise InvalidInput(
            f"cannot serve metrics at {address}:{port}", detail=f"{error}.", hint="Choose another --metrics-port."
        ) from error
    try:
        host = f"[{address}]" if ":" in address else address
        yield f"http://{host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def write_metrics(file: Path, every: float = FILE_SECONDS) -> Iterator[None]:
    """Write the metrics of this process to a file, at intervals and at the end. It is replaced atomically."""
    if file.suffix != ".prom":
        raise InvalidInput(
            f'the metrics file "{file}" does not end in .prom', hint="node_exporter reads no other files."
        )
    _write(file, required=True)
    try:
        with repeating(lambda: _write(file), every, "calve-metrics"):
            yield
    finally:
        _write(file)


def _write(file: Path, *, required: bool = False) -> None:
    try:
        write_to_textfile(str(file), REGISTRY)
    except OSError as error:
        if required:
            raise InvalidInput(f'cannot write the metrics file "{file}"', detail=f"{error}.") from error
        _log.warning("the metrics file could not be written: %s", error)
