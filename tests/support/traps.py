"""Code that the properties of a hostile table refer to; it records that it was called."""

from typing import Any

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.locations import SimpleLocationProvider

SPRUNG: list[str] = []
"""Names of the traps that were called."""


class HostileIO(PyArrowFileIO):
    """A FileIO that would work."""

    def __init__(self, *arguments: Any) -> None:
        SPRUNG.append("io")
        super().__init__(*arguments)


class HostileLocations(SimpleLocationProvider):
    """A location provider that would work."""

    def __init__(self, *arguments: Any) -> None:
        SPRUNG.append("locations")
        super().__init__(*arguments)


def hostile_retries() -> None:
    """Stands in for a retry strategy."""
    SPRUNG.append("retries")


def hostile_login(**_settings: Any) -> None:
    """Stands in for an AuthManager."""
    SPRUNG.append("login")


PROPERTIES = {
    "py-io-impl": "tests.support.traps.HostileIO",
    "write.py-location-provider.impl": "tests.support.traps.HostileLocations",
    "s3.retry-strategy-impl": "tests.support.traps.hostile_retries",
    "s3.endpoint": "http://elsewhere.invalid:1",
    "s3.access-key-id": "theirs",
    "s3.proxy-uri": "http://elsewhere.invalid:2",
    "client.region": "elsewhere",
    "gcs.service.host": "http://elsewhere.invalid:3",
    "adls.account-host": "elsewhere.invalid",
    "hdfs.host": "elsewhere.invalid",
    "rest.sigv4-enabled": "true",
    "DEFAULT_SCHEME": "hdfs",
    "calve.no-local-files": "true",
}
"""Of a table whose owner wants more than a table."""
