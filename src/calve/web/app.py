"""The routes of the page, and what every response has in common: who gets it, and its security headers.

/                  the page          /api/state          all sinks       /metrics   Prometheus
/static/...        its parts         /api/sinks/NAME     one sink        /healthz   200 or 503
/login             sets the cookie   /events             live            (everything else: 404)
"""

import asyncio
import json
from collections.abc import Callable
from importlib.resources import files
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from calve.clock import Clock, SystemClock
from calve.web.access import COOKIE, PageAccess
from calve.web.events import Broadcast
from calve.web.home import HomeView

EVENTS_TYPE = "text/event-stream"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PARTS = {
    "page.js": "text/javascript; charset=utf-8",
    "format.js": "text/javascript; charset=utf-8",
    "dom.js": "text/javascript; charset=utf-8",
    "draw.js": "text/javascript; charset=utf-8",
    "views.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "vendor/uplot/uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "vendor/uplot/uPlot.min.css": "text/css; charset=utf-8",
    "vendor/uplot/LICENSE": "text/plain; charset=utf-8",
}
"""The files that are served, with their types."""
_HTML = "text/html; charset=utf-8"
_OPEN = frozenset({"/login", "/static/page.css", "/static/icon.svg"})
"""Paths that need no token: the form that asks for it."""
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
_WRONG_TOKEN_SECONDS = 0.5
"""Delay of the answer to a wrong token."""
_MOST_FORM_BYTES = 4096
FORM_SECONDS = 10.0
"""Seconds that a client may take to send a form."""

Metrics = Callable[[], str]


class AsciiJson(JSONResponse):
    """JSON with every other character escaped: texts may contain what UTF-8 does not have, such as odd file names."""

    def render(self, content: object) -> bytes:
        return json.dumps(content, allow_nan=False).encode("ascii")


def page_app(home: HomeView, metrics: Metrics, access: PageAccess, clock: Clock | None = None) -> "PageApp":
    """The application."""
    page = _Page(home, metrics, access, clock or SystemClock())
    routes = [
        Route("/", page.index),
        Route("/login", page.login_form, methods=["GET"]),
        Route("/login", page.login, methods=["POST"]),
        Route("/metrics", page.metrics),
        Route("/healthz", page.health),
        Route("/events", page.events),
        Route("/api/state", page.state),
        Route("/api/sinks/{name:path}", page.sink),
        Route("/static/{name:path}", page.static),
    ]
    return PageApp(Starlette(routes=routes), access, page)


class _Page:
    def __init__(self, home: HomeView, metrics: Metrics, access: PageAccess, clock: Clock) -> None:
        self._home, self._metrics, self._access = home, metrics, access
        self._clock = clock
        self.broadcast = Broadcast(home.state, clock)

    def close(self) -> None:
        self.broadcast.close()
        self._home.close()

    async def index(self, _request: Request) -> Response:
        return Response(_read("index.html"), media_type=_HTML)

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in PARTS:
            return PlainTextResponse("not found\n", 404)
        return Response(_read(name), headers={"Content-Type": PARTS[name], "Cache-Control": "no-cache"})

    async def state(self, _request: Request) -> Response:
        found = await asyncio.to_thread(self._home.state)
        return AsciiJson({"now_ms": self._clock.now_ms(), **found})

    async def sink(self, request: Request) -> Response:
        name, cursor = request.path_params["name"], request.query_params.get("since")
        found = await asyncio.to_thread(self._home.sink, name, cursor)
        if found is None:  # it may be new
            await asyncio.to_thread(self._home.state)
            found = await asyncio.to_thread(self._home.sink, name, cursor)
        if found is None:
            return AsciiJson({"error": f'there is no sink "{name}"'}, 404)
        return AsciiJson({"now_ms": self._clock.now_ms(), **found})

    async def metrics(self, _request: Request) -> Response:
        text = await asyncio.to_thread(self._metrics)
        return Response(text, headers={"Content-Type": METRICS_TYPE})

    async def health(self, _request: Request) -> Response:
        """200 if no sink needs attention, otherwise 503; names those that do."""
        statuses = await asyncio.to_thread(self._home.statuses)
        wrong = {status.sink: status.health.value for status in statuses if status.health.wrong}
        return AsciiJson(
            {"status": "wrong" if wrong else "ok", "sinks": len(statuses), "wrong": wrong}, 503 if wrong else 200
        )

    async def events(self, request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type=EVENTS_TYPE)
        if self.broadcast.full:
            return PlainTextResponse("too many clients listen\n", 503, {"Retry-After": "30"})
        return StreamingResponse(self.broadcast.listen(_disconnect(request)), media_type=EVENTS_TYPE)

    async def login_form(self, request: Request) -> Response:
        given = request.query_params.get("token")
        return Response(_read("login.html"), media_type=_HTML) if given is None else await self._admit(given)

    async def login(self, request: Request) -> Response:
        body = b""
        try:
            async with asyncio.timeout(FORM_SECONDS):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > _MOST_FORM_BYTES:
                        return PlainTextResponse("too long\n", 413)
        except TimeoutError:
            return PlainTextResponse("too slow\n", 408, {"Connection": "close"})
        return await self._admit(parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0])

    async def _admit(self, token: str) -> Response:
        if not self._access.is_token(token):
            await asyncio.sleep(_WRONG_TOKEN_SECONDS)
            return Response(_read("login.html").replace(b"<!--wrong-->", _WRONG), 403, media_type=_HTML)
        response = RedirectResponse("/", 303)
        response.set_cookie(COOKIE, self._access.cookie, httponly=True, samesite="strict", path="/")
        return response


_WRONG = b'<p class="wrong" role="alert">This token is not the one that the server was started with.</p>'


async def _disconnect(request: Request) -> None:
    """Wait until the client is gone: a stream that has nothing to send does not notice it."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class PageApp:
    """Refuses requests for other hosts and without a token, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, access: PageAccess, page: _Page) -> None:
        self._app, self._access, self._page = app, access, page

    @property
    def listeners(self) -> int:
        """How many clients listen to events."""
        return self._page.broadcast.listeners

    def close(self) -> None:
        """End the streams of events, so that the server can end. Called in the event loop."""
        self._page.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        await (self._app if refusal is None else refusal)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if not self._access.is_host(headers.get("host", "")):
            return PlainTextResponse("this page is served to this machine only: open it as localhost\n", 421)
        if scope["path"] in _OPEN:
            return None
        cookies = cookie_parser(headers.get("cookie", ""))
        if self._access.admits(headers.get("authorization", ""), cookies.get(COOKIE, "")):
            return None
        if scope["path"] == "/":
            return RedirectResponse("/login", 303)
        return PlainTextResponse("a token is required\n", 401, {"WWW-Authenticate": 'Bearer realm="calve"'})


def _read(name: str) -> bytes:
    return (files("calve.web") / "static").joinpath(name).read_bytes()
