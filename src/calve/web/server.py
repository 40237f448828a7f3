"""Serves the page: as a command of its own, or in a thread of a process that runs sinks."""

import asyncio
import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from calve.errors import InvalidInput, TransientError
from calve.web.access import PageAccess
from calve.web.app import PageApp

_log = logging.getLogger("calve")

_GRACE_SECONDS = 2
"""Seconds that open connections get at the end; streams of events end at once."""
REQUEST_SECONDS = 10.0
"""Seconds that a client may take to send a request, from its connection or its first byte on."""
READ_SECONDS = 30.0
"""Seconds that a client may leave a response unread once the buffers are full."""
MOST_CONNECTIONS = 200


class PageServer:
    """One listening socket, from now until `close`."""

    def __init__(self, app: PageApp, access: PageAccess, port: int) -> None:
        self._socket = _listening(access, port)
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
            http=BoundedConnection,
            lifespan="off",
            limit_concurrency=MOST_CONNECTIONS,
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


class _Deadline:
    """Ends a connection unless it is met in time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def set(self, transport: asyncio.Transport) -> None:
        """Start the time, unless it runs."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, transport.abort)

    def met(self) -> None:
        """Stop the time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BoundedConnection(H11Protocol):
    """A connection that ends if its client neither sends a request nor reads a response in time.

    There may be only so many connections: a few clients that do nothing must not keep out all others. Between two
    requests the server itself closes idle ones.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in its base
        self._request, self._read = _Deadline(REQUEST_SECONDS), _Deadline(READ_SECONDS)
        super().connection_made(transport)
        self._request.set(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._answering:
            self._request.met()
        else:
            self._request.set(self.transport)  # a part of a request; more parts give no more time

    @property
    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request, whatever its type says
        return cycle is not None and not cycle.response_complete

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read.set(self.transport)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read.met()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request.met()
        self._read.met()
        super().connection_lost(exc)


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


def _listening(access: PageAccess, port: int) -> socket.socket:
    """Raises InvalidInput if the address does not exist here, TransientError if the port is in use."""
    host = access.host
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InvalidInput(f'"{host}" is not an address of this machine', detail=f"{error}.") from error
    if access.token is None and not ipaddress.ip_address(address[0]).is_loopback:
        raise InvalidInput(f'"{host}" is the address {address[0]}, which needs a token', hint="Set CALVE_TOKEN.")
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
