"""The examples in docstrings of the Python interface run as they are written."""

import doctest
from importlib import import_module

import pytest

import calve

MODULES = (
    "lake",
    "model.health",
    "model.instants",
    "model.spec",
    "pipeline.sink",
    "source.files.definition",
    "source.generator",
    "source.kafka.definition",
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_do_what_they_show(module: str) -> None:
    flags = doctest.IGNORE_EXCEPTION_DETAIL | doctest.ELLIPSIS
    found = doctest.testmod(import_module(f"calve.{module}"), extraglobs={"calve": calve}, optionflags=flags)
    assert found.attempted
    assert not found.failed
