"""Pages of the documentation that are made out of tables in the code."""

import sys
from pathlib import Path


def finish(page: Path, text: str) -> int:
    """Write the page, or (`--check`) say whether it is as it should be; the exit code."""
    if "--check" in sys.argv:
        same = page.is_file() and page.read_text(encoding="utf-8") == text
        name = f"docs/{page.name}"
        print(f"{name} is up to date" if same else f"{name} is outdated: make docs")
        return 0 if same else 1
    page.write_text(text, encoding="utf-8")
    return 0
