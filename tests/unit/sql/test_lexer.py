import pytest

from calve.sql.lexer import Lexer, Token, TokenKind
from calve.sql.text import Span, SqlText


def tokens(text: str) -> list[Token]:
    lexer, found = Lexer(text), list[Token]()
    while (token := lexer.next()).kind is not TokenKind.END:
        found.append(token)
    return found


def kinds(text: str) -> list[tuple[str, str]]:
    return [(token.kind.name, token.value) for token in tokens(text)]


def test_tokens_have_their_kind_and_value() -> None:
    assert kinds('Create "a ""b""" \'it\'\'s\' 12.5e3 `t` ; größe') == [
        ("WORD", "Create"),
        ("QUOTED", 'a "b"'),
        ("STRING", "it's"),
        ("NUMBER", "12.5e3"),
        ("BACKTICK", "t"),
        ("SYMBOL", ";"),
        ("WORD", "größe"),
    ]


def test_tokens_cover_their_text_and_nothing_else() -> None:
    text = "  SHOW /* x */ SINKS -- y\n LIKE 'a b';"
    assert [text[token.start : token.end] for token in tokens(text)] == ["SHOW", "SINKS", "LIKE", "'a b'", ";"]


def test_the_end_comes_again_and_again() -> None:
    lexer = Lexer("a ")
    assert [lexer.next().kind for _ in range(3)] == [TokenKind.WORD, TokenKind.END, TokenKind.END]


@pytest.mark.parametrize(
    ("text", "what"), [("'a", "string"), ('"a', "quoted name"), ("`a", "name in backticks"), ("/* /* */", "comment")]
)
def test_what_is_never_closed_is_the_last_token(text: str, what: str) -> None:
    *before, last = tokens("x " + text + " y")
    assert [token.value for token in before] == ["x"]
    assert (last.kind, last.value, last.start, last.end) == (TokenKind.BROKEN, what, 2, len(text) + 4)


def test_a_backslash_escapes_in_text_for_spark_only() -> None:
    assert kinds(r"SHOW SINKS LIKE '\' x")[-2:] == [("STRING", "\\"), ("WORD", "x")]
    assert kinds(r"SELECT '\' x'")[-1] == ("STRING", r"\' x")
    assert kinds(r"SELECT '\' x'; SHOW '\' y")[-2:] == [("STRING", "\\"), ("WORD", "y")]
    assert kinds(r"CREATE VIEW v AS SELECT '\' x'")[-1] == ("STRING", r"\' x")
    assert kinds(r"CREATE SECRET v AS '\' x")[-2:] == [("STRING", "\\"), ("WORD", "x")]
    assert kinds(r"UPSERT (DELETE WHEN (a = '\' x', 1), ORDER BY '\' x")[-2:] == [("STRING", "\\"), ("WORD", "x")]


def test_raw_strings_of_spark_have_no_escapes() -> None:
    assert [token.kind for token in tokens(r"SELECT r'\' , R'a'")] == [
        TokenKind.WORD,
        TokenKind.STRING,
        TokenKind.SYMBOL,
        TokenKind.STRING,
    ]


def test_a_backslash_continues_a_comment_of_spark() -> None:
    assert kinds("SELECT 1 -- a \\\n b\n c")[-1] == ("WORD", "c")
    assert [value for _, value in kinds("SELECT 1 -- a \\\n b\n c")] == ["SELECT", "1", "c"]
    assert [value for _, value in kinds("SHOW -- a \\\n b")] == ["SHOW", "b"]


def test_only_ascii_words_are_keywords() -> None:
    assert [token.word for token in tokens("With wıth ſelect 'with'")] == ["WITH", "", "", ""]


@pytest.mark.parametrize(
    ("offset", "line", "column"),
    [(0, 1, 1), (2, 1, 3), (3, 2, 1), (5, 3, 1), (6, 3, 2), (7, 4, 1), (8, 4, 2), (9, 4, 3)],
)
def test_positions_count_lines_of_all_systems(offset: int, line: int, column: int) -> None:
    position = SqlText("ab\n\r\nc\rde").position(offset)
    assert (position.line, position.column, position.offset) == (line, column, offset)


def test_a_span_shows_where_it_is_and_not_what_it_holds() -> None:
    assert repr(Span(SqlText("a\nsecret"), 2, 8)) == "Span(line 2, column 1)"
