import re
from pathlib import Path

import pytest

from calve.metastore.requests import TableRequests, ViewRequests

PAGE = Path(__file__).parents[3] / "docs/metastore.md"


def test_the_example_of_the_page_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example
    exec(example[1], {})  # noqa: S102 - the page is our own
    assert (tmp_path / ".calve").is_dir()


def test_the_page_names_every_common_query() -> None:
    page = PAGE.read_text().partition("## Common queries")[2].partition("\n## ")[0]
    named = set(re.findall(r"[a-z_]+(?=[(`])", page))
    for requests in (TableRequests, ViewRequests):
        assert {name for name in vars(requests) if not name.startswith("_")} <= named
