"""Fixtures shared by all tests."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from calve.runtime.session import embedded_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local Spark for all tests of a worker, without any Iceberg jar."""
    session = embedded_session(tmp_path_factory.mktemp("spark-home"), master="local[2]")
    yield session
    session.stop()
