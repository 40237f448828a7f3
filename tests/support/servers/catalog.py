"""Iceberg's own REST catalog for tests: tables in SQLite, files in S3. A proxy in front of it checks logins."""

from pathlib import Path

from tests.support.servers.java import JavaServer, free_port
from tests.support.servers.store import KEY, REGION, SECRET


class RestCatalogServer:
    """The catalog of one warehouse in a store."""

    def __init__(self, folder: Path, store_uri: str, warehouse: str) -> None:
        port = free_port()
        environment = {
            "CATALOG_REST_PORT": str(port),
            "CATALOG_WAREHOUSE": warehouse,
            "CATALOG_URI": f"jdbc:sqlite:{folder}/rest.db?journal_mode=WAL&busy_timeout=20000",
            "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
            "CATALOG_S3_ENDPOINT": store_uri,
            "CATALOG_S3_PATH__STYLE__ACCESS": "true",
            "CATALOG_S3_CHUNKED__ENCODING__ENABLED": "false",  # S3Proxy does not know the newest form of it
            "CATALOG_S3_ACCESS__KEY__ID": KEY,
            "CATALOG_S3_SECRET__ACCESS__KEY": SECRET,
            "CATALOG_CLIENT_REGION": REGION,
        }
        arguments = ["org.apache.iceberg.rest.RESTCatalogServer"]
        self._server = JavaServer("rest-catalog", arguments, port, folder, environment)
        self.uri = self._server.uri

    def await_answer(self) -> None:
        """Wait until it answers."""
        self._server.await_answer("/v1/config")

    def stop(self) -> None:
        """End it."""
        self._server.stop()
