from typing import Any, cast

import pytest

from calve.spark.executors import warn_of_local_place


class Session:
    """All that is asked of a session here: its master."""

    def __init__(self, master: str) -> None:
        self.sparkContext = self
        self.master = master


@pytest.mark.parametrize(
    ("master", "location", "warned"),
    [
        ("spark://host:7077", "file:///data/in", True),
        ("yarn", "/data/in", True),
        ("spark://host:7077", "s3://bucket/in", False),
        ("local[*]", "/data/in", False),
    ],
)
def test_a_folder_of_one_machine_is_warned_of_on_a_cluster(
    master: str, location: str, caplog: pytest.LogCaptureFixture, *, warned: bool
) -> None:
    warn_of_local_place(cast("Any", Session(master)), 'the input of sink "s"', location)
    assert ("every machine must see that folder at the same path" in caplog.text) is warned
