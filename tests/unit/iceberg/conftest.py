from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.iceberg.sample import Sample


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[Sample]:
    table = Sample(tmp_path / "home")
    yield table
    table.close()
