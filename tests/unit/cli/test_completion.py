"""The shell's completion, with a real bash; and the completion of the prompt by context."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from calve.cli.prompt import StatementCompleter
from calve.definitions.objects import Definition
from calve.definitions.store import Definitions
from calve.sql.parser import parse
from calve.sql.statements import Create

DEFINED = """
CREATE SECRET k FROM ENV 'K';
CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE SOURCE orders FROM LOAD GENERATOR orders;
CREATE VIEW "Big Orders" AS SELECT * FROM orders;
CREATE SINK shop_sink FROM orders TO ICEBERG CATALOG lake NAMESPACE shop TABLE "Orders";
"""


@pytest.fixture(scope="module")
def completer() -> StatementCompleter:
    created = [statement for statement in parse(DEFINED) if isinstance(statement, Create)]
    return StatementCompleter(Definitions(Definition(str(n), 1, one) for n, one in enumerate(created)))


@pytest.mark.parametrize(
    ("text", "typed", "expected", "unexpected"),
    [
        ("", "", {"CREATE", "SELECT", "help", "exit"}, {"shop_sink"}),
        ("CRE", "CRE", {"CREATE"}, set()),
        ("SHOW ", "", {"SINKS", "CONSUMERS", "SNAPSHOTS FROM", "CREATE"}, {"lake"}),
        ("SHOW SNAPSHOTS FROM ", "", {"shop_sink", "shop.Orders"}, {"orders", "lake"}),
        ("DESCRIBE ", "", {"shop_sink", "orders", '"Big Orders"'}, {"lake", "k"}),
        ("SHOW CREATE CONNECTION ", "", {"lake"}, {"orders", "shop_sink"}),
        ("DROP SINK ", "", {"shop_sink"}, {"orders"}),
        ("SELECT id FROM sh", "sh", {"shop_sink", "shop.Orders", "INFORMATION_SCHEMA.TABLES"}, {"lake"}),
        ("SELECT 1; ALTER ", "", {"SINK", "SOURCE"}, {"shop_sink"}),
        ("CREATE SINK s FROM ", "", {"orders", '"Big Orders"'}, {"shop_sink", "lake"}),
        ("CREATE SINK s FROM orders TO ICEBERG CATALOG ", "", {"lake"}, {"orders"}),
        ("ALTER SINK shop_sink SET (COM", "COM", {"COMMIT INTERVAL"}, {"URI", "SINK"}),
        ("CREATE CONNECTION c TO ICEBERG CATALOG (", "", {"URI", "TYPE", "SECRET k"}, {"COMMIT INTERVAL"}),
        ("CREATE SOURCE s FROM FILES (", "", {"PATH", "FORMAT"}, {"URI"}),
        ("CREATE SOURCE s ", "", {"FROM FILES", "FROM ICEBERG TABLE"}, {"lake"}),
        ("CREATE SOURCE s FROM ICEBERG TABLE ", "", {"lake"}, {"orders"}),
        ("CREATE SOURCE s FROM ICEBERG TABLE lake.shop.o (", "", {"START", "CONSUMER"}, {"URI", "PATH"}),
        ("CREATE SINK s\nFROM orders TO ICEBERG CATALOG lake\nWITH (", "", {"COMMIT INTERVAL"}, {"PATH"}),
        ("REM", "REM", {"REMOVE ORPHAN FILES"}, set()),
        ("REMOVE ORPHAN ", "", {"FILES"}, {"shop_sink"}),
        ("EXPIRE SNAPSHOTS ", "", {"shop_sink", "shop.Orders"}, {"orders", "lake"}),
        ("OPTIMIZE TABLE shop_sink ", "", {"WHERE", "WITH"}, {"lake"}),
        ("REMOVE ORPHAN FILES shop_sink WITH (OLD", "OLD", {"OLDER THAN", "FORGET"}, {"GRACE", "URI"}),
        ("(", "", set(), {"OLDER THAN"}),
    ],
)
def test_the_prompt_completes_what_fits_at_the_cursor(
    completer: StatementCompleter, text: str, typed: str, expected: set[str], unexpected: set[str]
) -> None:
    word, choices = completer.choices(text)
    assert word == typed
    assert expected <= set(choices)
    assert not unexpected & set(choices)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
def test_bash_completes_commands_options_and_names_of_sinks(tmp_path: Path) -> None:
    command = tmp_path / "bin" / "calve"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m calve "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "CALVE_HOME": str(tmp_path / "home")}
    made = "CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded'); CREATE SOURCE o FROM LOAD GENERATOR orders;"
    made += "CREATE SINK remarkable FROM o TO ICEBERG CATALOG lake NAMESPACE a TABLE b"
    subprocess.run(["calve", "sql", made], check=True, env=environment, capture_output=True)
    script = """
        eval "$(calve completion bash)"
        offer() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _calve_completion calve
            echo "${COMPREPLY[@]}"
        }
        offer calve st
        offer calve status --js
        offer calve status rem
        offer calve sql --engine du
    """
    done = subprocess.run(["bash", "-c", script], check=True, env=environment, capture_output=True, text=True)
    assert done.stdout.split("\n")[:4] == ["status", "--json", "remarkable", "duckdb"], done.stderr


@pytest.mark.long
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "calve", "completion", shell], capture_output=True, text=True, check=True
    )
    assert "_CALVE_COMPLETE" in done.stdout
    assert "calve" in done.stdout
