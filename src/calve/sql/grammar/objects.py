"""CREATE SECRET, CREATE CONNECTION, CREATE VIEW, and what all CREATE statements share."""

from calve.sql.grammar import spark
from calve.sql.grammar.cursor import Cursor
from calve.sql.grammar.options import options, options_or_none, with_clause
from calve.sql.names import Identifier
from calve.sql.options import SecretLiteral
from calve.sql.parts import FromEnvironment, FromFile, FromLiteral, SecretOrigin
from calve.sql.statements import ConnectionKind, CreateConnection, CreateSecret, CreateView, ObjectKind
from calve.values import value

_ORIGIN = "FROM ENV 'VARIABLE' | FROM FILE 'path' | AS 'value'"


@value
class CreateHead:
    """The part between the kind of an object and its definition."""

    name: Identifier
    if_not_exists: bool


def create_head(cursor: Cursor, kind: ObjectKind) -> CreateHead:
    """`[IF NOT EXISTS] name`."""
    if cursor.at_words("IF", "EXISTS"):
        raise cursor.error("CREATE takes IF NOT EXISTS", cursor.peek(1), "Write IF NOT EXISTS.")
    if_not_exists = cursor.accept_words("IF", "NOT", "EXISTS")
    return CreateHead(cursor.name(f"the name of the {kind.value.lower()}"), if_not_exists)


def create_secret(cursor: Cursor) -> CreateSecret:
    """CREATE SECRET, after these words."""
    cursor.usage = f"CREATE SECRET name {_ORIGIN}"
    head = create_head(cursor, ObjectKind.SECRET)
    return CreateSecret(name=head.name, if_not_exists=head.if_not_exists, origin=secret_origin(cursor))


def secret_origin(cursor: Cursor) -> SecretOrigin:
    """The origin of a secret's value."""
    if cursor.accept_words("AS"):
        if cursor.at_symbol("<"):
            hint = "Write the value, or FROM ENV 'VARIABLE', or FROM FILE 'path'."
            raise cursor.error("the value of the secret is hidden in this text", hint=hint)
        return FromLiteral(SecretLiteral(cursor.string("the value of the secret")))
    if not cursor.accept_words("FROM"):
        raise cursor.unexpected("FROM or AS after the name of the secret")
    if cursor.choose("origin", ["ENV", "FILE"]) == "ENV":
        return FromEnvironment(cursor.string("the name of an environment variable"))
    return FromFile(cursor.string("the path of a file"))


def create_connection(cursor: Cursor) -> CreateConnection:
    """CREATE CONNECTION, after these words."""
    cursor.usage = (
        "CREATE CONNECTION name TO ICEBERG CATALOG | AWS | KAFKA (option = value, ...) [WITH (VALIDATE = false)]"
    )
    head = create_head(cursor, ObjectKind.CONNECTION)
    cursor.expect_words("TO", after="the name of the connection")
    kind = _connection_kind(cursor)
    # AWS without options uses the credentials of the environment.
    found = options_or_none(cursor) if kind is ConnectionKind.AWS else options(cursor)
    return CreateConnection(
        name=head.name, if_not_exists=head.if_not_exists, kind=kind, options=found, settings=with_clause(cursor)
    )


def _connection_kind(cursor: Cursor) -> ConnectionKind:
    word = cursor.choose(
        "kind of connection", ["ICEBERG", "AWS", "KAFKA"], hint="Expected ICEBERG CATALOG, AWS or KAFKA."
    )
    if word == "ICEBERG":
        cursor.expect_words("CATALOG", after="ICEBERG")
        return ConnectionKind.ICEBERG_CATALOG
    return ConnectionKind(word)


def create_view(cursor: Cursor) -> CreateView:
    """CREATE VIEW, after these words."""
    cursor.usage = "CREATE VIEW name AS SELECT ..."
    head = create_head(cursor, ObjectKind.VIEW)
    if cursor.at_symbol("("):
        raise cursor.error(
            "a view does not take a list of columns", hint="Name the columns in the SELECT: SELECT a AS b."
        )
    cursor.expect_words("AS", after="the name of the view")
    query = spark.query(cursor, "the body of the view")
    return CreateView(name=head.name, if_not_exists=head.if_not_exists, query=query)
