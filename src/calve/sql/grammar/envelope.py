"""ENVELOPE: how records become changes."""

from calve.sql.errors import SqlSyntaxError
from calve.sql.grammar import spark
from calve.sql.grammar.cursor import Cursor
from calve.sql.lexer import Token
from calve.sql.names import FieldPath
from calve.sql.parts import DebeziumEnvelope, DiffEnvelope, Envelope, NoneEnvelope, OrderClause, UpsertEnvelope

_NAMES = ("NONE", "UPSERT", "DEBEZIUM", "DIFF")
_USAGE = {
    "NONE": "ENVELOPE NONE",
    "UPSERT": "ENVELOPE UPSERT [(ORDER BY field [GLOBAL], DELETE WHEN condition)]",
    "DEBEZIUM": "ENVELOPE DEBEZIUM [(ORDER BY field [GLOBAL])]",
    "DIFF": "ENVELOPE DIFF (TIME field, DIFF field [, PROGRESS field])",
}


def envelope(cursor: Cursor) -> Envelope:
    """The envelope, after the word ENVELOPE."""
    name = cursor.choose("envelope", _NAMES)
    cursor.usage = _USAGE[name]
    clauses = _EnvelopeClauses(cursor, name)
    if cursor.at_symbol("("):
        clauses.read()
    match name:
        case "UPSERT":
            return UpsertEnvelope(clauses.order, clauses.delete_when)
        case "DEBEZIUM":
            return DebeziumEnvelope(clauses.order)
        case "DIFF":
            return _diff(cursor, clauses.fields)
        case _:
            return NoneEnvelope()


def _diff(cursor: Cursor, fields: dict[str, FieldPath]) -> DiffEnvelope:
    for word in ("TIME", "DIFF"):
        if word not in fields:
            raise cursor.error(f"ENVELOPE DIFF needs the clause {word}")
    return DiffEnvelope(fields["TIME"], fields["DIFF"], fields.get("PROGRESS"))


class _EnvelopeClauses:
    """`(clause, ...)`; the allowed clauses depend on the envelope."""

    def __init__(self, cursor: Cursor, name: str) -> None:
        self._cursor = cursor
        self._name = name
        self.order: OrderClause | None = None
        self.delete_when: str | None = None
        self.fields: dict[str, FieldPath] = {}

    def read(self) -> None:
        cursor = self._cursor
        opening = cursor.next()
        if self._name == "NONE":
            raise cursor.error("ENVELOPE NONE has no clauses", opening, "")
        if cursor.at_symbol(")"):
            raise cursor.error("the parentheses are empty")
        while not cursor.accept_symbol(")"):
            self._clause()
            if not cursor.accept_symbol(",") and not cursor.at_symbol(")"):
                raise self._not_a_list(opening)

    def _not_a_list(self, opening: Token) -> SqlSyntaxError:
        cursor = self._cursor
        if cursor.at_words("DESC") or cursor.at_words("ASC"):
            return cursor.error(
                "ORDER BY has no direction here", hint="The greatest value is always the latest change."
            )
        return cursor.unclosed(opening, '"," or ")" in the envelope')

    def _clause(self) -> None:
        cursor, token = self._cursor, self._cursor.peek()
        if self._name != "DIFF" and cursor.accept_words("ORDER", "BY"):
            self._once(self.order, "ORDER BY", token)
            self.order = self._order()
        elif self._name == "UPSERT" and cursor.accept_words("DELETE", "WHEN"):
            self._once(self.delete_when, "DELETE WHEN", token)
            self.delete_when = spark.condition(cursor, "a condition after DELETE WHEN")
        elif self._name == "DIFF" and token.word in {"TIME", "DIFF", "PROGRESS"}:
            cursor.next()
            self._once(self.fields.get(token.word), token.word, token)
            self.fields[token.word] = cursor.field_path(f"a field after {token.word}")
        else:
            raise cursor.unexpected(f"a clause of the envelope {self._name}")

    def _once(self, before: object, words: str, token: Token) -> None:
        if before is not None:
            raise self._cursor.error(f"{words} is given twice", token, "")

    def _order(self) -> OrderClause:
        cursor = self._cursor
        fields = [cursor.field_path("a field after ORDER BY")]
        while cursor.at_symbol(",") and not self._clause_follows():
            cursor.next()
            fields.append(cursor.field_path("a field of ORDER BY"))
        return OrderClause(tuple(fields), across_checkpoints=cursor.accept_words("GLOBAL"))

    def _clause_follows(self) -> bool:
        """Whether the comma separates clauses rather than fields."""
        following = self._cursor.peek(1)
        pair = (following.word, self._cursor.peek(2).word)
        return following.is_symbol(")") or pair in {("DELETE", "WHEN"), ("ORDER", "BY")}
