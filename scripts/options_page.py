"""Writes docs/options.md from the declarations of options: `python scripts/options_page.py [--check]`."""

import sys
from pathlib import Path

from pages import finish

from calve.plan.catalogue import GROUPS
from calve.plan.settings import AnySetting, SettingGroup

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
HEAD = """# Options

Every option of every statement; `SHOW OPTIONS` prints the same. Names are case-insensitive, in any order,
and `=` is optional.
Durations are `'1h 2m 30s'`, `'500ms'` or `'1 minute'`; sizes are `'512MB'` (10^6 bytes) or `'512MiB'`.

`make docs` generates this page.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_section(group) for group in GROUPS)])


def _section(group: SettingGroup) -> str:
    lines = [f"## Options of {group.title}", "", "| option | type | default | meaning |", "|---|---|---|---|"]
    lines += [_row(setting) for setting in group.settings]
    return "\n".join([*lines, ""])


def _row(setting: AnySetting) -> str:
    kind = setting.type_text.replace("|", "or")
    default = "required" if setting.required else setting.default
    return f"| `{setting.name}` | {kind} | {default} | {setting.doc} |"


if __name__ == "__main__":
    sys.exit(finish(PAGE, page()))
