"""An HTTP server in this process: requests and responses are values; one thread and one request per connection."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Request:
    """What a client sent."""

    method: str
    path: str
    """With the query."""
    headers: "Message[str, str]" = field(repr=False)
    body: bytes = field(repr=False)

    def header(self, name: str) -> str:
        """The value of a header; empty when it was not sent."""
        return str(self.headers.get(name, ""))


@dataclass(frozen=True)
class Answer:
    """What a client gets; `reset` gives it nothing but the end of the connection."""

    status: int
    body: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    reset: bool = False

    @classmethod
    def of_json(cls, status: int, body: Any, **headers: str) -> Self:
        return cls(status, json.dumps(body).encode(), {"Content-Type": "application/json", **headers})


Handle = Callable[[Request], Answer]


class Listening:
    """A server at a loopback port, a free one unless told, from now until `stop`."""

    def __init__(self, handle: Handle, port: int = 0) -> None:
        self._server = _Server(handle, port)
        self.uri = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answer: Handle, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.answer = answer


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"
    protocol_version = "HTTP/1.1"
    timeout = 120

    def parse_request(self) -> bool:
        known = super().parse_request()
        if known:
            self._serve()
            self.close_connection = True
        return False

    def _serve(self) -> None:
        chunked = self.headers.get("Transfer-Encoding", "").lower() == "chunked"
        body = self._chunks() if chunked else self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.server.answer(Request(self.command, self.path, self.headers, body))
        if answer.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return
        self.send_response_only(answer.status)
        for name, value in {"Date": self.date_time_string(), **answer.headers}.items():
            self.send_header(name, value)
        if "Content-Length" not in answer.headers:
            self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _chunks(self) -> bytes:
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return found

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            self.close_connection = True  # the client has gone

    def finish(self) -> None:
        try:
            super().finish()
        except OSError:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """The tests keep their own log."""
