"""CREATE SOURCE."""

from calve.sql.grammar.cursor import Cursor, Distinct, names
from calve.sql.grammar.envelope import envelope
from calve.sql.grammar.objects import create_head
from calve.sql.grammar.options import options, options_or_none
from calve.sql.grammar.types import column_type
from calve.sql.lexer import TokenKind
from calve.sql.names import Identifier
from calve.sql.parts import (
    AvroFormat,
    ColumnClause,
    Envelope,
    FilesClause,
    Format,
    GeneratorClause,
    Include,
    Input,
    JsonFormat,
    KafkaClause,
    Metadata,
    ProtobufFormat,
    TableClause,
)
from calve.sql.statements import CreateSource, ObjectKind
from calve.suggest import closest_keyword, did_you_mean

_USAGE = (
    "CREATE SOURCE name [(column TYPE, ...)] FROM KAFKA ... | FROM FILES ... | FROM ICEBERG TABLE ... | "
    "FROM LOAD GENERATOR ... [ENVELOPE ...] [INFER]"
)
_COLUMNS_USAGE = "Columns are written (id BIGINT NOT NULL, ..., PRIMARY KEY (id) NOT ENFORCED)."
_INPUTS = (
    "A source reads FROM KAFKA CONNECTION name (...), FROM FILES (...), FROM ICEBERG TABLE connection.namespace.table "
    "or FROM LOAD GENERATOR name (...)."
)
_INPUT_USAGE = {
    "KAFKA": "FROM KAFKA CONNECTION name (TOPIC = '...') "
    "FORMAT JSON | AVRO | PROTOBUF [INCLUDE ...] [ENVELOPE ...] [INFER]",
    "FILES": "FROM FILES (PATH = '...', FORMAT = '...') [ENVELOPE ...] [INFER]",
    "ICEBERG": "FROM ICEBERG TABLE connection.namespace.table [(option = value, ...)]",
    "LOAD": "FROM LOAD GENERATOR name [(option = value, ...)] [ENVELOPE ...]",
}
_NOT_FOR_COLUMNS = frozenset(
    {"CHECK", "COLLATE", "COMMENT", "CONSTRAINT", "DEFAULT", "GENERATED", "REFERENCES", "UNIQUE"}
)


def create_source(cursor: Cursor) -> CreateSource:
    """CREATE SOURCE, after these words."""
    cursor.usage = _USAGE
    head = create_head(cursor, ObjectKind.SOURCE)
    declared = _Columns(cursor)
    columns, key = declared.read() if cursor.at_symbol("(") else ((), ())
    cursor.usage = _INPUTS
    cursor.expect_words("FROM", after="the columns of the source" if columns else "the name of the source")
    word = cursor.choose("input", list(_INPUT_USAGE), hint=_INPUTS)
    cursor.usage = _INPUT_USAGE[word]
    clauses = _Clauses(cursor, kafka=word == "KAFKA")
    found = {
        "KAFKA": clauses.kafka,
        "FILES": clauses.files,
        "ICEBERG": clauses.table,
        "LOAD": clauses.generator,
    }[word]()
    if not clauses.infer:
        declared.check_key()
    return CreateSource(
        name=head.name,
        if_not_exists=head.if_not_exists,
        columns=columns,
        primary_key=key,
        input=found,
        envelope=clauses.envelope,
        infer=clauses.infer is not None,
    )


def columns(cursor: Cursor) -> tuple[tuple[ColumnClause, ...], tuple[Identifier, ...]]:
    """The columns of ALTER SOURCE ... SET COLUMNS, and the key if it is repeated; it cannot change."""
    declared = _Columns(cursor)
    found = declared.read()
    declared.check_key()
    return found


