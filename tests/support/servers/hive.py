"""Hive's metastore: a catalog of tables in Derby, which speaks Thrift.

It creates its lock tables only in test mode, in which it refuses the lock requests of current clients: so it is started
twice.
"""

import socket
import time
from pathlib import Path
from typing import Self

from pyiceberg.catalog.hive import _HiveClient  # with all calls of the metastore, not those of a catalog alone

from tests.support.servers.java import START_SECONDS, JavaServer, free_port, jars_of

_SETTINGS = {
    "javax.jdo.option.ConnectionURL": "jdbc:derby:;databaseName={folder}/metastore;create=true",
    "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
    "datanucleus.schema.autoCreateAll": "true",
    "metastore.schema.verification": "false",
    "hive.in.test": "{preparing}",
    "metastore.client.capability.check": "false",
    "metastore.warehouse.dir": "file://{folder}/warehouse",
    "metastore.thrift.bind.host": "127.0.0.1",
    "metastore.task.threads.always": "org.apache.hadoop.hive.metastore.events.EventCleanerTask",
    "metastore.expression.proxy": "org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy",
}
_PROPERTY = "<property><name>{}</name><value>{}</value></property>"
_OPENED = ("java.net", "java.lang", "java.util", "java.util.concurrent.atomic")


class HiveMetastore:
    """One metastore."""

    def __init__(self, folder: Path, *, preparing: bool = False) -> None:
        self._port, settings = free_port(), folder / "conf"
        settings.mkdir(exist_ok=True)
        (folder / "warehouse").mkdir(exist_ok=True)
        values = {"folder": folder, "preparing": str(preparing).lower()}
        named = [_PROPERTY.format(name, value.format(**values)) for name, value in _SETTINGS.items()]
        (settings / "metastore-site.xml").write_text(f"<configuration>{''.join(named)}</configuration>")
        opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
        classes = ["-cp", f"{settings}:{jars_of('hive-metastore')}/*"]
        arguments = [*opened, *classes, "org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(self._port)]
        self._server = JavaServer("hive-metastore", arguments, self._port, folder, {})
        self.uri = f"thrift://127.0.0.1:{self._port}"
        self.warehouse = f"file://{folder}/warehouse"

    @classmethod
    def prepared(cls, folder: Path) -> Self:
        """One with all its tables, which takes connections."""
        first = cls(folder, preparing=True)
        try:
            first.await_answer()
            with _HiveClient(first.uri) as client:
                client.get_open_txns()
        finally:
            first.stop()
        server = cls(folder)
        server.await_answer()
        return server

    def await_answer(self) -> None:
        """Wait until it takes connections."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=5).close()
            except OSError:
                if time.monotonic() > deadline or not self._server.alive:
                    self.stop()
                    raise
                time.sleep(0.1)
            else:
                return

    def stop(self) -> None:
        """End it."""
        self._server.stop()
