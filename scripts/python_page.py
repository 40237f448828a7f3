"""Writes docs/python.md from the docstrings of `calve.__all__`: `python scripts/python_page.py [--check]`.

Signatures are taken from the source, as they are written there. A public name without a docstring fails.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from pages import finish

import calve

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "python.md"
GROUPS = {
    "Start": ("connect", "Lake", "TableRef"),
    "Sinks": ("sink", "Sink", "Query", "ReplayReport"),
    "Sources": ("files", "kafka", "orders", "table_changes"),
    "Envelopes": ("NoEnvelope", "Upsert", "Debezium", "Diff"),
    "Reading": ("read", "changes", "stream_changes"),
    "Maintenance": ("compact", "convert_deletes"),
    "Status": ("Status", "Health", "CommitReport"),
    "Errors": ("CalveError",),
}
HEAD = """# Python reference

Everything that `import calve` offers; the rest of the package is not an interface, except for
[the metastore](metastore.md). Names are loaded when they are first used. `make docs` generates this page from the
docstrings; their examples run as tests.
"""
SHORT = 100
"""Characters of a signature that stays on one line."""


def page() -> str:
    """The whole page."""
    grouped = [name for names in GROUPS.values() for name in names]
    others = sorted(set(calve.__all__) - set(grouped))
    groups = {**GROUPS, "Other": tuple(others)} if others else GROUPS
    parts = [HEAD]
    for title, names in groups.items():
        parts.append(f"## {title}\n")
        parts.extend(part for name in names if name in calve.__all__ for part in _section(name))
    return "\n".join(parts)


def _section(name: str) -> Iterator[str]:
    value = getattr(calve, name)
    path = inspect.getsourcefile(inspect.unwrap(value))
    tree = ast.parse(Path(path or "").read_text(encoding="utf-8"))
    node = next(n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name)
    yield f"### calve.{name}\n"
    if isinstance(node, ast.FunctionDef):
        yield from _function(node, tree, prefix="calve.")
        return
    yield f"{_described(node, name)}\n"
    rows = list(_fields(node))
    if rows:
        yield "| | |\n|---|---|"
        yield from (f"| `{_cell(text)}` | {_cell(meaning)} |" for text, meaning in rows)
        yield ""
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_") and ast.get_docstring(method):
            yield f"#### {name}.{method.name}\n"
            yield from _function(method, tree, prefix=".")


def _function(node: ast.FunctionDef, tree: ast.Module, prefix: str) -> Iterator[str]:
    if any(isinstance(d, ast.Name) and d.id in {"property", "cached_property"} for d in node.decorator_list):
        yield f"```python\n{prefix}{node.name}: {ast.unparse(node.returns) if node.returns else 'Any'}\n```\n"
    else:
        yield f"```python\n{_signature(node, prefix)}\n```\n"
    yield f"{_described(node, node.name)}\n"
    if node.args.kwarg and node.args.kwarg.annotation:
        words = re.findall(r"\w+", ast.unparse(node.args.kwarg.annotation))
        for kind in (n for n in _classes(tree) if n.name in words):
            yield f"`**{node.args.kwarg.arg}`:\n\n| | |\n|---|---|"
            yield from (f"| `{_cell(text)}` | {_cell(meaning)} |" for text, meaning in _fields(kind))
            yield ""


def _signature(node: ast.FunctionDef, prefix: str) -> str:
    arguments = [a for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in {"self", "cls"}]
    node.args.args, node.args.posonlyargs = arguments, []
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{prefix}{node.name}({ast.unparse(node.args)}){returns}"
    if len(line) <= SHORT:
        return line
    parts = _split(ast.unparse(node.args))
    return f"{prefix}{node.name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"


def _split(text: str) -> list[str]:
    """The parameters of a signature: commas inside of brackets and strings do not count."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Annotated fields and members of an enumeration, with the text below them."""
    following = [*node.body[1:], None]
    for item, after in zip(node.body, following, strict=True):
        meaning = ""
        match after:
            case ast.Expr(value=ast.Constant(value=str(text))):
                meaning = " ".join(text.split())
        match item:
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                yield ast.unparse(item), meaning
            case ast.Assign(targets=[ast.Name(id=name)]) if name.isupper():
                yield ast.unparse(item), meaning


def _classes(tree: ast.Module) -> list[ast.ClassDef]:
    """The classes of a module, and of calve's modules that it imports names from."""
    found = [n for n in tree.body if isinstance(n, ast.ClassDef)]
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("calve."):
            path = ROOT / "src" / f"{(node.module or '').replace('.', '/')}.py"
            names = {alias.name for alias in node.names}
            if path.is_file():
                inside = ast.parse(path.read_text(encoding="utf-8")).body
                found += [n for n in inside if isinstance(n, ast.ClassDef) and n.name in names]
    return found


def _described(node: ast.ClassDef | ast.FunctionDef, name: str) -> str:
    """The docstring as Markdown: examples become blocks of code."""
    text = ast.get_docstring(node)
    if not text:
        sys.exit(f"{name} has no docstring")
    blocks = re.split(r"\n\s*\n", text)
    shown = []
    for block in blocks:
        lines = block.splitlines()
        if lines[0].lstrip().startswith(">>>") or all(line.startswith("    ") for line in lines):
            shown.append(f"```python\n{textwrap.dedent(block)}\n```")
        else:
            shown.append(block)
    return "\n\n".join(shown)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(finish(PAGE, page()))
