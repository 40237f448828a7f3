"""Names in the text of a view, as Spark gets them."""

import pytest

from calve.errors import InvalidInput
from calve.view.scope import quoted_names, spark_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('SELECT "a b" FROM t', "SELECT `a b` FROM t"),
        ('SELECT "a""b`c" FROM t', 'SELECT `a"b``c` FROM t'),
        ("""SELECT '"no"', "yes" FROM t""", """SELECT '"no"', `yes` FROM t"""),
        ("""SELECT 'it\\'s "no"', "yes" FROM t""", """SELECT 'it\\'s "no"', `yes` FROM t"""),
        ('SELECT `"no"`, 1 -- "no"\n, "yes" /* "no" */ FROM t', 'SELECT `"no"`, 1 -- "no"\n, `yes` /* "no" */ FROM t'),
        ('(SELECT x."y z" FROM "T" x)', "(SELECT x.`y z` FROM `T` x)"),
        ("SELECT 1", "SELECT 1"),
    ],
)
def test_names_in_double_quotes_come_in_backticks_and_nothing_else_changes(text: str, expected: str) -> None:
    assert spark_text(text) == expected


def test_a_table_of_several_parts_becomes_one_name_wherever_it_stands() -> None:
    text = 'SELECT lake.shop.t.a, lake.shopping FROM Lake . "shop".t JOIN lake.shop.tt'
    assert spark_text(text, [("lake", "shop", "t")]) == (
        "SELECT `lake.shop.t`.a, lake.shopping FROM `Lake.shop.t` JOIN lake.shop.tt"
    )


def test_quoted_names_are_those_in_double_quotes() -> None:
    assert quoted_names("""SELECT "a", `b`, 'c', "d""e" FROM t""") == {"a", 'd"e'}


@pytest.mark.parametrize("text", ["SELECT 'x", 'SELECT "x', "SELECT 1; SELECT 2", "SELECT 1;", "SELECT /* x"])
def test_a_text_that_is_not_one_select_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        spark_text(text)
