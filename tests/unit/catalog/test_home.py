"""The home is the user's own, and so is a login."""

import logging
import stat
from functools import partial
from pathlib import Path

import pytest

from calve.catalog.connect import connect_embedded
from calve.catalog.properties import warn_of_open_login
from calve.definitions.workplace import workplace
from calve.errors import TransientError
from calve.lake import connect
from calve.metastore.tables import open_tables
from calve.model.health import Health
from calve.pipeline.monitor import report_start
from calve.storage.local_folders import make_private
from tests.integration.servers.test_logins import no_spark
from tests.unit.metastore.sample import metastore_at


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_whoever_makes_the_home_makes_it_for_this_user_alone(tmp_path: Path) -> None:
    connect_embedded(tmp_path / "a" / "home").close()
    report_start(tmp_path / "b" / "home", "s", Health.HALTED, "why")
    workplace(tmp_path / "c" / "home", no_spark, {})
    connect(home=tmp_path / "d" / "home").state(None, "sink")
    with metastore_at(tmp_path / "e" / "home") as metastore:
        open_tables(metastore)
    for name in ("a", "b", "c", "d", "e"):
        assert mode(tmp_path / name / "home") == 0o700


def test_a_folder_that_exists_stays_as_it_is_and_what_is_made_in_it_is_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private(tmp_path / "new" / "newer")
    make_private(tmp_path / "new" / "newer")
    assert (mode(tmp_path), mode(tmp_path / "new"), mode(tmp_path / "new" / "newer")) == (0o755, 0o700, 0o700)


@pytest.mark.parametrize(
    ("uri", "warned"),
    [
        ("http://catalog.example/api", True),
        ("http://10.0.0.8:8181", True),
        ("https://catalog.example", False),
        ("http://localhost:8181", False),
        ("http://127.0.0.1:8181", False),
        ("http://[::1]:8181", False),
        ("", False),
    ],
)
def test_a_login_without_encryption_is_warned_of_unless_it_stays_here(
    uri: str, caplog: pytest.LogCaptureFixture, *, warned: bool
) -> None:
    warn_of_open_login.cache_clear()
    with caplog.at_level(logging.WARNING, "calve"):
        warn_of_open_login(uri, "the catalog")
        warn_of_open_login(uri, "the catalog")
    assert caplog.text.count("is sent without encryption") == int(warned)


@pytest.mark.parametrize("home", ["file", "file/below/home"])
def test_a_home_that_cannot_be_a_folder_is_an_error_that_says_why(tmp_path: Path, home: str) -> None:
    (tmp_path / "file").touch()
    place = workplace(tmp_path / home, no_spark, {})
    for action in (place.definitions, partial(place.vault.keep, "u", "text"), partial(connect_embedded, place.home)):
        with pytest.raises(TransientError, match="Not a directory") as failed:
            action()
        assert "A file is where a folder is needed" in failed.value.hint
