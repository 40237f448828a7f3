"""A catalog and a store, both behind proxies in this process. Tests share them, and use separate namespaces."""

import uuid
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from tests.support.servers.catalog import RestCatalogServer
from tests.support.servers.proxy import Check, Proxy
from tests.support.servers.store import KEY, REGION, SECRET, S3Store

BUCKET = "warehouse"


@dataclass(frozen=True)
class Lakehouse:
    """What clients see are the proxies; faults of one test are taken away by `calm`."""

    store: S3Store
    catalog: RestCatalogServer
    catalog_proxy: Proxy

    @property
    def properties(self) -> dict[str, str]:
        """How pyiceberg reaches both, for `calve.connect`."""
        return {
            "type": "rest",
            "uri": self.catalog_proxy.uri,
            "s3.endpoint": self.store.uri,
            "client.region": REGION,
            "client.access-key-id": KEY,
            "client.secret-access-key": SECRET,
        }

    @property
    def duckdb(self) -> dict[str, str]:
        """Options of DuckDB's secret."""
        endpoint = self.store.uri.removeprefix("http://")
        options = {"ENDPOINT": endpoint, "URL_STYLE": "path", "USE_SSL": "false", "REGION": REGION}
        return options | {"KEY_ID": KEY, "SECRET": SECRET}

    @property
    def spark(self) -> dict[str, str]:
        """Properties of Spark's catalog with the Iceberg runtime."""
        return {
            "type": "rest",
            "uri": self.catalog.uri,
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "s3.endpoint": self.store.uri,
            "s3.path-style-access": "true",
            "s3.access-key-id": KEY,
            "s3.secret-access-key": SECRET,
            "client.region": REGION,
        }

    def guarded(self, check: Check) -> Proxy:
        """Another door to the catalog, which asks for a login."""
        return Proxy(self.catalog.uri, check)

    def calm(self) -> None:
        """No faults, and nothing seen."""
        signatures = self.store.signatures
        signatures.expired, signatures.skew, signatures.session_tokens = False, timedelta(), frozenset({""})
        signatures.issued.clear()
        for proxy in (self.store.proxy, self.catalog_proxy):
            proxy.faults.clear()
            proxy.seen.clear()

    def stop(self) -> None:
        """End all of it."""
        for part in (self.catalog_proxy, self.catalog, self.store):
            part.stop()


def started(folder: Path) -> Lakehouse:
    """All servers; both JVMs start at the same time."""
    store = S3Store(folder)
    catalog = RestCatalogServer(folder, store.uri, f"s3://{BUCKET}/tables")
    lakehouse = Lakehouse(store, catalog, Proxy(catalog.uri))
    try:
        store.await_answer()
        store.make_bucket(BUCKET)
        catalog.await_answer()
    except BaseException:
        lakehouse.stop()
        raise
    return lakehouse


def new_namespace() -> str:
    """A namespace that no other test has."""
    return f"shop_{uuid.uuid4().hex[:8]}"
