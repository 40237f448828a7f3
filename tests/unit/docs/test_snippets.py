"""Every snippet of README.md, CONTRIBUTING.md and docs/ is of a kind that is checked here, and passes its check.

A new block in a language that has no check fails; so does an indented block that looks like nothing known.
"""

import ast
import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import calve
from calve.cli.main import app
from calve.definitions.workplace import workplace
from calve.sql.errors import SqlSyntaxError
from calve.sql.parser import parse
from calve.statements.reconcile import apply, plan
from tests.support.readers import ROOT
from tests.support.snippets import (
    SQL,
    Snippet,
    guessed,
    in_list,
    pages,
    shell_lines,
    snippets,
    snippets_of,
    statements,
)

ALL = snippets()
ELSEWHERE = {"docs/engines.md": "tests/unit/api/test_engines.py"}
"""Pages whose statements are of other engines: these tests run them."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
TOOLS = {"mkdir", "cat", "tar", "duckdb", "spark-submit", "spark-sql", "export", "eval", ".", "python3", "openssl"}
"""Programs that are not calve's: their commands are only split."""


def of(*languages: str) -> list[Snippet]:
    return [s for s in ALL if s.language in languages and s.page not in ELSEWHERE]


def test_every_snippet_is_of_a_kind_that_is_checked() -> None:
    known = {"sql", "python", "sh", "json", "yaml", "toml", "properties", "text", "dockerfile"}
    unknown = [f"{s}: {s.language or 'no language'}" for s in ALL if s.language not in known and not _shown_output(s)]
    assert not unknown
    assert {page for page, test in ELSEWHERE.items() if not (ROOT / test).is_file()} == set()


def _shown_output(snippet: Snippet) -> bool:
    return snippet.page == "README.md" and snippet.text.startswith("calve demo:")


def test_no_code_behind_a_list_is_shown_as_its_text() -> None:
    """Four spaces behind an item continue the item: code there needs a fence."""
    code = {"sql", "sh", "python", "json"}
    found = [f"{page.name}: {text}" for page in pages() for text in _continuing_items(page) if guessed(text) in code]
    assert not found


def _continuing_items(page: Path) -> Iterator[str]:
    lines = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE).splitlines()
    for at, line in enumerate(lines):
        if re.match(r" {4}\S", line) and not lines[at - 1] and in_list(lines, at):
            yield line.strip()


@pytest.mark.parametrize("snippet", of("sql"), ids=str)
def test_statements_can_be_parsed(snippet: Snippet) -> None:
    for statement in statements(snippet.text):
        if _is_template(statement):
            assert statement.split()[0] in SQL, statement
        else:
            parse(statement)


def _is_template(statement: str) -> bool:
    """Whether a statement leaves something out, or shows alternatives; quoted texts do not count."""
    plain = re.sub(r"'[^']*'|\"[^\"]*\"", "", statement)
    return "..." in plain or "|" in plain or "[" in plain


@pytest.mark.parametrize("snippet", [s for s in of("sql") if s.run], ids=str)
def test_complete_pipelines_can_be_created(snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = workplace(tmp_path / "home", lambda: pytest.fail("Spark is not needed"), {})
    planned = plan(place, parse(snippet.text))
    assert not planned.others
    list(apply(place, planned))


@pytest.mark.parametrize("snippet", of("python"), ids=str)
def test_python_is_valid_and_calls_what_exists(snippet: Snippet) -> None:
    if snippet.page == "docs/python.md":
        return  # signatures and doctests, which tests/unit/test_examples.py runs
    tree = ast.parse(snippet.text)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="calve"), attr=name):
                assert hasattr(calve, name), f"calve.{name}"
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="calve"), attr=name), keywords=given):
                _accepts(name, [k.arg for k in given if k.arg])


def _accepts(name: str, given: list[str]) -> None:
    assert name in calve.__all__, f"calve.{name}"
    parameters = inspect.signature(getattr(calve, name)).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        assert set(given) <= parameters.keys(), name


@pytest.mark.parametrize("snippet", of("sh"), ids=str)
def test_commands_and_their_options_exist(snippet: Snippet) -> None:
    for line in shell_lines(snippet.text):
        words = shlex.split(line.replace("[SINK]", "orders").replace("[", "").replace("]", ""))
        _check_command([word for word in words if not re.fullmatch(r"[A-Z_]+=.*", word)], line)


def _check_command(words: list[str], line: str) -> None:
    program = words[0].rpartition("/")[2] if words else "export"
    if program == "calve":
        _parse_arguments(words[1:])
    elif program == "pip":
        _check_extras(line)
    elif program == "make":
        assert set(words[1:]) <= TARGETS, line
    else:
        assert program in TOOLS or program.startswith("venv-pack"), line


def _parse_arguments(words: list[str]) -> None:
    words = [*words[: words.index(">")], *words[words.index(">") + 2 :]] if ">" in words else words
    group = typer.main.get_command(app)
    context = group.make_context("calve", list(words[:1]), resilient_parsing=True)
    command = group.get_command(context, words[0])  # type: ignore[attr-defined]
    assert command is not None, f"calve {words[0]}"
    try:
        command.make_context(words[0], list(words[1:]), parent=context)
    except Exception as error:  # noqa: BLE001 - UsageError, of click or of typer's own copy of it
        pytest.fail(f"calve {' '.join(words)}: {error}")


