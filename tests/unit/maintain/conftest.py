"""Tables that are maintained, and what others do to them meanwhile."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calve import faults
from tests.support.foreign import ForeignTable
from tests.support.regions import table_of_regions


@pytest.fixture
def table(tmp_path: Path) -> Iterator[ForeignTable]:
    made = table_of_regions(tmp_path)
    yield made
    made.close()


@pytest.fixture
def at_maintenance() -> Iterator[Any]:
    yield lambda act: faults.install(lambda point: act() if point == "maintain.before" else None)
    faults.install(None)
