"""How a statement's clauses become text: all on one line, or for people a line each."""

from dataclasses import dataclass

_NARROW = 80
_WIDE = 100


@dataclass(frozen=True)
class Listed:
    """A clause that ends with a list: `head (item, item)`."""

    head: str
    items: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.head} ({', '.join(self.items)})"


Clause = str | Listed


def one_line(clauses: list[Clause]) -> str:
    """The canonical text."""
    return " ".join(str(clause) for clause in clauses)


def many_lines(clauses: list[Clause]) -> str:
    """The same words, with a line for each clause unless the statement is short, and for each item of a long list."""
    short = one_line(clauses)
    if len(short) <= _NARROW and "\n" not in short:
        return short
    first, *rest = clauses
    return "\n  ".join([_laid_out(first, ""), *(_laid_out(clause, "  ") for clause in rest)])


def _laid_out(clause: Clause, indent: str) -> str:
    text = str(clause)
    if isinstance(clause, str) or len(indent) + len(text) <= _WIDE:
        return text
    items = "".join(f"\n{indent}  {item}," for item in clause.items).removesuffix(",")
    return f"{clause.head} ({items}\n{indent})"
