"""docs/quickstart.md, command by command: its files, its pipeline, and the rows that it shows."""

import re
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.pipelines import Pipelines
from tests.support.readers import ROOT
from tests.support.snippets import snippets_of

pytestmark = pytest.mark.embedded

PAGE = "docs/quickstart.md"


def test_the_quick_start_ends_with_the_rows_that_it_shows(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = list(snippets_of(PAGE, (ROOT / PAGE).read_text()))
    (pipeline,) = [s.text for s in found if s.run]
    shell = "\n".join(s.text for s in found if s.language == "sh")
    files = re.findall(r"cat > (\S+) <<'END'\n(.*?)END", shell, re.DOTALL)
    shown = [s.text for s in found if s.language == "text" and "19.99" in s.text]
    assert (len(files), len(shown)) == (2, 2)
    pipelines = Pipelines(tmp_path / "home", spark)
    statements = pipeline
    for (name, text), table in zip(files, shown, strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (result,) = pipelines.run(statements)
        assert result.exit_code == 0, result.cause
        statements = ""
        rows = re.findall(r"^\D*(\d+)\W+([a-z]+)\W+([\d.]+)", table, re.MULTILINE)
        assert pipelines.rows("shop.orders", "id", "customer", "amount") == [
            (int(number), customer, Decimal(amount)) for number, customer, amount in rows
        ]
