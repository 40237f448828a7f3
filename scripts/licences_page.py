"""Writes docs/licences.md from the metadata of installed packages: `python scripts/licences_page.py [--check]`.

Platforms differ in what they install, so `--check` compares only packages that are both here and on the page, and
requires that every direct dependency is there. Versions are not on the page: licences rarely change with them.
"""

import re
import sys
import tomllib
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata, requires
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "licences.md"
HEAD = """# Licences

calve is published under Apache-2.0. It contains no code of other projects; it depends on these packages, whose metadata
names their licences. `pip` installs those of the first table always, those of the others with an extra.
`make docs` generates this page.
"""
NOT_SHIPPED = {"dev", "docs"}
"""Extras for those who work on calve."""
SHORT = 60


def page() -> str:
    """The whole page."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    always = closure(project["dependencies"])
    parts = [HEAD, "## Always\n", *_table(always)]
    for extra, wanted in project["optional-dependencies"].items():
        more = closure(wanted) - always
        if extra not in NOT_SHIPPED and more:
            parts += [f"## With `calve[{extra}]`\n", *_table(more)]
    return "\n".join(parts)


def closure(requirements: list[str]) -> set[str]:
    """Names of the packages that are installed here for these requirements."""
    found: set[str] = set()
    waiting = list(requirements)
    while waiting:
        text = waiting.pop()
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?", text)
        if match is None:
            sys.exit(f"not a requirement: {text}")
        name, extras = normal(match[1]), {part.strip() for part in (match[2] or "").split(",") if part.strip()}
        try:
            more = requires(name) or []
        except PackageNotFoundError:
            continue  # not for this platform
        if name not in found or extras:
            found.add(name)
            waiting += [one for one in more if _wanted(one, extras)]
    return found


def _wanted(requirement: str, extras: set[str]) -> bool:
    if re.search(r"""(sys_platform|platform_system)\s*==\s*['"](win32|Windows)""", requirement):
        return False  # calve runs on POSIX
    marker = re.search(r"""extra\s*==\s*['"]([^'"]+)""", requirement)
    return marker is None or marker[1] in extras


def licence(data: PackageMetadata) -> str:
    """The licence of a package: an expression, a classifier, or a short text."""
    classifiers = [
        text.rpartition(" :: ")[2] for text in data.get_all("Classifier") or () if text.startswith("License ::")
    ]
    stated = _field(data, "License-Expression") or ", ".join(sorted(classifiers))
    text = _field(data, "License")
    return stated or (text if text and len(text) < SHORT and "\n" not in text else "see its files")


def _field(data: PackageMetadata, name: str) -> str:
    return data[name].strip() if name in data else ""


def normal(name: str) -> str:
    """A name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def rows_of(text: str) -> dict[str, str]:
    """Packages and licences of a page."""
    return dict(re.findall(r"^\| ([a-z0-9-]+) \| (.+) \|$", text, re.MULTILINE))


def _table(names: set[str]) -> list[str]:
    lines = ["| package | licence |", "|---|---|"]
    lines += [f"| {name} | {licence(metadata(name))} |" for name in sorted(names)]
    return [*lines, ""]


def main() -> int:
    """Write the page, or check it as far as this platform can."""
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    here, there = rows_of(text), rows_of(PAGE.read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    direct = {normal(re.split(r"[\[<>=!~ ]", one)[0]) for one in project["dependencies"]}
    wrong = sorted(name for name in here.keys() & there.keys() if here[name] != there[name])
    missing = sorted(direct - there.keys())
    same = not wrong and not missing
    differing = ", ".join([*wrong, *missing])
    print("docs/licences.md is up to date" if same else f"docs/licences.md is outdated ({differing}): make docs")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
