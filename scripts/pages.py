"""Pages of the documentation that are made out of tables in the code."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def finish(page: Path, text: str) -> int:
    """Write the page, or (`--check`) say whether it is as it should be; the exit code."""
    if "--check" in sys.argv:
        same = page.is_file() and page.read_text(encoding="utf-8") == text
        name = page.resolve().relative_to(ROOT)
        print(f"{name} is up to date" if same else f"{name} is outdated: make docs")
        return 0 if same else 1
    page.write_text(text, encoding="utf-8")
    return 0


def between(text: str, name: str, part: str) -> str:
    """The text with another part between `<!-- name -->` and `<!-- /name -->`."""
    before, begin, rest = text.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    if not begin or not end:
        raise ValueError(f"<!-- {name} --> and <!-- /{name} --> are not there")
    return f"{before}{begin}{part}\n{end}{after}"
