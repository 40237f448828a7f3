import pickle

import pytest

from calve.errors import InvalidInput, decode
from calve.sql.errors import SqlError, SqlSyntaxError
from calve.sql.names import FieldPath, Identifier
from calve.sql.options import Option, Options, SecretLiteral, SecretName
from calve.sql.parser import parse, parse_one, split_complete
from calve.sql.parts import FromLiteral
from calve.sql.statements import AlterSink, CreateConnection, CreateSecret, CreateSink, CreateSource, CreateView

LAID_OUT = """\
CREATE SOURCE orders (
  id BIGINT NOT NULL,
  customer STRING,
  amount DECIMAL(12,2),
  updated_at TIMESTAMP,
  PRIMARY KEY (id) NOT ENFORCED
)
  FROM KAFKA CONNECTION k (TOPIC = 'orders')
  FORMAT JSON
  ENVELOPE DEBEZIUM"""


def refused(text: str) -> SqlSyntaxError:
    with pytest.raises(SqlSyntaxError) as caught:
        parse(text)
    return caught.value


# ---- prompts


@pytest.mark.parametrize(
    ("text", "complete", "rest"),
    [
        ("", (), ""),
        (" -- nothing\n", (), ""),
        ("SHOW SINKS", (), "SHOW SINKS"),
        ("SHOW SINKS;", ("SHOW SINKS",), ""),
        ("SHOW SINKS; -- done", ("SHOW SINKS",), ""),
        ("SHOW SINKS; SHOW", ("SHOW SINKS",), " SHOW"),
        (";;", (), ""),
        ("SHOW SINKS LIKE 'a;", (), "SHOW SINKS LIKE 'a;"),
        ("SELECT ';' /* ; */", (), "SELECT ';' /* ; */"),
        (r"SELECT '\';'; SHOW", (r"SELECT '\';'",), " SHOW"),
        ("/* open ;", (), "/* open ;"),
        ("total nonsense (;", ("total nonsense (",), ""),
    ],
)
def test_a_prompt_knows_what_is_complete(text: str, complete: tuple[str, ...], rest: str) -> None:
    assert split_complete(text) == (complete, rest)


# ---- scripts


def test_nothing_is_no_statement() -> None:
    assert parse("") == ()
    assert parse(" ; -- x\n;") == ()


def test_a_mistake_anywhere_refuses_the_whole_script() -> None:
    assert str(refused("SHOW SINKS;\nSHOW SNIKS").position) == "line 2, column 6"


def test_one_statement_is_one() -> None:
    assert parse_one("SHOW SINKS;").to_sql() == "SHOW SINKS"
    with pytest.raises(SqlSyntaxError, match="got none"):
        parse_one("-- nothing")
    with pytest.raises(SqlSyntaxError, match="got more") as caught:
        parse_one("SHOW SINKS;\n SHOW VIEWS;")
    assert str(caught.value.position) == "line 2, column 2"


def test_the_first_mistake_is_reported_not_the_quote_that_is_missing_later() -> None:
    assert "SNIKS" in refused("SHOW SNIKS; SHOW SINKS LIKE 'a").primary


# ---- values


def test_both_spellings_of_a_secret_are_the_same_connection() -> None:
    seed = parse_one("CREATE CONNECTION c TO ICEBERG CATALOG (TYPE = 'rest', PASSWORD SECRET = p)")
    ours = parse_one('create connection c to iceberg catalog (password = secret p, type "rest",)')
    assert seed == ours
    assert isinstance(seed, CreateConnection)
    assert seed.options.value("PASSWORD") == SecretName(Identifier("p"))


def test_both_spellings_of_a_sink_are_the_same_sink() -> None:
    seed = parse_one(
        'CREATE SINK s FROM o TO ICEBERG CATALOG c USING AWS CONNECTION a NAMESPACE "n.m" TABLE "t" KEY (id)'
    )
    today = parse_one(
        "CREATE SINK s FROM o INTO ICEBERG CATALOG CONNECTION c (TABLE = 't', NAMESPACE = 'n.m') "
        "KEY (id) USING AWS CONNECTION a"
    )
    assert seed == today
    assert isinstance(seed, CreateSink)
    assert (seed.target.namespace, seed.target.table) == (("n", "m"), "t")


def test_a_literal_secret_is_read_and_never_shown() -> None:
    statement = parse_one("CREATE SECRET s AS 'hunter2'")
    assert isinstance(statement, CreateSecret)
    assert isinstance(statement.origin, FromLiteral)
    assert statement.origin.value.reveal() == "hunter2"
    assert "hunter2" not in repr(statement) + str(statement) + statement.to_sql() + statement.pretty()
    assert statement.to_sql(reveal=True) == "CREATE SECRET s AS 'hunter2'"
    assert SecretLiteral("a") == SecretLiteral("a")
    assert SecretLiteral("a") != SecretLiteral("b")
    assert SecretLiteral("a") != "a"
    assert len({SecretLiteral("a"), SecretLiteral("a")}) == 1