class _Columns:
    """`(column TYPE [NOT NULL], ..., [PRIMARY KEY (...) NOT ENFORCED])`."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._distinct = Distinct(cursor, "column")
        self._columns: list[ColumnClause] = []
        self._key: tuple[Identifier, ...] = ()

    def read(self) -> tuple[tuple[ColumnClause, ...], tuple[Identifier, ...]]:
        self._cursor.usage = _COLUMNS_USAGE
        self._cursor.list_of(self._item, "columns")
        return tuple(self._columns), self._key

    def check_key(self) -> None:
        """Check that the columns of the key are declared, if any are."""
        for name in self._key if self._columns else ():
            self._check_key_column(name)

    def _item(self) -> None:
        if self._cursor.at_words("PRIMARY", "KEY"):
            self._primary_key()
        else:
            self._column()

    def _column(self) -> None:
        cursor = self._cursor
        name = self._distinct.add(cursor.identifier("the name of a column"))
        if cursor.at_symbol("."):
            raise cursor.error(
                "the name of a column has more than one part", hint="Declare the outer column as a STRUCT<...>."
            )
        kind = column_type(cursor)
        not_null = cursor.accept_words("NOT", "NULL")
        self._columns.append(ColumnClause(name, kind, not_null))
        self._refuse_constraints(name)

    def _refuse_constraints(self, name: Identifier) -> None:
        cursor, word = self._cursor, self._cursor.peek().word
        if cursor.at_words("PRIMARY", "KEY"):
            hint = f"Write PRIMARY KEY ({name.to_sql()}) NOT ENFORCED after the columns."
            raise cursor.error("the primary key is a separate clause", hint=hint)
        if cursor.at_words("NULL"):
            raise cursor.error("columns are nullable by default", hint="Leave NULL out.")
        if cursor.at_symbol("["):
            raise cursor.error("arrays are written ARRAY<...>", hint=f"Write ARRAY<{self._columns[-1].type}>.")
        if word in _NOT_FOR_COLUMNS:
            raise cursor.error(
                f"columns of a source do not support {word}", hint="A column is a name, a type and NOT NULL."
            )

    def _primary_key(self) -> None:
        cursor = self._cursor
        if self._key:
            raise cursor.error(
                "a source has one primary key", hint="Write PRIMARY KEY (a, b) NOT ENFORCED for several columns."
            )
        cursor.accept_words("PRIMARY", "KEY")
        self._key = names(cursor, "key column")
        if not cursor.accept_words("NOT", "ENFORCED"):
            raise cursor.unexpected("NOT ENFORCED after the primary key", "calve does not enforce the key of a source.")

    def _check_key_column(self, name: Identifier) -> None:
        if not self._distinct.finds(name):
            known = {column.upper(): column for column in self._distinct.names()}
            guess = closest_keyword(name.name, known)
            hint = did_you_mean(known[guess] if guess else None, "The primary key names columns of the source.")
            raise self._cursor.error(f'column "{name}" of the primary key is not declared', name.where, hint)


class _Clauses:
    """The input of a source and the clauses after it, in any order, each once."""

    def __init__(self, cursor: Cursor, *, kafka: bool) -> None:
        self._cursor = cursor
        self._kafka = kafka
        self._format: Format | None = None
        self._include: tuple[Include, ...] | None = None
        self.envelope: Envelope | None = None
        self.infer: bool | None = None

    def kafka(self) -> Input:
        cursor = self._cursor
        cursor.expect_words("CONNECTION", after="KAFKA")
        connection = cursor.name("the name of a connection")
        found = options(cursor)
        self._read()
        if self._format is None:
            raise cursor.unexpected("FORMAT after the topic", "Write FORMAT JSON, FORMAT AVRO or FORMAT PROTOBUF.")
        return KafkaClause(connection, found, self._format, self._include or ())

    def files(self) -> Input:
        found = FilesClause(options(self._cursor))
        self._read()
        return found

    def table(self) -> Input:
        self._cursor.expect_words("TABLE", after="ICEBERG")
        name = self._cursor.field_path("the name of a table: connection.namespace.table")
        found = TableClause(name, options_or_none(self._cursor))
        self._read()
        return found

    def generator(self) -> Input:
        self._cursor.expect_words("GENERATOR", after="LOAD")
        found = GeneratorClause(self._cursor.name("the name of a generator"), options_or_none(self._cursor))
        self._read()
        return found

    def _read(self) -> None:
        cursor = self._cursor
        while not cursor.peek().ends_statement:
            if cursor.at_words("FORMAT") and self._may("FORMAT", self._format):
                self._format = _format(cursor)
            elif cursor.at_words("INCLUDE") and self._may("INCLUDE", self._include):
                self._include = _include(cursor)
            elif cursor.at_words("ENVELOPE") and self._may("ENVELOPE", self.envelope):
                self.envelope = envelope(cursor)
            elif cursor.at_words("INFER") and self._may("INFER", self.infer):
                self.infer = True
            elif cursor.at_words("WITH"):
                hint = "Options of a source go into the parentheses after its input."
                raise cursor.error("a source has no WITH", hint=hint)
            else:
                cursor.expect_end("CREATE SOURCE")

    def _may(self, word: str, before: object) -> bool:
        cursor = self._cursor
        if before is not None:
            raise cursor.error(f"{word} is given twice", hint="")
        if word in {"FORMAT", "INCLUDE"} and not self._kafka:
            hint = "For files it is an option: FROM FILES (PATH = '...', FORMAT = 'json')."
            raise cursor.error(f"{word} is only for Kafka", hint=hint if word == "FORMAT" else "")
        cursor.next()
        return True


def _format(cursor: Cursor) -> Format:
    kind = cursor.choose("format", ["JSON", "AVRO", "PROTOBUF"])
    if kind == "JSON":
        return JsonFormat()
    if kind == "PROTOBUF":
        return _protobuf(cursor)
    if not cursor.accept_words("USING"):
        return AvroFormat()
    hint = "Write USING SCHEMA REGISTRY (URL = '...') or USING SCHEMA '{...}'."
    cursor.accept_words("CONFLUENT")
    if not cursor.accept_words("SCHEMA"):
        raise cursor.unexpected("SCHEMA after USING", hint)
    if cursor.accept_words("REGISTRY"):
        if cursor.at_words("CONNECTION"):
            raise cursor.error("a schema registry does not take a connection", hint=hint)
        return AvroFormat(registry=options(cursor))
    if cursor.peek().kind is not TokenKind.STRING:
        raise cursor.unexpected("REGISTRY or a schema in single quotes", hint)
    return AvroFormat(schema=cursor.next().value)


def _protobuf(cursor: Cursor) -> Format:
    hint = "Write USING SCHEMA REGISTRY (URL = '...')."
    if not cursor.accept_words("USING"):
        raise cursor.unexpected("USING SCHEMA REGISTRY after PROTOBUF", hint)
    cursor.accept_words("CONFLUENT")
    if not (cursor.accept_words("SCHEMA") and cursor.accept_words("REGISTRY")):
        raise cursor.unexpected("SCHEMA REGISTRY after USING", hint)
    if cursor.at_words("CONNECTION"):
        raise cursor.error("a schema registry does not take a connection", hint=hint)
    return ProtobufFormat(options(cursor))


def _include(cursor: Cursor) -> tuple[Include, ...]:
    """`KEY AS k, OFFSET, ...`."""
    found: dict[Metadata, Include] = {}
    while True:
        token = cursor.peek()
        metadata = Metadata(cursor.choose("metadata", [item.value for item in Metadata]))
        if metadata in found:
            raise cursor.error(f"{metadata.value} is included twice", token, "")
        name = cursor.identifier("the name of a column") if cursor.accept_words("AS") else None
        found[metadata] = Include(metadata, name)
        if not cursor.accept_symbol(","):
            return tuple(found.values())
