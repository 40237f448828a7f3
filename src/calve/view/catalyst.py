"""Reads and changes Spark's logical plans from Python: the only module that touches Catalyst.

A view is a query that Spark's own parser and analyser read. The result is a tree of operators whose columns carry ids;
calve walks that tree and inserts operators, so it never has to resolve a name, an alias or a scope itself. All
constructors and methods used here are the same in Spark 3.5 to 4.3; differences are in `spark/version.py`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from calve.spark.sqltext import ident
from calve.spark.version import frames_of, inlined_ctes, java_class

Node = Any
"""A LogicalPlan or an Expression of the JVM."""


def kind(node: Node) -> str:
    """The name of an operator's or an expression's class."""
    return str(node.getClass().getSimpleName()).removesuffix("$")


def items(seq: Any) -> list[Any]:
    """A Scala Seq as a list."""
    return [seq.apply(i) for i in range(seq.length())]


def children(node: Node) -> list[Node]:
    """The direct children of a node."""
    return items(node.children())


def column_id(named: Node) -> int:
    """The id that identifies a column within its plan."""
    return int(named.exprId().id())


def outputs(plan: Node) -> list[Node]:
    """The columns of an operator."""
    return items(plan.output())


def walk(node: Node) -> Iterator[Node]:
    """A node and everything below it: operators of a plan, or expressions of an expression."""
    yield node
    for child in children(node):
        yield from walk(child)


def expressions_of(plan: Node) -> Iterator[Node]:
    """All expressions of one operator, nested ones included."""
    for expression in items(plan.expressions()):
        yield from walk(expression)


def referenced(expression: Node) -> set[int]:
    """Ids of the columns that an expression reads."""
    return {column_id(e) for e in walk(expression) if kind(e) == "AttributeReference"}


_SQL = "org.apache.spark.sql"
_PLANS = f"{_SQL}.catalyst.plans"


class Catalyst:
    """Builds plans and expressions in the JVM. Every call is a round trip, so classes are looked up once."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        jvm: Any = spark._jvm  # noqa: SLF001 - the only access to plans
        state = spark._jsparkSession.sessionState()  # noqa: SLF001 - as above
        self._state, self._parser = state, state.sqlParser()
        self._skip_commands = java_class(jvm, f"{_SQL}.execution.CommandExecutionMode").SKIP()
        self._inline = inlined_ctes(jvm)
        self._dataset = frames_of(jvm)
        self._project, self._filter = (java_class(jvm, f"{_PLANS}.logical.{name}") for name in ("Project", "Filter"))
        self._left_outer = java_class(jvm, f"{_PLANS}.JoinType").apply("leftouter")
        names = ("If", "And", "Alias")
        self._if, self._and, self._alias = (java_class(jvm, f"{_SQL}.catalyst.expressions.{name}") for name in names)
        self._option, self._list = java_class(jvm, "scala.Option"), java_class(jvm, "java.util.ArrayList")
        self._to_seq = jvm.PythonUtils.toSeq
        self._none, self._empty = self._option.apply(None), self.seq([])
        self._texts: dict[str, Node] = {}

    # plans

    def parse(self, query: str) -> Node:
        """Parse a query; names stay unresolved."""
        return self._parser.parsePlan(query)

    def analyse(self, plan: Node) -> Node:
        """Resolve all names of a plan and inline common table expressions; executes nothing."""
        execution = self._state.executePlan(plan, self._skip_commands)
        execution.assertAnalyzed()
        return self._inline.apply(execution.analyzed())

    def frame(self, plan: Node, spark: SparkSession | None = None) -> DataFrame:
        """A frame with the rows of a plan, in this session or in `spark`."""
        session = spark or self.spark
        return DataFrame(self._dataset.ofRows(session._jsparkSession, plan), session)  # noqa: SLF001 - as above

    @staticmethod
    def plan_of(frame: DataFrame) -> Node:
        """The analysed plan of a frame."""
        return frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - as above

    def project(self, columns: Sequence[Node], child: Node) -> Node:
        """A projection."""
        return self._project(self.seq(columns), child)

    def filter(self, condition: Node, child: Node) -> Node:
        """A filter."""
        return self._filter(condition, child)

    def left_join(self, join: Node, left: Node, right: Node, condition: Node) -> Node:
        """The left outer variant of a join, with the same hints."""
        return join.copy(left, right, self._left_outer, self._option.apply(condition), join.hint())

    # expressions

    def seq(self, nodes: Sequence[Node]) -> Any:
        """A list as a Scala Seq."""
        found = self._list()
        for node in nodes:
            found.add(node)
        return self._to_seq(found)

    def expression(self, text: str) -> Node:
        """Parse an SQL expression; names stay unresolved."""
        found = self._texts.get(text)
        if found is None:
            found = self._texts[text] = self._parser.parseExpression(text)
        return found

    def named(self, expression: Node, name: str) -> Node:
        """An expression as a new column."""
        alias = self._parser.parseExpression(f"null as {ident(name)}")  # a fresh id every time
        return self.with_children(alias, [expression])

    def renamed(self, expression: Node, column: Node) -> Node:
        """An expression that takes the place of a column, with its name and id."""
        return self._alias(expression, column.name(), column.exprId(), self._empty, self._none, self._empty)

    def if_else(self, condition: Node, value: Node, otherwise: str = "null") -> Node:
        """A value that is computed only if a condition holds."""
        return self._if(condition, value, self.expression(otherwise))

    def both(self, left: Node, right: Node) -> Node:
        """A conjunction."""
        return self._and(left, right)

    def with_children(self, node: Node, new: Sequence[Node]) -> Node:
        """A copy of a node with other children."""
        return node.withNewChildren(self.seq(new))
