"""ALTER applied to the statement that created an object: what `SHOW CREATE` prints afterwards. Pure."""

from dataclasses import replace
from typing import Final, TypeVar

from calve.plan import catalogue
from calve.plan.settings import SettingGroup
from calve.sql import parts
from calve.sql import statements as st
from calve.sql.options import Options

S = TypeVar("S", bound=st.Create)

ALTERED: Final[dict[type[st.Alter], st.ObjectKind]] = {
    st.AlterSecret: st.ObjectKind.SECRET,
    st.AlterConnection: st.ObjectKind.CONNECTION,
    st.AlterSource: st.ObjectKind.SOURCE,
    st.AlterView: st.ObjectKind.VIEW,
    st.AlterSink: st.ObjectKind.SINK,
}
"""The kind of object that a statement alters."""

_CONNECTIONS: Final = {
    st.ConnectionKind.AWS: catalogue.AWS,
    st.ConnectionKind.ICEBERG_CATALOG: catalogue.ICEBERG_CATALOG,
    st.ConnectionKind.KAFKA: catalogue.KAFKA,
}
_INPUTS: Final[dict[type[parts.Input], SettingGroup]] = {
    parts.FilesClause: catalogue.FILES,
    parts.GeneratorClause: catalogue.GENERATOR,
    parts.KafkaClause: catalogue.KAFKA_SOURCE,
    parts.TableClause: catalogue.TABLE_SOURCE,
}


def options_of(statement: st.Create) -> tuple[SettingGroup, Options]:
    """The options of an object that ALTER ... SET and RESET change, and their declarations."""
    match statement:
        case st.CreateConnection():
            return _CONNECTIONS[statement.kind], statement.options
        case st.CreateSource():
            return _INPUTS[type(statement.input)], statement.input.options
        case st.CreateSink():
            return catalogue.SINK, statement.options
        case _:
            raise TypeError(f"{type(statement).__name__} has no options")


def altered_options(statement: S, action: st.OptionsAction) -> S:
    """The statement after SET (...) or RESET (...). Raises SqlError for names of options that do not exist."""
    group, options = options_of(statement)
    if isinstance(action, st.SetOptions):
        options = options.updated(action.options)
    else:
        for name in action.names:
            if group.find(name.text) is None:
                raise group.unknown(name.text, name.where)
        options = options.without(name.text for name in action.names)
    if isinstance(statement, st.CreateSource):
        return replace(statement, input=replace(statement.input, options=options))
    return replace(statement, options=options)  # type: ignore[call-arg]  # connections and sinks have them


def altered(statement: st.Create, alteration: st.Alter) -> st.Create:
    """The statement after an ALTER; PAUSE and the like do not change it."""
    match statement, alteration:
        case st.CreateSecret(), st.AlterSecret(origin=origin):
            return replace(statement, origin=origin)
        case st.CreateView(), st.AlterView(query=query):
            return replace(statement, query=query)
        case st.CreateSource(), st.AlterSource(action=st.SetColumns(columns)):
            return replace(statement, columns=columns)
        case st.CreateSink(), st.AlterSink(action=st.SetFrom(source)):
            return replace(statement, source=source)
        case st.CreateSink(), st.AlterSink(action=st.SetPartitioning(fields)):
            return replace(statement, partition_by=fields)
        case (
            (st.CreateConnection(), st.AlterConnection(action=action))
            | (st.CreateSource(), st.AlterSource(action=action))
            | (st.CreateSink(), st.AlterSink(action=action))
        ) if isinstance(action, st.SetOptions | st.ResetOptions):
            return altered_options(statement, action)
        case _:
            return statement
