from collections.abc import Iterator
from pathlib import Path

import pytest

from calve.metastore.component import Component
from calve.metastore.metastore import Metastore
from calve.metastore.tables import TableUnit, open_tables
from tests.unit.metastore.sample import metastore_at


@pytest.fixture
def metastore(tmp_path: Path) -> Iterator[Metastore]:
    with metastore_at(tmp_path) as opened:
        yield opened


@pytest.fixture
def tables(metastore: Metastore) -> Component[TableUnit]:
    return open_tables(metastore)