def test_sorting_and_changing_options() -> None:
    options = Options((Option("B", 1), Option("A", "x")))
    assert [option.name for option in options] == ["A", "B"]
    assert options.value("A") == "x"
    assert options.find("C") is None
    assert options.value("C") is None
    assert options.updated(Options((Option("B", 2), Option("C", 3)))).to_sql() == "(A = 'x', B = 2, C = 3)"
    assert options.without(["A", "Z"]).to_sql() == "(B = 1)"
    with pytest.raises(InvalidInput, match="option A is given twice"):
        Options((Option("A", 1), Option("A", 2)))


def test_identifiers_match_as_they_were_written() -> None:
    plain, exact = Identifier("Orders"), Identifier.exact("Orders")
    assert plain.matches("ORDERS")
    assert exact.matches("Orders")
    assert not exact.matches("orders")
    assert plain.collides(Identifier.exact("ORDERS"))
    assert not exact.collides(Identifier.exact("ORDERS"))
    assert str(FieldPath((plain, exact))) == "Orders.Orders"
    assert FieldPath((plain, exact)).to_sql() == 'Orders."Orders"'


@pytest.mark.parametrize("name", ["", "a b", "1a", "select", 'a"b'])
def test_names_that_need_quotes_are_refused_without(name: str) -> None:
    with pytest.raises(InvalidInput):
        Identifier(name)


def test_long_statements_are_laid_out_for_people() -> None:
    statement = parse_one(
        "CREATE SOURCE orders (id BIGINT NOT NULL, customer STRING, amount DECIMAL(12,2), updated_at TIMESTAMP, "
        "PRIMARY KEY (id) NOT ENFORCED) FROM KAFKA CONNECTION k (TOPIC = 'orders') FORMAT JSON ENVELOPE DEBEZIUM"
    )
    assert statement.pretty() == LAID_OUT
    assert parse_one("SHOW SINKS").pretty() == "SHOW SINKS"


# ---- places


def test_names_and_options_know_where_they_stand() -> None:
    statement = parse_one("ALTER SINK s SET (COMMIT INTERVAL = '5m', X 1)")
    assert isinstance(statement, AlterSink)
    option = next(iter(statement.action.options))  # type: ignore[union-attr]
    assert option.where is not None
    assert option.value_where is not None
    assert (option.where.text, option.value_where.text) == ("COMMIT INTERVAL", "'5m'")
    assert statement.name.where is not None
    assert statement.name.where.text == "s"


def test_a_path_spans_its_parts() -> None:
    statement = parse_one("CREATE SOURCE s FROM FILES (PATH = 'x') ENVELOPE DEBEZIUM (ORDER BY source . lsn)")
    assert isinstance(statement, CreateSource)
    where = statement.envelope.order.fields[0].where  # type: ignore[union-attr]
    assert where is not None
    assert where.text == "source . lsn"
    assert FieldPath((Identifier("a"),)).where is None


def test_planning_can_point_at_a_name() -> None:
    statement = parse_one("CREATE SINK s\n  FROM ordrs TO ICEBERG CATALOG c NAMESPACE n TABLE t")
    assert isinstance(statement, CreateSink)
    error = SqlError.at(statement.source.where, 'there is no source "ordrs"', hint="Did you mean orders?")
    assert str(error).split("\n") == [
        'there is no source "ordrs"',
        "  line 2:   FROM ordrs TO ICEBERG CATALOG c NAMESPACE n TABLE t",
        "                 ^^^^^",
        "  hint: Did you mean orders?",
    ]


def test_an_error_without_a_place_is_its_text() -> None:
    assert str(SqlError.at(Identifier("a").where, "no such thing")) == "no such thing"


def test_places_take_no_part_in_comparisons() -> None:
    left, right = parse("SHOW CREATE SINK s; SHOW  CREATE  SINK  s")
    assert left == right
    assert hash(left) == hash(right)
    assert left.where != right.where


def test_views_keep_their_text() -> None:
    statement = parse_one("CREATE VIEW v AS\n  SELECT a -- the key\n  FROM t -- all\n;")
    assert isinstance(statement, CreateView)
    assert statement.query == "SELECT a -- the key\n  FROM t"


# ---- errors


def test_errors_survive_pickle_and_encoding() -> None:
    error = refused("SHOW\n SNIKS")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.position, type(again)) == (str(error), error.position, SqlSyntaxError)
    decoded = decode(f"task failed: {error.encode()}")
    assert isinstance(decoded, SqlSyntaxError)
    assert str(decoded) == str(error)
    assert error.exit_code == 2


def test_a_statement_that_is_pickled_forgets_the_script_around_it() -> None:
    statement = parse("CREATE SECRET s AS 'hunter2'; SHOW CREATE SINK t")[1]
    assert b"hunter2" not in pickle.dumps(statement)
    again = pickle.loads(pickle.dumps(statement))
    assert again == statement
