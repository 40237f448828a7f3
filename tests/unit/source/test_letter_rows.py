"""Letters of CSV files are split into the texts of their columns, in the order of the file."""

import pytest

from calve.records.frames import SOURCE_FILE
from calve.source.files.csv_text import CsvText
from calve.source.files.records import CsvLetterSplitter


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (b'{"id": "2", "n": "3000000000"}', ["2", "3000000000"]),
        (b'{"before": "2", "renamed": null}', ["2", None]),
        (b'{"n":3}', [None, "3"]),
        (b'{"id":true,"n":1.5}', ["true", "1.5"]),
        (b'{"id":9007199254740993,"n":1e400}', ["9007199254740993", "1e400"]),
        ('{"id":"\u4e2d","n":"\\u00e9"}'.encode(), ["\u4e2d".encode().decode("latin-1"), "\xc3\xa9"]),
        (b'{"id":"1","n":"\xe9"}', ["1", "\xe9"]),
    ],
    ids=["texts", "other names", "without nulls", "typed", "as they were written", "not ASCII", "not UTF-8"],
)
def test_rows_that_were_kept_as_json_are_texts_again(value: bytes, texts: list[str | None]) -> None:
    (row,) = CsvLetterSplitter(("id", "n"), CsvText.of({}))({"value": [value], SOURCE_FILE: ["a.csv"]}, 1)
    assert row == [*texts, None, None, "a.csv"]


@pytest.mark.parametrize(
    "value", [b"1,2,3", b"", b"\xff", b"[1]", b'{"other": "1"}', b'{"id": {}, "n": []}', b"[" * 100_000]
)
def test_lines_are_left_to_the_parser_of_lines(value: bytes) -> None:
    (row,) = CsvLetterSplitter(("id", "n"), CsvText.of({}))({"value": [value], SOURCE_FILE: ["a.csv"]}, 1)
    assert row == [None, None, None, value, "a.csv"]