def _check_extras(line: str) -> None:
    for named in re.findall(r"(?:calve|\.|whl)\[([a-z,]+)\]", line):
        assert set(named.split(",")) <= PROJECT["optional-dependencies"].keys(), line


@pytest.mark.parametrize("snippet", of("json", "yaml", "toml"), ids=str)
def test_data_is_valid(snippet: Snippet) -> None:
    if snippet.language == "toml":
        assert tomllib.loads(snippet.text)
    elif snippet.language == "yaml":
        assert all(yaml.safe_load_all(snippet.text))
    else:
        assert [json.loads(line) for line in snippet.text.splitlines()]


QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|Ki|M|Mi|G|Gi)?")
POD_KEYS = {"terminationGracePeriodSeconds", "containers", "volumes"}
CONTAINER_KEYS = {"name", "image", "args", "env", "ports", "readinessProbe", "resources", "volumeMounts"}


def manifests() -> list[dict[str, Any]]:
    found = [one for s in of("yaml") for one in yaml.safe_load_all(s.text)]
    return [one for one in found if isinstance(one, dict) and "apiVersion" in one]


def test_manifests_have_what_kubernetes_requires() -> None:
    (deployment,) = manifests()
    assert (deployment["apiVersion"], deployment["kind"]) == ("apps/v1", "Deployment")
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", deployment["metadata"]["name"])
    spec, template = deployment["spec"], deployment["spec"]["template"]
    assert deployment.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert spec.keys() <= {"replicas", "strategy", "selector", "template"}
    assert spec["strategy"] == {"type": "Recreate"}, "two runs would fence each other in turn"
    assert spec["replicas"] == 1
    assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    pod = template["spec"]
    assert pod.keys() <= POD_KEYS
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert all(len(volume.keys() - {"name"}) == 1 for volume in volumes.values()), "each has one source"
    for container in pod["containers"]:
        _check_container(container, set(volumes))


def _check_container(container: dict[str, Any], volumes: set[str]) -> None:
    assert {"name", "image"} <= container.keys() <= CONTAINER_KEYS
    _parse_arguments(container["args"])
    for variable in container["env"]:
        assert isinstance(variable["name"], str)
        assert isinstance(variable.get("value", ""), str)
        assert len(variable.keys() & {"value", "valueFrom"}) == 1
    assert all(isinstance(port["containerPort"], int) for port in container["ports"])
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert all(mount["mountPath"].startswith("/") for mount in container["volumeMounts"])
    for amounts in container["resources"].values():
        assert all(QUANTITY.fullmatch(str(amount)) for amount in amounts.values())
    probe = container["readinessProbe"]
    assert probe["exec"]["command"][0] == "calve"
    _parse_arguments(probe["exec"]["command"][1:])
    assert probe["timeoutSeconds"] < probe["periodSeconds"]


def test_every_statement_has_a_section_with_syntax_and_an_example() -> None:
    text = (ROOT / "docs/statements.md").read_text()
    sections = {part.partition("\n")[0]: part for part in text.split("\n## ")[1:]}
    created = ["CREATE SECRET", "CREATE CONNECTION", "CREATE SOURCE", "CREATE VIEW", "CREATE SINK"]
    first = {title.split()[0] for title in sections}
    assert set(created) <= sections.keys()
    assert first == set(SQL) - {"DESC"}
    for title, part in sections.items():
        languages = [s.language for s in snippets_of(title, part)]
        assert languages[:2] == ["text", "sql"], title


def test_extraction_finds_fenced_indented_and_nested_blocks() -> None:
    page = "a\n\n    SHOW SINKS;\n\n1. x\n\n    ```sh\n    calve status\n    ```\n\n```\nodd\n```\n\n    odd words\n"
    assert [(s.language, s.text) for s in snippets_of("p", page)] == [
        ("sql", "SHOW SINKS;"),
        ("sh", "calve status"),
        ("", "odd"),
        ("", "odd words"),
    ]


@pytest.mark.parametrize(
    ("language", "text", "check"),
    [
        ("sql", "CREATE SNK s FROM t;", test_statements_can_be_parsed),
        ("python", "calve.sinks()", test_python_is_valid_and_calls_what_exists),
        ("python", "calve.files('x', fromat='json')", test_python_is_valid_and_calls_what_exists),
        ("sh", "calve run pipeline.sql --until-caughtup", test_commands_and_their_options_exist),
        ("sh", "calve stats", test_commands_and_their_options_exist),
        ("sh", "pip install 'calve[kafak]'", test_commands_and_their_options_exist),
        ("sh", "make tests", test_commands_and_their_options_exist),
    ],
)
def test_a_wrong_snippet_fails(language: str, text: str, check: object) -> None:
    with pytest.raises((AssertionError, SqlSyntaxError, pytest.fail.Exception)):
        check(Snippet("p", 1, language, text, run=False))  # type: ignore[operator]


def _anchors(text: str) -> Iterator[str]:
    for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def test_links_between_pages_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if target.startswith(("http", "mailto")):
                continue
            name, _, anchor = target.partition("#")
            found = (page.parent / name).resolve() if name else page
            assert found.exists(), f"{page.name}: {target}"
            if anchor:
                assert anchor in set(_anchors(found.read_text())), f"{page.name}: {target}"
