"""`calve serve`, and the page of `calve run --serve`. The packages of the extra `web` are imported here alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from calve import metrics
from calve.cli.options import PageOptions
from calve.clock import SystemClock
from calve.errors import InvalidInput
from calve.model.health import Status
from calve.watch.status_files import read_statuses

if TYPE_CHECKING:
    from calve.web.server import PageServer


def run_page(console: Console, home: Path, options: PageOptions) -> None:
    """Serve the page of a home until Ctrl-C or SIGTERM. Raises InvalidInput, TransientError."""
    server = home_server(home, options)
    console.print(f"{server.url} shows the sinks of {home}; Ctrl-C ends it", soft_wrap=True)
    server.serve()


def home_server(home: Path, options: PageOptions) -> "PageServer":
    """The server of a home's page, with the metrics of all its sinks. Raises InvalidInput, TransientError."""
    registry = CollectorRegistry()
    registry.register(metrics.StatusCollector(lambda: read_statuses(home), SystemClock().now_ms))
    return _server(home, options, lambda: read_statuses(home), registry)


@contextmanager
def page_beside(console: Console, home: Path, options: PageOptions | None) -> Iterator[None]:
    """Serve the page of a process that runs sinks, if there are options for it."""
    if options is None:
        yield
        return
    server = _server(home, options, lambda: _statuses_of_process(home), metrics.REGISTRY)
    console.print(f"{server.url} shows the sinks", soft_wrap=True)
    with server.serving():
        yield


def _server(
    home: Path, options: PageOptions, statuses: Callable[[], list[Status]], registry: CollectorRegistry
) -> "PageServer":
    try:
        from calve.web.access import PageAccess
        from calve.web.app import page_app
        from calve.web.home import HomeView
        from calve.web.server import PageServer
    except ModuleNotFoundError as error:
        raise InvalidInput(
            "the packages of the page are missing",
            detail=f"{error}.",
            hint='Install them with pip install "calve[web]".',
        ) from error
    access = PageAccess(options.host, options.token)
    app = page_app(HomeView(home, statuses), lambda: generate_latest(registry).decode(), access)
    return PageServer(app, access, options.port)


def _statuses_of_process(home: Path) -> list[Status]:
    """The statuses of a home's sinks: those that this process runs as they are now, others as last written."""
    return read_statuses(home, running={status.sink: status for status in metrics.LIVE() if status.health.active})
