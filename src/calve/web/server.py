"""Serves the page: as a command of its own, or in a thread of a process that runs sinks."""

import logging
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from calve.errors import InvalidInput, TransientError
from calve.web.access import Access
from calve.web.app import PageApp

_log = logging.getLogger("calve")

_GRACE_SECONDS = 2
"""Seconds that open connections get at the end; streams of events end at once."""


class PageServer:
    """One listening socket, from now until `close`."""

    def __init__(self, app: PageApp, access: Access, port: int) -> None:
        self._socket = _listening(access.host, port)
        self.port: int = self._socket.getsockname()[1]
        host = f"[{access.host}]" if ":" in access.host else access.host
        self.url = f"http://{host}:{self.port}/"
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,  # a link with the token must not be logged
            server_header=False,
            proxy_headers=False,
            ws="none",
            loop="asyncio",
            http="h11",
            lifespan="off",
            limit_concurrency=200,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        self._server = _Server(config, app)

    def serve(self) -> None:
        """Serve until Ctrl-C or SIGTERM; both are a normal end."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _ignore)  # the server handles them, and repeats them at its end
        self._server.run([self._socket])

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve in a thread, while the block runs. A failure of the page does not affect the block."""
        thread = threading.Thread(target=self._main, name="calve-page", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._server.should_exit = True
            thread.join(_GRACE_SECONDS + 3)
            self._socket.close()

    def _main(self) -> None:
        try:
            self._server.run([self._socket])
        except Exception:  # noqa: BLE001 - the sinks go on without the page
            _log.exception("the page ended")


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing."""


class _Server(uvicorn.Server):
    """Ends the streams of events first: they would keep it alive."""

    def __init__(self, config: uvicorn.Config, app: PageApp) -> None:
        super().__init__(config)
        self._page = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._page.close()
        await super().shutdown(sockets)


def _listening(host: str, port: int) -> socket.socket:
    """Raises InvalidInput if the address does not exist here, TransientError if the port is in use."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InvalidInput(f'"{host}" is not an address of this machine', detail=f"{error}.") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise TransientError(
            f"the page could not listen on {host}, port {port}",
            detail=f"{error}.",
            hint="Choose another --port, or end the process that uses it.",
        ) from error
    return listener
