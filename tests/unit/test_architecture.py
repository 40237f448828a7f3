"""Ideas that have one home: who may send commits, who may remove files, who reads digits, what a class is called."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src/calve"

SENDS = {
    "append",
    "commit_table",
    "commit_tables",
    "commit_transaction",
    "expire_snapshots",
    "manage_snapshots",
    "transaction",
    "update_schema",
    "update_spec",
    "upsert",
}
"""Methods of catalogs and tables that commit. `append` and `upsert` count where something called a table has them."""

REMOVES = {"delete_dir", "delete_dir_contents", "delete_file", "delete_root_dir_contents", "rmtree", "unlink"}
"""Methods that remove files, besides `delete` of a FileIO."""

REMOVERS = {
    "catalog/discard.py": "files of tables, for all others",
    "definitions/vault.py": "secrets",
    "pipeline/spark_feed.py": "a checkpoint directory of Spark that could not be completed",
    "watch/status_files.py": "the status of a sink that was dropped",
    "storage/part_files.py": "what killed processes left half written, in the state location and the home",
    "storage/state.py": "the state location",
    "write/native_writer.py": "the folder of one of Spark's own writes, which is not part of a table",
}


@cache
def modules() -> dict[str, ast.Module]:
    """Calve's code by file."""
    return {str(path.relative_to(SOURCES)): ast.parse(path.read_text()) for path in sorted(SOURCES.rglob("*.py"))}


@cache
def all_calls() -> list[tuple[str, ast.Call]]:
    """Every call in calve's code, with its file."""
    return [(file, node) for file, code in modules().items() for node in ast.walk(code) if isinstance(node, ast.Call)]


def calls() -> Iterator[tuple[str, int, ast.Attribute]]:
    """Every call of a method: the file, the line, and what is called."""
    for file, node in all_calls():
        if isinstance(node.func, ast.Attribute):
            yield file, node.lineno, node.func


def sends(called: ast.Attribute) -> bool:
    if called.attr in {"append", "upsert"}:
        return receiver(called) == "table"
    return called.attr in SENDS and ast.unparse(called.value) != "super()"


def removes(called: ast.Attribute) -> bool:
    if called.attr == "delete":
        return receiver(called) in {"io", "file_io"}
    return called.attr in REMOVES


def receiver(called: ast.Attribute) -> str:
    """The last name of what has the method: `io` in `self._table.io.delete`."""
    return ast.unparse(called.value).rpartition(".")[2].lstrip("_")


def test_the_name_of_a_class_has_one_meaning() -> None:
    """A name without an underscore is known beyond its module."""
    places: dict[str, list[str]] = {}
    for file, code in modules().items():
        for node in code.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(file)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_commits_are_sent_by_one_module_alone() -> None:
    """It knows what became of them. Others call `send`."""
    found = [f"{file}:{line}" for file, line, called in calls() if sends(called)]
    assert {place.partition(":")[0] for place in found} == {"catalog/outcome.py"}, found


def test_files_of_tables_are_removed_by_one_module_alone() -> None:
    """It logs what and why. Others call `discard`."""
    found = [f"{file}:{line}" for file, line, called in calls() if removes(called)]
    assert {place.partition(":")[0] for place in found} == set(REMOVERS), found


def test_digits_in_text_of_others_are_read_by_one_module_alone() -> None:
    """`isdigit` accepts what `int` refuses: others call `whole_number`."""
    found = [f"{file}:{line}" for file, line, called in calls() if called.attr in {"isdigit", "isnumeric"}]
    assert {place.partition(":")[0] for place in found} == {
        "model/numbers.py",
        "infer/folders.py",  # whether the title of a column looks like a name: nothing is converted
    }, found


def test_frames_of_rows_are_made_by_one_module_alone() -> None:
    """Spark converts rows of Python in workers of RDDs, whose daemon is another one. Others call `frame_of_rows`."""
    found = [
        f"{file}:{node.lineno}"
        for file, node in all_calls()
        if isinstance(node.func, ast.Attribute) and node.func.attr == "createDataFrame"
        if ast.unparse(node.args[0]) != "[]"
    ]
    assert {place.partition(":")[0] for place in found} == {"spark/version.py"}, found


def test_a_conflict_is_raised_by_those_who_know_that_nothing_was_applied() -> None:
    """Everybody else would have files removed by guessing."""
    raising = {
        file for file, node in all_calls() if isinstance(node.func, ast.Name) and node.func.id == "CommitConflict"
    }
    assert raising == {
        "catalog/outcome.py",  # the answer of a catalog
        "iceberg/snapshot/holds.py",  # a snapshot that is gone: nothing was sent
        "maintain/compact.py",  # plans that came to nothing: none was sent
        "maintain/convert.py",  # the same
        "maintain/manifests.py",  # the same
        "metastore/modify.py",  # an expected version that is gone, attempts that all met others
    }
