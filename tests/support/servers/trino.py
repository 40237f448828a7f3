"""Trino: one node that reads tables through the REST catalog. It needs Java 24 or later.

Queries go over HTTP: a statement is sent, and its result fetched page by page.
"""

import base64
import json
import os
import re
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from calve.spark.java import _ask, _executables, known_homes
from tests.support.readers import Rows
from tests.support.servers.java import START_SECONDS, JavaServer, free_port, jars_of
from tests.support.servers.lakehouse import Lakehouse
from tests.support.servers.store import KEY, REGION, SECRET

LEAST_JAVA = 24
NO_JAVA = f"there is no Java {LEAST_JAVA} or later for Trino"
_JVM = (
    "-Xmx1g",
    "-XX:ReservedCodeCacheSize=256M",
    "-Djdk.attach.allowAttachSelf=true",
    "--add-modules=jdk.incubator.vector",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
)
_NODE = """\
coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port={port}
node.bind-ip=127.0.0.1
node.internal-address=127.0.0.1
discovery.uri=http://127.0.0.1:{port}
catalog.management=dynamic
catalog.store=memory
plugin.dir={plugins}
query.max-memory-per-node=300MB
"""
_CATALOG = f"""\
connector.name=iceberg
iceberg.catalog.type=rest
iceberg.rest-catalog.uri={{catalog}}
fs.native-s3.enabled=true
fs.hadoop.enabled=false
s3.endpoint={{store}}
s3.region={REGION}
s3.path-style-access=true
s3.aws-access-key={KEY}
s3.aws-secret-key={SECRET}
"""
_HEADERS = {"X-Trino-User": "tests", "X-Trino-Client-Capabilities": "PARAMETRIC_DATETIME"}  # microseconds, not less
_NOT_YET = frozenset({"NO_NODES_AVAILABLE", "SERVER_STARTING_UP"})


class Trino:
    """One node with one catalog, `iceberg`, and those that are created later."""

    def __init__(self, folder: Path, lakehouse: Lakehouse) -> None:
        home, port = jars_of("trino"), free_port()
        lines = _CATALOG.format(catalog=lakehouse.catalog.uri, store=lakehouse.store.uri).splitlines()
        self._catalog = dict(line.split("=", 1) for line in lines)
        settings, levels = folder / "config.properties", folder / "log.properties"
        settings.write_text(_NODE.format(port=port, plugins=home / "plugin"))
        levels.write_text("io.trino=WARN\n")
        own = {"config": settings, "log.levels-file": levels, "node.environment": "test", "node.id": uuid.uuid4()}
        own |= {"node.data-dir": folder / "data"}
        arguments = [*_JVM, *(f"-D{name}={value}" for name, value in own.items()), "io.trino.server.TrinoServer"]
        self._server = JavaServer("trino", arguments, port, folder, {}, jars=home / "lib", java=_new_java())

    def await_answer(self) -> None:
        """Wait until it reads tables: a while after it answers."""
        self._server.await_answer("/v1/info")
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.rows("SELECT count(*) AS n FROM system.runtime.nodes")
            except NotYetError:
                if time.monotonic() > deadline:
                    self.stop()
                    raise
                time.sleep(0.2)
            else:
                break
        self.create_catalog("iceberg", self._catalog)

    def rows(self, query: str) -> Rows:
        """What it answers, as plain Python values."""
        page = self._fetched(f"{self._server.uri}/v1/statement", query.encode())
        types: dict[str, str] = {}
        rows: list[list[Any]] = []
        while True:
            if "error" in page:
                kind = NotYetError if page["error"]["errorName"] in _NOT_YET else RuntimeError
                raise kind(f"Trino failed on {query}: {page['error']['message']}")
            types = types or {column["name"]: column["type"] for column in page.get("columns", ())}
            rows += page.get("data", ())
            if "nextUri" not in page:
                break
            page = self._fetched(page["nextUri"])
        return [{name: _plain(types[name], value) for name, value in zip(types, row, strict=True)} for row in rows]

    def create_catalog(self, name: str, properties: Mapping[str, str]) -> None:
        """What a properties file in `etc/catalog` does before a start."""
        others = {key: value for key, value in properties.items() if key != "connector.name"}
        given = ", ".join(f"\"{key}\" = '{value}'" for key, value in others.items())
        self.rows(f'CREATE CATALOG "{name}" USING {properties["connector.name"]} WITH ({given})')

    def table_rows(self, table: str) -> Rows:
        """The rows of a table, as `namespace.table`."""
        return self.rows(f"SELECT * FROM iceberg.{table}")

    def _fetched(self, uri: str, body: bytes | None = None) -> dict[str, Any]:
        request = urllib.request.Request(uri, body, _HEADERS)  # noqa: S310 - our own server
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own server
            found: dict[str, Any] = json.load(answer)
        return found

    def stop(self) -> None:
        """End it."""
        self._server.stop()


class NotYetError(RuntimeError):
    """It has started and does not work yet."""


def _new_java() -> Path:
    for executable in _executables(os.environ, known_homes()):
        java = _ask(executable)
        if java is not None and java.major >= LEAST_JAVA:
            return java.home
    pytest.skip(NO_JAVA)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.removesuffix(" UTC")).replace(tzinfo=UTC if text.endswith(" UTC") else None)


_TEXTS: dict[str, Callable[[str], Any]] = {
    "real": float,
    "double": float,
    "decimal": Decimal,
    "date": date.fromisoformat,
    "timestamp": _time,
    "varbinary": base64.b64decode,
}
"""Types whose values come as text, some of them or all."""


def _plain(type_: str, value: Any) -> Any:
    read = _TEXTS.get(re.split(r"[( ]", type_, maxsplit=1)[0])
    return value if read is None or value is None else read(value)


def started(folder: Path, lakehouse: Lakehouse) -> Trino:
    """A node that reads tables."""
    trino = Trino(folder, lakehouse)
    trino.await_answer()
    return trino
