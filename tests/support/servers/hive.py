"""Hive's metastore: a catalog of tables in Derby, which speaks Thrift."""

import socket
import time
from pathlib import Path

from tests.support.servers.java import START_SECONDS, JavaServer, free_port, jars_of

_SETTINGS = {
    "javax.jdo.option.ConnectionURL": "jdbc:derby:;databaseName={folder}/metastore;create=true",
    "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
    "datanucleus.schema.autoCreateAll": "true",
    "metastore.schema.verification": "false",
    "hive.in.test": "true",  # it makes the tables of its locks by itself then
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

    def __init__(self, folder: Path) -> None:
        self._port, settings = free_port(), folder / "conf"
        settings.mkdir()
        (folder / "warehouse").mkdir()
        named = [_PROPERTY.format(name, value.format(folder=folder)) for name, value in _SETTINGS.items()]
        (settings / "metastore-site.xml").write_text(f"<configuration>{''.join(named)}</configuration>")
        opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
        classes = ["-cp", f"{settings}:{jars_of('hive-metastore')}/*"]
        arguments = [*opened, *classes, "org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(self._port)]
        self._server = JavaServer("hive-metastore", arguments, self._port, folder, {})
        self.uri = f"thrift://127.0.0.1:{self._port}"
        self.warehouse = f"file://{folder}/warehouse"

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
