"""A terminal in which tests type the commands of the documentation: `calve` is a warm process, the rest is bash's."""

import json
import re
import shlex
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from calve.model.health import Health
from calve.watch.status_files import read_statuses
from tests.support.pipelines import eventually
from tests.support.snippets import shell_commands
from tests.support.warm import WarmProcess

_WAIT_SECONDS = 120
_SPARK = ("demo", "run", "verify")
"""Commands that start Spark, whatever their options are. The pages say that the others do not."""


def _nothing() -> None:
    pass


@dataclass
class Terminal:
    """Its folder, and what has been started in it."""

    folder: Path
    start: type[WarmProcess]
    stand_ins: dict[str, str] = field(default_factory=dict)
    """What a reader puts for the names, ids and times of a page, by the word or the command that they replace."""
    programs: dict[str, Callable[[str], str]] = field(default_factory=dict)
    """Programs behind a pipe."""
    environment: dict[str, str] = field(default_factory=dict)
    processes: list[WarmProcess] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / ".calve"

    def type_block(
        self,
        block: str,
        leave_out: tuple[str, ...] = (),
        *,
        meanwhile: Mapping[str, Callable[[], object]] | None = None,
        then: Mapping[str, Callable[[], object]] | None = None,
    ) -> dict[str, str]:
        """Execute commands; what they printed. What a reader does during some of them, and after some."""
        printed = {}
        for command in shell_commands(block):
            if not command.startswith(leave_out):
                printed[command] = self.type(command, (meanwhile or {}).get(command, _nothing))
                (then or {}).get(command, _nothing)()
        return printed

    def type(self, command: str, meanwhile: Callable[[], object] = _nothing) -> str:
        """Execute one command; what it printed. One without an end is interrupted after `meanwhile`."""
        command = self.stand_ins.get(command, command)
        if exported := re.fullmatch(r"export (\w+)=(.*)", command):
            self.environment[exported[1]] = self._in_bash(f"printf %s {exported[2]}")
            return ""
        if not command.startswith("calve "):
            return self._in_bash(command)
        words = [self.stand_ins.get(word, word) for word in shlex.split(_in_full(command))[1:]]
        if words[-2:-1] == [">"]:
            (self.folder / words[-1]).write_text(self._printed(words[:-2], meanwhile))
            return ""
        if words[-2:-1] == ["|"]:
            return self.programs[words[-1]](self._printed(words[:-2], meanwhile))
        return self._printed(words, meanwhile)

    def end(self) -> None:
        """Nothing of it runs afterwards."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def _in_bash(self, command: str) -> str:
        done = subprocess.run(["bash", "-ec", command], cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        return done.stdout

    def _printed(self, words: list[str], meanwhile: Callable[[], object]) -> str:
        serves = words[0] == "serve" or "--serve" in words
        spark = words[0] in _SPARK or "--where" in words or "--replay" in words
        process = self.start("calve.cli.main", words, self.environment, folder=self.folder, spark=spark)
        self.processes.append(process)
        shown = ""
        if words[0] == "serve" or (words[0] == "run" and "--until-caught-up" not in words):
            eventually(lambda: process.poll() is not None or self._works(process, words[0]))
            assert process.poll() is None, "".join(process.communicate())
            shown = self._state_on_page(process) if serves else ""
            meanwhile()
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=_WAIT_SECONDS)
        assert process.returncode == 0, f"{shlex.join(words)}\n{out}{err}"
        return out + shown

    def _works(self, process: WarmProcess, command: str) -> bool:
        if command == "serve":
            return "http://" in process.printed_output()
        return any(status.health is Health.RUNNING for status in read_statuses(self.home))

    def _state_on_page(self, process: WarmProcess) -> str:
        (url,) = re.findall(r"http://\S+?:\d+", process.printed_output())
        token = self.environment.get("CALVE_TOKEN")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"{url}/api/state", headers=headers)  # noqa: S310 - our own server
        with urllib.request.urlopen(request, timeout=_WAIT_SECONDS) as answer:  # noqa: S310 - the same
            return json.dumps(json.load(answer))


def _in_full(command: str) -> str:
    """With all that a page says may be added: `[--running]`; brackets in quotes are those of a value."""
    return re.sub(r"(?<!')[\[\]](?!')", "", command)
