from pathlib import Path

import pytest

from calve.errors import InvalidInput
from calve.listing import Listing, absolute


def names(location: str | Path, root: Path) -> list[str]:
    found = Listing.of(absolute(location)).files()
    return sorted(str(Path(f.path).relative_to(root)) for f in found)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a.json", "b.csv", "x/c.json", "x/y/d.json", "_log/e.json", "x/.part/f.json", "g.json.tmp", "h~"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    return tmp_path


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("", ["a.json", "b.csv", "x/c.json", "x/y/d.json"]),
        ("*.json", ["a.json"]),
        ("*", ["a.json", "b.csv"]),
        ("*/*.json", ["x/c.json"]),
        ("**/*.json", ["a.json", "x/c.json", "x/y/d.json"]),
        ("x/**", ["x/c.json", "x/y/d.json"]),
        ("x/y/../c.json", ["x/c.json"]),
        ("_log/e.json", ["_log/e.json"]),
        ("nothing", []),
        ("nothing/*.json", []),
    ],
)
def test_a_location_is_a_folder_a_file_or_a_pattern(tree: Path, location: str, expected: list[str]) -> None:
    assert names(f"{tree}/{location}", tree) == expected


def test_a_uri_lists_the_same_files(tree: Path) -> None:
    assert names(f"file://{tree}/x", tree) == ["x/c.json", "x/y/d.json"]
    assert names(f"file://{tree}/**/*.json", tree) == names(f"{tree}/**/*.json", tree)


def test_a_pattern_remembers_its_folder_and_not_itself(tree: Path) -> None:
    assert Listing.of(f"{tree}/x/*.json").location == Listing.of(f"{tree}/x/**").location == f"{tree}/x"


def test_sizes_say_what_is_gone(tree: Path) -> None:
    assert Listing.of(str(tree)).sizes([f"{tree}/a.json", f"{tree}/gone", f"{tree}/x"]) == [1, None, None]


def test_spark_gets_names_and_no_patterns(tree: Path) -> None:
    assert Listing.of(str(tree)).for_spark("/in/[a]*{b}?.json") == "file:///in/\\[a\\]\\*\\{b\\}\\?.json"


def test_a_store_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cannot be opened"):
        Listing.of("nfs5://somewhere/in")
