"""`calve plan`: prints what a pipeline file would change, and what that does to running sinks and tables."""

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console

from calve.cli.show import console as error_console
from calve.cli.show import counted, styled
from calve.definitions.objects import Definition
from calve.definitions.workplace import Workplace, workplace
from calve.errors import InvalidInput
from calve.plan.changes import Blocked, DefinitionPlan, PlanStep
from calve.spark.on_demand import spark_on_demand
from calve.statements.reconcile import apply, plan, read_files

DIFFERENT = 1
"""Exit code of --check if there is something to do."""
IMPOSSIBLE = 2
"""Exit code if a difference cannot be closed."""


def run_plan(console: Console, files: list[Path], home: Path, *, prune: bool, as_json: bool, check: bool) -> int:
    """Print the plan of pipeline files; returns the exit code."""
    place = workplace(home, spark_on_demand(home))
    planned = plan(place, read_files(files), prune=prune)
    if as_json:
        sys.stdout.write(json.dumps(to_json(planned), indent=2) + "\n")
    else:
        for line in lines_of(planned):
            _print(console, line)
    if planned.blocked:
        return IMPOSSIBLE
    return DIFFERENT if check and not planned.empty else 0


def apply_files(console: Console, place: Workplace, files: list[Path], *, prune: bool, yes: bool) -> None:
    """Make the definitions equal to the files, if all changes are safe or the user agrees.

    Otherwise nothing is changed. Raises InvalidInput.
    """
    planned = plan(place, read_files(files), prune=prune)
    if planned.blocked or (planned.dangerous and not yes):
        for line in lines_of(planned):
            _print(error_console(stderr=True), line)
        if planned.blocked:
            raise InvalidInput(
                "the file cannot be applied", detail=f"{_names(planned.blocked)} cannot change as it says."
            )
        if not _agrees():
            steps = [step for step in planned.steps if step.dangerous]
            raise InvalidInput(
                "nothing was changed",
                detail=f"{counted(len(steps), 'change')} must be agreed to.",
                hint="Read the plan. Then add --yes, or say yes at a terminal.",
            )
    with closing(apply(place, planned)) as outcomes:  # what cannot be shown ends it as well
        for outcome in outcomes:
            from calve.cli.sql import show_outcome

            show_outcome(console, outcome)


def _agrees() -> bool:
    """Ask at the terminal; without one, nobody agrees."""
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        return False
    sys.stderr.write("Apply all of it? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _names(blocked: tuple[Blocked, ...]) -> str:
    return ", ".join(f"{one.kind.value.lower()} {one.name}" for one in blocked)


def lines_of(planned: DefinitionPlan) -> list[str]:
    """The plan for people."""
    found: list[str] = []
    for step in planned.steps:
        found += [*_step(step), ""]
    for blocked in planned.blocked:
        found += [f"{blocked.kind.value.lower()} {blocked.name}: cannot be changed"]
        found += [*(f"  {text}" for text in blocked.differences), f"  {blocked.way}", ""]
    for note in planned.notes:
        found += [f"note: {note}"]
    if planned.others:
        found += ["Every run also executes:", *(f"  {one.to_sql()};" for one in planned.others)]
    if planned.unlisted:
        listed = ", ".join(f"{d.kind.value.lower()} {d.name}" for d in planned.unlisted)
        why = "but in use" if planned.pruned else "and left alone (--prune drops them)"
        found += [f"Not in the file, {why}: {listed}"]
    return [*found, _summary(planned)]


def _step(step: PlanStep) -> list[str]:
    mark = "  (dangerous)" if step.dangerous else ""
    found = [f"{step.kind.value.lower()} {step.name}: {step.action}{mark}"]
    found += [f"  {text}" for text in step.differences]
    found += [f"  {line}" for line in f"{step.statement.pretty()};".splitlines()]
    return [*found, *(f"  {'!' if effect.dangerous else '>'} {effect.text}" for effect in step.effects)]


def _summary(planned: DefinitionPlan) -> str:
    if planned.empty:
        return "Nothing to do: the definitions are as the file says."
    if planned.blocked:
        return f"{counted(len(planned.blocked), 'object')} cannot be changed as the file says; nothing is applied."
    dangerous = sum(step.dangerous for step in planned.steps)
    how = f"{dangerous} of them dangerous: calve run asks, or needs --yes" if dangerous else "not dangerous"
    return f"{counted(len(planned.steps), 'change')}, {how}."


_STYLES = {"+ ": "green", "- ": "red", "~ ": "yellow", "! ": "bold red", "> ": "dim"}


def _print(console: Console, line: str) -> None:
    style = _STYLES.get(line.strip()[:2])
    console.print(styled((line, style)) if style else line, soft_wrap=True)


def to_json(planned: DefinitionPlan) -> dict[str, Any]:
    """The plan for programs."""
    return {
        "empty": planned.empty,
        "dangerous": planned.dangerous,
        "changes": [
            {
                "action": step.action,
                "kind": step.kind.value.lower(),
                "name": step.name,
                "statement": step.statement.to_sql(),
                "dangerous": step.dangerous,
                "differences": list(step.differences),
                "effects": [{"text": effect.text, "dangerous": effect.dangerous} for effect in step.effects],
            }
            for step in planned.steps
        ],
        "blocked": [
            {"kind": b.kind.value.lower(), "name": b.name, "differences": list(b.differences), "way": b.way}
            for b in planned.blocked
        ],
        "not_in_file": [_unlisted(d) for d in planned.unlisted],
        "every_run": [statement.to_sql() for statement in planned.others],
        "notes": list(planned.notes),
    }


def _unlisted(definition: Definition) -> dict[str, str]:
    return {"kind": definition.kind.value.lower(), "name": definition.name}
