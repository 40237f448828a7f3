"""`calve sql` at a real terminal: a prompt with history and completion."""

import os
import pty
import select
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

PATIENCE = 30.0
END_OF_INPUT = "\x1b[?2004l"
"""The prompt no longer takes keys: the terminal treats Ctrl-C itself until the next one."""


class Terminal:
    """A pseudo-terminal with a process at its other end."""

    def __init__(self, home: Path) -> None:
        self._mine, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "calve.cli.main", "sql", "--home", str(home)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
        )
        os.close(theirs)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._mine, text.encode())

    def until(self, text: str) -> None:
        """Read what is shown until a text is among it."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} is not shown: {self.seen[-400:]!r}"
            ready, _, _ = select.select([self._mine], [], [], 0.2)
            if ready:
                self.seen += os.read(self._mine, 65536).decode(errors="replace")
        self.seen = self.seen.partition(text)[2]

    def enter(self, line: str, then: str) -> None:
        """Type a line, and wait for a text after it. Redrawing the line itself shows its prompt once more."""
        self.type(f"{line}\r")
        self.until(END_OF_INPUT)
        self.until(then)

    def close(self) -> int:
        self.until("calve>")
        self.type("\x04")
        code = self.process.wait(PATIENCE)
        os.close(self._mine)
        return code


@contextmanager
def terminal(home: Path) -> Iterator[Terminal]:
    opened = Terminal(home)
    try:
        yield opened
    finally:
        if opened.process.poll() is None:
            opened.process.kill()
            opened.process.wait()


def test_statements_over_several_lines_are_answered_and_errors_do_not_end_the_prompt(tmp_path: Path) -> None:
    with terminal(tmp_path) as screen:
        screen.until("calve>")
        screen.enter("CREATE SOURCE things", "->")
        screen.enter("FROM LOAD GENERATOR orders;", "created source things")
        screen.type("SHOW SUORCES;\r")
        screen.until("Did you mean SOURCES?")
        screen.type("SHOW SOURCES;\r")
        screen.until("load generator")
        assert screen.close() == 0


def test_names_are_completed_and_earlier_statements_come_back_but_not_those_with_secrets(tmp_path: Path) -> None:
    with terminal(tmp_path) as screen:
        screen.until("calve>")
        screen.type("CREATE SOURCE remarkable FROM LOAD GENERATOR orders;\r")
        screen.until("created source remarkable")
        screen.type("CREATE SECRET s AS 'wolfram';\r")
        screen.until("created secret s")
        screen.type("SHOW CREATE SOURCE remar\t")
        screen.until("kable")
        screen.type(";\r")
        screen.until("FROM LOAD GENERATOR orders;")
        assert screen.close() == 0
    assert "wolfram" not in (tmp_path / "history").read_text()
    with terminal(tmp_path) as screen:
        screen.until("calve>")
        screen.type("\x1b[A\x1b[A\r")
        screen.until('source "remarkable" already exists')
        assert screen.close() == 0


def test_the_history_has_whole_statements_and_no_line_of_a_private_key(tmp_path: Path) -> None:
    history = tmp_path / "home" / "history"
    with terminal(tmp_path / "home") as screen:
        screen.until("calve>")
        for line in ("CREATE SECRET k AS '-----BEGIN PRIVATE KEY-----", "MIIwolfram", "-----END PRIVATE KEY-----"):
            screen.enter(line, "->")
        screen.enter("'; CREATE SOURCE a", "created secret k")
        screen.until("->")
        screen.enter("FROM LOAD GENERATOR orders;", "created source a")
        screen.until("calve>")
        screen.enter("CREATE SECRET abandoned AS 'tantalum", "->")
        screen.enter("niobium", "->")
        screen.type("\x03")
        assert screen.close() == 0
    text = history.read_text()
    assert "+CREATE SOURCE a\n+FROM LOAD GENERATOR orders;\n" in text
    assert not [word for word in ("wolfram", "PRIVATE", "tantalum", "niobium") if word in text]
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert stat.S_IMODE(history.parent.stat().st_mode) == 0o700


def test_a_history_that_others_could_read_is_closed(tmp_path: Path) -> None:
    history = tmp_path / "history"
    history.touch(mode=0o644)
    history.chmod(0o644)
    with terminal(tmp_path) as screen:
        screen.until("calve>")
        assert stat.S_IMODE(history.stat().st_mode) == 0o600
        assert screen.process.poll() is None
