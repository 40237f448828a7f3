import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from calve.errors import InvalidInput, TerminalError, TransientError
from calve.storage.listing import FileListing, absolute, check_there, spark_options


def names(location: str | Path, root: Path) -> list[str]:
    found = FileListing.of(absolute(location)).files()
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
        ("x/nothing*", []),
    ],
)
def test_a_location_is_a_folder_a_file_or_a_pattern(tree: Path, location: str, expected: list[str]) -> None:
    assert names(f"{tree}/{location}", tree) == expected


@pytest.mark.parametrize("start", ["", "file://"])
@pytest.mark.parametrize("end", ["", "/", "/*.json", "/**/x"])
def test_a_folder_that_is_missing_is_named_with_the_one_that_was_meant(tree: Path, start: str, end: str) -> None:
    (tree / "orders").mkdir()
    for check in (check_there, lambda location: FileListing.of(location).files()):
        with pytest.raises(TransientError, match=f"the folder {tree}/ordres did not exist") as raised:
            check(f"{start}{tree}/ordres{end}")
        assert raised.value.detail == f'{tree} does not contain "ordres".'
        assert raised.value.hint == 'Did you mean "orders"?'
    with pytest.raises(TransientError) as raised:
        check_there(f"{tree}/zz/orders")
    assert raised.value.hint == "Correct the path, or create the folder."


