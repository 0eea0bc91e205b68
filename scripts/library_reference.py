"""The page of the library's classes, from the stub of the extension: a part of `write_reference.py`."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "python" / "conserve"
HEAD = """\
# The library

Import these names from `conserve`. Units: `_s` is seconds on the router's clock, `_tokens` tokens, `_blocks` KV blocks of
`block_size` tokens. All classes may be used from several threads at once. [Errors](errors.md) have a page of their own.
"""


def public() -> list[str]:
    """The names that `conserve` exports and the stub defines, in the stub's order."""
    exported = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    names = next(
        ast.literal_eval(node.value)
        for node in exported.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return [name for name in names if not name.startswith("_")]


def prose(text: str) -> str:
    """A docstring as Markdown: examples fenced, options as a list."""
    lines = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith(">>> "):
            lines.append(f"```pycon\n{paragraph}\n```")
        elif paragraph.startswith("Options:\n"):
            items = re.sub(r"^    (?=\S)", "- ", paragraph.removeprefix("Options:\n"), flags=re.MULTILINE)
            lines.append(
                re.sub(
                    r"^ {8}",
                    "  ",
                    re.sub(r"^- (\w+):", r"- `\1`:", items, flags=re.MULTILINE),
                    flags=re.MULTILINE,
                )
            )
        else:
            lines.append(paragraph)
    return "\n\n".join(lines)


def is_property(member: ast.FunctionDef) -> bool:
    """Whether it is read without a call."""
    return any(ast.unparse(decorator) == "property" for decorator in member.decorator_list)


def signature(kind: ast.ClassDef, member: ast.FunctionDef) -> str:
    """The call as one would type it, without `self`."""
    arguments = ast.unparse(member.args)
    arguments = re.sub(r"^(self|cls)(, /)?(, )?", "", arguments)
    name = kind.name if member.name == "__new__" else member.name
    result = (
        "" if member.returns is None or member.name == "__new__" else f" -> {ast.unparse(member.returns)}"
    )
    return f"{name}({arguments}){result}"


def members(kind: ast.ClassDef) -> Iterator[str]:
    """The table of its attributes, then its methods."""
    functions = [member for member in kind.body if isinstance(member, ast.FunctionDef)]
    properties = [member for member in functions if is_property(member)]
    if properties:
        yield "| attribute | type | |\n|---|---|---|"
    for member in properties:
        kind_of = ast.unparse(member.returns).replace("|", "\\|") if member.returns else ""
        text = " ".join((ast.get_docstring(member) or "").split()).replace("|", "\\|")
        yield f"| `{member.name}` | `{kind_of}` | {text} |"
    for member in functions:
        if not member.name.startswith("_") and not is_property(member):
            yield f"\n#### `{signature(kind, member)}`\n\n{prose(ast.get_docstring(member) or '')}".rstrip()


def library_page() -> str:
    """Every class, its options, attributes and methods."""
    stub = ast.parse((PACKAGE / "_core.pyi").read_text(encoding="utf-8"))
    wanted = public()
    parts = [HEAD]
    for kind in stub.body:
        if not isinstance(kind, ast.ClassDef) or kind.name not in wanted:
            continue
        built = [m for m in kind.body if isinstance(m, ast.FunctionDef) and m.name == "__new__"]
        call = f"\n\n```text\n{signature(kind, built[0])}\n```" if built else ""
        parts.append(f"## {kind.name}{call}\n\n{prose(ast.get_docstring(kind) or '')}\n")
        parts.append("\n".join(members(kind)).strip() + "\n")
    text = "\n".join(part for part in parts if part.strip()).rstrip() + "\n"
    # The stub's private aliases mean nothing to a reader.
    for node in stub.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            text = re.sub(rf"\b{node.target.id}\b", ast.unparse(node.value), text)
    return text
