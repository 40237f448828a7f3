"""Declarations of options: one name for SQL and Python, typed values, and no option of another object."""

from datetime import timedelta

import pytest

from calve.model.spec import Deletes
from calve.plan.catalogue import GROUPS, KAFKA, SINK, KafkaOptions, SinkOptions
from calve.sql.options import Option, Options


def test_an_option_has_the_name_of_its_declaration() -> None:
    assert (SinkOptions.COMMIT_INTERVAL.name, SinkOptions.COMMIT_INTERVAL.keyword) == (
        "COMMIT INTERVAL",
        "commit_interval",
    )
    assert SINK.find("COMMIT INTERVAL") is SinkOptions.COMMIT_INTERVAL


def test_values_have_the_declared_types() -> None:
    given = SINK.check(Options((Option("COMMIT INTERVAL", "1m 30s"), Option("DELETES", "EQUALITY"))), None)
    assert given.get(SinkOptions.COMMIT_INTERVAL) == timedelta(seconds=90)
    assert given.get(SinkOptions.DELETES) is Deletes.EQUALITY
    assert given.get(SinkOptions.RESUME) is None
    assert given.get(SinkOptions.BRANCH, "main") == "main"
    assert SinkOptions.DELETES in given
    assert list(given) == [SinkOptions.COMMIT_INTERVAL, SinkOptions.DELETES]


def test_an_option_of_another_object_cannot_be_read() -> None:
    given = SINK.check(Options(), None)
    with pytest.raises(TypeError, match="BROKER is not declared for a sink"):
        given.get(KafkaOptions.BROKER)
    with pytest.raises(TypeError, match="BRANCH is not declared for a connection to Kafka"):
        _ = SinkOptions.BRANCH in KAFKA.check(Options(), None)


def test_every_option_is_declared_once_and_documented() -> None:
    for group in GROUPS:
        names = [setting.name for setting in group.settings]
        assert len(set(names)) == len(names)
        assert all(setting.doc.endswith((".", "...")) for setting in group.settings), group.title