def test_a_folder_is_found_by_every_way_to_write_its_uri(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    for start in ("file://", "file:"):
        check_there(f"{start}{tmp_path}/a%20b")
        check_there(f"{start}{tmp_path}/a%20b/*.json")
        with pytest.raises(TransientError, match=r"the folder .*/a b/c did not exist"):
            check_there(f"{start}{tmp_path}/a%20b/c")


def test_stores_have_no_folders_that_could_be_missing() -> None:
    check_there("s3://bucket/nothing")


def test_a_uri_lists_the_same_files(tree: Path) -> None:
    assert names(f"file://{tree}/x", tree) == ["x/c.json", "x/y/d.json"]
    assert names(f"file://{tree}/**/*.json", tree) == names(f"{tree}/**/*.json", tree)


def test_a_pattern_remembers_its_folder_and_not_itself(tree: Path) -> None:
    assert FileListing.of(f"{tree}/x/*.json").location == FileListing.of(f"{tree}/x/**").location == f"{tree}/x"


def test_sizes_say_what_is_gone(tree: Path) -> None:
    assert FileListing.of(str(tree)).sizes([f"{tree}/a.json", f"{tree}/gone", f"{tree}/x"]) == [1, None, None]


def test_spark_gets_names_and_no_patterns(tree: Path) -> None:
    assert FileListing.of(str(tree)).for_spark("/in/[a]*{b}?.json") == "file:///in/\\[a\\]\\*\\{b\\}\\?.json"


@pytest.mark.parametrize(
    ("location", "base", "path", "wanted"),
    [
        ("hdfs://name:8020/in", "/in", "/in/a/[1].json", "hdfs://name:8020/in/a/\\[1\\].json"),
        ("hdfs:///in", "/in", "/in/a.json", "hdfs:///in/a.json"),
        (
            "abfss://box@acme.dfs.core.windows.net/in",
            "box/in",
            "box/in/a.json",
            "abfss://box@acme.dfs.core.windows.net/in/a.json",
        ),
        (
            "abfss://:secret@acme.blob.core.windows.net/box/in",
            "box/in",
            "box/in/a.json",
            "abfss://box@acme.blob.core.windows.net/in/a.json",
        ),
        ("abfs://box/in", "box/in", "box/in/a.json", "abfs://box/in/a.json"),
        ("s3://key:secret@bucket/in", "bucket/in", "bucket/in/a.json", "s3a://bucket/in/a.json"),
        ("gs://bucket/in", "bucket/in", "bucket/in/a.json", "gs://bucket/in/a.json"),
    ],
)
def test_spark_is_told_the_host_of_a_file_and_no_login(
    location: str, base: str, path: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow opens each location as it documents; the stores themselves are not here."""
    opened = SimpleNamespace(from_uri=lambda _uri: (fs.LocalFileSystem(), base))
    monkeypatch.setattr("calve.storage.listing.fs.FileSystem", opened)
    listing = FileListing.of(location)
    assert listing.for_spark(path) == wanted
    if "[" not in path:
        assert path in listing.named_by_spark(wanted)


def test_a_store_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cannot be opened"):
        FileListing.of("nfs5://somewhere/in")


LOOPS = {
    "itself": ("loop", "."),
    "a folder above": ("x/y/loop", "../.."),
    "the folder above": ("x/loop", ".."),
    "a folder beside": ("z", "x"),
    "a link to itself": ("z", "z"),
    "nothing": ("z", "nowhere"),
    "a file that is listed": ("z.json", "x/c.json"),
    "a file below a hidden link": (".z", "x"),
}


@pytest.mark.parametrize("link", LOOPS.values(), ids=LOOPS)
def test_a_link_into_the_tree_does_not_multiply_its_files(tree: Path, link: tuple[str, str]) -> None:
    before = names(tree, tree)
    (tree / link[0]).symlink_to(link[1])
    assert names(tree, tree) == before


def test_a_link_above_the_listed_folder_does_not_lead_into_it_again(tree: Path) -> None:
    (tree / "x" / "up").symlink_to("..")
    assert names(tree / "x", tree) == ["x/c.json", "x/up/a.json", "x/up/b.csv", "x/y/d.json"]


def test_a_link_out_of_the_tree_is_followed_once(tree: Path) -> None:
    outside = tree.with_name(f"{tree.name}-outside")
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "k.json").touch()
    (outside / "deep" / "back").symlink_to(outside)
    (outside / "again").symlink_to("deep")
    (tree / "x" / "there").symlink_to(outside)
    (tree / "x" / "to").symlink_to(outside)
    (tree / "k2.json").symlink_to(outside / "deep" / "k.json")
    assert names(tree / "x", tree) == ["x/c.json", "x/there/deep/k.json", "x/y/d.json"]
    assert "k2.json" not in names(tree, tree)
    (tree / "x" / "there").unlink()
    assert "x/to/deep/k.json" in names(tree, tree)


def test_a_link_to_what_is_hidden_is_followed(tree: Path) -> None:
    (tree / "now").symlink_to("x/.part")
    (tree / "g.json").symlink_to("g.json.tmp")
    assert set(names(tree, tree)) >= {"now/f.json", "g.json"}


def test_what_is_no_file_is_left_alone(tree: Path) -> None:
    os.mkfifo(tree / "pipe.json")
    (tree / "gone.json").symlink_to("nowhere")
    (tree / "self.json").symlink_to("self.json")
    assert names(tree, tree) == ["a.json", "b.csv", "x/c.json", "x/y/d.json"]


def test_a_name_that_is_not_utf_8_is_named(tree: Path) -> None:
    odd = os.fsencode(tree) + b"/\xff\xfe.json"
    Path(os.fsdecode(odd)).touch()
    with pytest.raises(TerminalError, match="the name of a file is not valid UTF-8") as raised:
        names(tree, tree)
    assert raised.value.detail == f"It is {odd!r}."
    Path(os.fsdecode(odd)).rename(os.fsdecode(os.fsencode(tree) + b"/.\xff.json"))
    assert "a.json" in names(tree, tree)


def test_a_path_that_spark_takes_for_a_pattern_and_cannot_escape_is_named(tree: Path) -> None:
    odd = tree / "[x]" / "10:30.json"
    odd.parent.mkdir()
    odd.touch()
    with pytest.raises(TerminalError, match=r"contains a colon and one of the characters") as raised:
        names(tree, tree)
    assert raised.value.detail == f"It is '{odd}'."


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, unique=True))
def test_any_names_are_listed_or_one_of_them_is_named(given_names: list[bytes]) -> None:
    usable = [name.translate(None, b"\0/") for name in given_names]
    usable = [name for name in usable if name not in {b"", b".", b".."}]
    with tempfile.TemporaryDirectory() as folder:
        for name in usable:
            Path(os.fsdecode(os.path.join(os.fsencode(folder), name))).touch()  # noqa: PTH118 - bytes
        shown = {name for name in usable if not name.startswith((b"_", b".")) and not name.endswith(b"~")}
        odd = [name for name in shown if not _is_utf_8(name)]
        if any(b":" in name and set(name) & set(b"[]{}*?\\") for name in shown):
            with pytest.raises(TerminalError):
                FileListing.of(folder).files()
        elif odd:
            with pytest.raises(TerminalError, match="not valid UTF-8") as raised:
                FileListing.of(folder).files()
            assert any(repr(name)[2:-1] in raised.value.detail for name in odd)
        else:
            assert {os.fsencode(Path(file.path).name) for file in FileListing.of(folder).files()} == shown


def _is_utf_8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_only_names_with_a_colon_are_read_without_checksums() -> None:
    assert spark_options(["file:///in/a.json", "file:///x:y/b.json"]) == {}
    assert "fs.file.impl" in spark_options(["file:///in/a.json", "file:///in/10:30.json"])
