"""A metastore and a tree of files beside it."""

from pathlib import Path

import pytest

from calve.metastore.tables import open_tables
from tests.unit.analyze.trees import Tables, put_tree
from tests.unit.metastore.sample import metastore_at


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return open_tables(metastore_at(tmp_path / "home"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put_tree(tmp_path / "in")
    return tmp_path / "in"
