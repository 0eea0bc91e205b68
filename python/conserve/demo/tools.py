"""Tools that run for real on the workspace. Each has the command line that an agent would type and gives its output."""

from __future__ import annotations

import ast
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import PurePosixPath

from .workspace import Workspace

_HEADS = re.compile(
    r"^\s*((?:pub(?:\(\w+\))? )?(?:async )?(?:fn|struct|enum|trait|impl|mod|class|def|func|function|type) [^{(:;]+|#{1,4} .+|\[[^\]]+\])"
)


class Tool(ABC):
    """Something an agent runs between two turns."""

    @property
    @abstractmethod
    def command(self) -> str:
        """The command line, as it is shown to the model and to the user."""

    @abstractmethod
    def output(self, workspace: Workspace) -> str:
        """Run on the workspace's files as they are now."""

    def run(self, workspace: Workspace, *, max_chars: int) -> str:
        """The output, cut to `max_chars` with a note of how much was left out."""
        text = self.output(workspace) or "(no output)"
        if len(text) <= max_chars:
            return text
        return f"{text[:max_chars]}\n[{len(text) - max_chars} more characters]"


@dataclass(frozen=True, slots=True)
class ListFiles(Tool):
    """The files below a folder, with their sizes in bytes."""

    folder: str

    @property
    def command(self) -> str:
        """`ls FOLDER`."""
        return f"ls {self.folder or '.'}"

    def output(self, workspace: Workspace) -> str:
        """One line for each file: size and path."""
        return "\n".join(
            f"{(workspace.root / path).stat().st_size:>8} {path}"
            for path in workspace.files
            if _below(path, self.folder)
        )


@dataclass(frozen=True, slots=True)
class ReadLines(Tool):
    """A slice of a file."""

    path: str
    first: int
    count: int

    @property
    def command(self) -> str:
        """`sed -n FIRST,LASTp PATH`."""
        return f"sed -n {self.first},{self.first + self.count - 1}p {self.path}"

    def output(self, workspace: Workspace) -> str:
        """The lines, numbered from `first`."""
        lines = workspace.lines(self.path)[self.first - 1 : self.first - 1 + self.count]
        return "\n".join(f"{number} {line}" for number, line in enumerate(lines, self.first))


@dataclass(frozen=True, slots=True)
class Grep(Tool):
    """Where a word occurs below a folder."""

    word: str
    folder: str

    @property
    def command(self) -> str:
        """`grep -rnw WORD FOLDER`."""
        return f"grep -rnw {self.word} {self.folder or '.'}"

    def output(self, workspace: Workspace) -> str:
        """`PATH:LINE:TEXT` for each line with the word."""
        pattern = re.compile(rf"\b{re.escape(self.word)}\b")
        return "\n".join(
            f"{path}:{number}:{line.strip()}"
            for path in workspace.files
            if _below(path, self.folder)
            for number, line in enumerate(workspace.lines(path), 1)
            if pattern.search(line)
        )


@dataclass(frozen=True, slots=True)
class CountLines(Tool):
    """How long the files of a folder are."""

    folder: str

    @property
    def command(self) -> str:
        """`wc -l FOLDER/*`."""
        return f"wc -l {self.folder or '.'}/*"

    def output(self, workspace: Workspace) -> str:
        """Lines of each file, the longest first, and their sum."""
        counts = [(len(workspace.lines(path)), path) for path in workspace.files if _below(path, self.folder)]
        rows = [
            *sorted(counts, key=lambda row: (-row[0], row[1])),
            (sum(count for count, _ in counts), "total"),
        ]
        return "\n".join(f"{count:>6} {path}" for count, path in rows)


@dataclass(frozen=True, slots=True)
class Outline(Tool):
    """What a file defines: Python by its syntax tree, other files by the lines that look like heads."""

    path: str

    @property
    def command(self) -> str:
        """`outline PATH`."""
        return f"outline {self.path}"

    def output(self, workspace: Workspace) -> str:
        """Line number and name of each definition or heading."""
        text = workspace.read(self.path)
        if PurePosixPath(self.path).suffix in {".py", ".pyi"}:
            try:
                return "\n".join(_definitions(ast.parse(text).body, indent=0))
            except SyntaxError as error:
                return f"{self.path}:{error.lineno}: {error.msg}"
        return "\n".join(
            f"{number} {match.group(1).strip()}"
            for number, line in enumerate(text.splitlines(), 1)
            if (match := _HEADS.match(line))
        )


def _below(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(folder + "/")


def _definitions(body: list[ast.stmt], *, indent: int) -> list[str]:
    """`LINE kind name(arguments)` of each definition, those of a class indented below it."""
    rows: list[str] = []
    for node in body:
        if isinstance(node, ast.ClassDef):
            rows.append(f"{node.lineno} {'  ' * indent}class {node.name}")
            rows += _definitions(node.body, indent=indent + 1)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = ", ".join(argument.arg for argument in node.args.args)
            rows.append(f"{node.lineno} {'  ' * indent}def {node.name}({names})")
    return rows
