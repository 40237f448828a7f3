"""What tests against the servers share."""

from collections.abc import Iterator

import pytest

from tests.support.servers.lakehouse import Lakehouse
from tests.support.servers.logins import basic
from tests.support.servers.proxy import Proxy

USER, PASSWORD = "calve", "wolfram-catalog-password"


@pytest.fixture
def door(lakehouse: Lakehouse) -> Iterator[Proxy]:
    """The catalog for one user with a password."""
    proxy = lakehouse.guarded(basic(USER, PASSWORD))
    yield proxy
    proxy.stop()
