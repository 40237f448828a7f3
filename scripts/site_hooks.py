"""Hooks of mkdocs: files outside of docs/ that the site needs, and links to them.

The pages of docs/ are read on GitHub as well, where `../examples/kafka.sql` is the right link. The site has these files
beside its pages.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md")
FOLDERS = ("examples",)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add what lies outside of docs/."""
    for name in PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    for folder in FOLDERS:
        for path in sorted(p for p in (ROOT / folder).rglob("*") if p.is_file() and p.suffix != ".md"):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links of GitHub's view of the repository at the site's own files."""
    inside = re.sub(rf"\]\(\.\./({'|'.join(FOLDERS)})/", r"](\1/", markdown)
    beside = re.sub(rf"\]\(\.\./({'|'.join(map(re.escape, PAGES))})", r"](\1", inside)
    return re.sub(r"\]\(docs/", "](", beside)
