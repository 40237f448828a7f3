"""The examples in docstrings of the Python interface run as they are written."""

import doctest
from types import ModuleType

import pytest

import calve
import calve.lake
import calve.model.health
import calve.model.instants
import calve.pipeline.sink


@pytest.mark.parametrize(
    "module", [calve.lake, calve.model.health, calve.model.instants, calve.pipeline.sink], ids=lambda m: m.__name__
)
def test_examples_in_docstrings_do_what_they_show(module: ModuleType) -> None:
    flags = doctest.IGNORE_EXCEPTION_DETAIL | doctest.ELLIPSIS
    found = doctest.testmod(module, extraglobs={"calve": calve}, optionflags=flags)
    assert found.attempted
    assert not found.failed
