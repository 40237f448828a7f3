"""Options in parentheses: `(NAME = value, ...)`, the equals sign optional."""

from decimal import Decimal

from calve.sql.errors import SqlSyntaxError
from calve.sql.grammar.cursor import Cursor
from calve.sql.lexer import Token, TokenKind
from calve.sql.names import RESERVED, Identifier
from calve.sql.options import (
    NO_OPTIONS,
    Option,
    OptionName,
    Options,
    SecretLiteral,
    SecretName,
    Value,
    is_reference,
    is_sensitive,
)
from calve.sql.text import Span

_MAX_DIGITS = 30
_VALUE_HINT = "A value is a string, a number, true, false or SECRET name."


def options(cursor: Cursor, what: str = "options") -> Options:
    """`(...)` with at least one option."""
    seen: set[str] = set()

    def item() -> Option:
        option = _option(cursor)
        if cursor.at_symbol("|"):
            raise cursor.error("an option has one value", hint="Choose one of the alternatives.")
        _refuse_twice(cursor, option.name, option.where, seen)
        return option

    return Options(cursor.list_of(item, what))


def options_or_none(cursor: Cursor) -> Options:
    """`(...)`, which may be empty or absent."""
    if not cursor.at_symbol("("):
        return NO_OPTIONS
    if cursor.peek(1).is_symbol(")"):
        cursor.next()
        cursor.next()
        return NO_OPTIONS
    return options(cursor)


def with_clause(cursor: Cursor) -> Options:
    """`WITH (...)`, which may be absent."""
    return options(cursor) if cursor.accept_words("WITH") else NO_OPTIONS


def option_names(cursor: Cursor) -> tuple[OptionName, ...]:
    """`(NAME, ...)` in alphabetical order."""
    seen: set[str] = set()

    def item() -> OptionName:
        words = _words(cursor)
        if cursor.at_symbol("="):
            raise cursor.error("RESET takes names without values", hint="Use SET to give a value.")
        name = OptionName(_join_words(cursor, words), _span(cursor, words))
        _refuse_twice(cursor, name.text, name.where, seen)
        return name

    return tuple(sorted(cursor.list_of(item, "options"), key=lambda name: name.text))


def _refuse_twice(cursor: Cursor, name: str, where: Span | None, seen: set[str]) -> None:
    if name in seen:
        raise cursor.error(f"option {name} is given twice", where, "")
    seen.add(name)


def _words(cursor: Cursor) -> list[Token]:
    """The words of an option's name, including the value if it is a word, too."""
    words: list[Token] = []
    while cursor.peek().kind is TokenKind.WORD:
        words.append(cursor.next())
    if not words:
        raise cursor.unexpected("the name of an option", "Options are written NAME = value, separated by commas.")
    return words


def _join_words(cursor: Cursor, words: list[Token]) -> str:
    """The name that consists of these words."""
    for token in words:
        if not token.word:
            raise cursor.error(
                f"{cursor.shown(token)} is not valid in the name of an option", token, "Write ASCII letters."
            )
    return " ".join(token.word for token in words)


def _span(cursor: Cursor, tokens: list[Token]) -> Span:
    return Span(cursor.source, tokens[0].start, tokens[-1].end)


def _option(cursor: Cursor) -> Option:
    words = _words(cursor)
    if cursor.accept_symbol("="):
        return _with_value(cursor, words)
    following = cursor.peek()
    if following.kind in {TokenKind.STRING, TokenKind.QUOTED, TokenKind.NUMBER} or following.is_symbol("-"):
        return _with_value(cursor, words)
    if following.is_symbol(",") or following.is_symbol(")") or following.ends_statement:
        return _split_words(cursor, words)
    raise _no_value(cursor, following)


def _with_value(cursor: Cursor, words: list[Token]) -> Option:
    """The words are the name. `PASSWORD SECRET = x` is `PASSWORD = SECRET x`."""
    where = _span(cursor, words)
    start = cursor.peek().start
    if len(words) > 1 and words[-1].word == "SECRET":
        name = _join_words(cursor, words[:-1])
        cursor.accept_words("SECRET")
        value: Value = _secret_name(cursor, name)
    else:
        name = _join_words(cursor, words)
        value = _value(cursor, name)
    return Option(name, value, where, cursor.span_from(start))


