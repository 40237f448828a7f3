from pathlib import Path

import pytest

from calve.catalog.connect import location_of
from calve.iceberg.files.store import absent, file_sizes, io_properties_of, open_input, open_output

NAMES = ["plain", "a b", "p%20q", "%", "h#sh", "q?m", "ümläut", "all ü %20#?+&é"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_written_where_its_location_says(tmp_path: Path, name: str) -> None:
    location = f"{location_of(tmp_path / name)}/data/file.bin"
    with open_output(location, {}) as sink:
        sink.write(b"content")
    assert (tmp_path / name / "data" / "file.bin").read_bytes() == b"content"
    with open_input(location, {}) as source:
        assert source.read() == b"content"
    assert file_sizes([location], {}) == {location: 7}


def test_files_that_are_not_there_are_named_in_order(tmp_path: Path) -> None:
    locations = [f"{location_of(tmp_path)}/{number}" for number in range(40)]
    for number in range(0, 40, 2):
        (tmp_path / str(number)).touch()
    assert absent(locations, {}) == tuple(locations[1::2])
    assert absent([], {}) == ()


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert absent([location_of(tmp_path)], {}) == (location_of(tmp_path),)


def test_executors_get_the_credentials_of_the_store_and_not_those_of_the_catalog() -> None:
    properties = {
        "s3.endpoint": "http://host",
        "s3.secret-access-key": "x",
        "token": "t",
        "credential": "c",
        "uri": "u",
    }
    assert io_properties_of(properties) == {"s3.endpoint": "http://host", "s3.secret-access-key": "x"}
