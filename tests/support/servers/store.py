"""S3: S3Proxy over a folder, and in front of it a proxy that checks every signature as S3 does.

S3Proxy could check them itself, but it does not support the newest form of uploads, whose checksum follows the body:
the proxy forwards only the body.
"""

from email.message import Message
from pathlib import Path

from tests.support.servers.java import JavaServer, free_port
from tests.support.servers.listening import Request
from tests.support.servers.logins import Signatures
from tests.support.servers.proxy import Proxy

KEY, SECRET, REGION = "calve-key", "wolfram-store-secret", "eu-west-3"

_OF_PIECES = frozenset({"content-encoding", "x-amz-content-sha256", "x-amz-decoded-content-length", "x-amz-trailer"})

_SETTINGS = """\
s3proxy.authorization=none
s3proxy.endpoint={uri}
s3proxy.ignore-unknown-headers=true
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir={folder}
"""
_LOGGING = """\
<configuration>
  <appender name="log" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %level %logger %msg%n</pattern></encoder>
  </appender>
  <root level="warn"><appender-ref ref="log"/></root>
</configuration>
"""


class S3Store:
    """A store with one pair of keys; buckets are made by `make_bucket`."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self._data, settings, logging = folder / "s3", folder / "s3proxy.conf", folder / "logback.xml"
        self._data.mkdir()
        uri = f"http://127.0.0.1:{port}"
        settings.write_text(_SETTINGS.format(uri=uri, folder=self._data))
        logging.write_text(_LOGGING)
        arguments = [f"-Dlogback.configurationFile={logging}", "org.gaul.s3proxy.Main", "--properties", str(settings)]
        self._server = JavaServer("s3", arguments, port, folder, {})
        self.signatures = Signatures(KEY, SECRET, REGION, "s3")
        self.proxy = Proxy(self._server.uri, self.signatures.in_xml, unwrapped)
        self.uri = self.proxy.uri

    def await_answer(self) -> None:
        """Wait until it answers."""
        self._server.await_answer("/")

    def make_bucket(self, name: str) -> None:
        """A new bucket: a folder, for this server."""
        (self._data / name).mkdir()

    def stop(self) -> None:
        """End it."""
        self.proxy.stop()
        self._server.stop()


def unwrapped(request: Request) -> Request:
    """An upload in pieces, each after its length and the last before a checksum, as one body."""
    if "aws-chunked" not in request.header("Content-Encoding"):
        return request
    whole, at = b"", 0
    while True:
        end = request.body.index(b"\r\n", at)
        size = int(request.body[at:end].split(b";")[0], 16)
        if not size:
            break
        whole += request.body[end + 2 : end + 2 + size]
        at = end + size + 4
    headers: Message[str, str] = Message()
    for name, value in request.headers.items():
        if name.lower() not in _OF_PIECES:
            headers[name] = value
    return Request(request.method, request.path, headers, whole)