def _split_words(cursor: Cursor, words: list[Token]) -> Option:
    """Without an equals sign the last word is the value: `AWS CONNECTION aws`, `PASSWORD SECRET pass`."""
    *head, last = words
    if not head:
        name = _join_words(cursor, [last])
        raise cursor.error(f"option {name} has no value", last, f"Write {name} = value.")
    is_secret = len(head) > 1 and head[-1].word == "SECRET"
    names = head[:-1] if is_secret else head
    name = _join_words(cursor, names)
    value = SecretName(_name_of(cursor, last)) if is_secret else _word_value(cursor, name, last)
    return Option(name, value, _span(cursor, names), cursor.span(last))


def _secret_name(cursor: Cursor, name: str) -> SecretName:
    token = cursor.peek()
    if token.kind is TokenKind.STRING:
        hint = f"Create the secret first (CREATE SECRET ...), then write {name} = SECRET its_name."
        raise cursor.error(f"{name} SECRET takes the name of a secret, not its text", token, hint)
    return SecretName(cursor.identifier("the name of a secret"))


def _value(cursor: Cursor, name: str) -> Value:
    token = cursor.peek()
    if token.kind in {TokenKind.STRING, TokenKind.QUOTED}:
        cursor.next()
        return _text(cursor, name, token)
    if token.kind is TokenKind.NUMBER or token.is_symbol("-"):
        return _number(cursor, name)
    if token.kind is not TokenKind.WORD:
        raise _no_value(cursor, token)
    cursor.next()
    if token.word == "SECRET" and not (cursor.at_symbol(",") or cursor.at_symbol(")")):
        return _secret_name(cursor, name)
    return _word_value(cursor, name, token)


def _no_value(cursor: Cursor, token: Token) -> SqlSyntaxError:
    if token.is_symbol("<"):
        return cursor.error(
            "the value is hidden in this text", token, "Write the value, or SECRET and a secret's name."
        )
    if token.is_symbol("(") or token.is_symbol("["):
        return cursor.error("an option has one value", token, "Write several in one string: 'a,b'.")
    return cursor.unexpected("a value", _VALUE_HINT)


def _text(cursor: Cursor, name: str, token: Token) -> Value:
    if is_reference(name):
        if not token.value:
            raise cursor.error("the name is empty", token, "")
        return Identifier(token.value, quoted=True, where=cursor.span(token))
    return SecretLiteral(token.value) if is_sensitive(name) else token.value


def _word_value(cursor: Cursor, name: str, token: Token) -> Value:
    if token.word in {"TRUE", "FALSE"}:
        return token.word == "TRUE"
    if token.word == "NULL":
        raise cursor.error("an option cannot be NULL", token, "Leave it out for its default.")
    if token.word == "SECRET" and not is_reference(name):
        raise cursor.error("expected the name of a secret after SECRET", token, f"Write {name} = SECRET its_name.")
    _refuse_bare_secret(cursor, name, token)
    if cursor.peek().kind is TokenKind.SYMBOL and cursor.peek().value in "./:-@":
        hint = f"{name} is a name without dots." if is_reference(name) else "Write it in single quotes."
        raise cursor.error("a value with punctuation is a string", hint=hint)
    return _name_of(cursor, token) if is_reference(name) else token.value


def _refuse_bare_secret(cursor: Cursor, name: str, token: Token) -> None:
    """`PASSWORD = pass` may mean the text or the secret of that name."""
    if is_sensitive(name):
        hint = f"Write {name} = SECRET its_name, or the value in single quotes."
        raise cursor.error(f"{name} takes a secret or a string", token, hint)


def _name_of(cursor: Cursor, token: Token) -> Identifier:
    if token.word in RESERVED:
        raise cursor.error(f"{token.word} is a keyword", token, f'As a name write "{token.value}".')
    return Identifier(token.value, where=cursor.span(token))


def _number(cursor: Cursor, name: str) -> Value:
    start = cursor.peek().start
    sign = "-" if cursor.accept_symbol("-") else ""
    token = cursor.peek()
    if token.kind is not TokenKind.NUMBER:
        raise cursor.unexpected("a number", _VALUE_HINT)
    _refuse_bare_secret(cursor, name, token)
    cursor.next()
    following = cursor.peek()
    if following.kind is TokenKind.WORD and following.start == token.end:
        text = cursor.source.text[start : following.end]
        whole = Span(cursor.source, start, following.end)
        raise cursor.error(
            "a number with a unit is a string", whole, f"Write {name} = '{text}'." if len(text) < 40 else ""
        )
    if not set(token.value) <= set("0123456789."):
        raise cursor.error("numbers with an exponent are not supported", token, "Write all digits.")
    if len(token.value) > _MAX_DIGITS:
        raise cursor.error(f"this number has more than {_MAX_DIGITS} digits", token, "")
    text = sign + token.value
    return Decimal(text) if "." in text else int(text)
