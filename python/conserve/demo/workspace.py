"""The directory that the agents work on: which text files it has, and their lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CODE = frozenset(
    [".c", ".cc", ".cpp", ".go", ".h", ".hpp", ".java", ".js", ".py", ".rb", ".rs", ".sh", ".sql", ".ts"]
)
"""Suffixes of programs; the agents begin with these."""
_SUFFIXES = CODE | frozenset(
    [".css", ".html", ".json", ".md", ".pyi", ".rst", ".toml", ".txt", ".yaml", ".yml"]
)
_SKIPPED = frozenset({"__pycache__", "build", "dist", "node_modules", "out", "target", "venv"})
_MIN_BYTES = 400
_MAX_BYTES = 400_000
_MAX_FILES = 5_000


class WorkspaceError(ValueError):
    """The directory cannot be worked on; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Text files below a root, as relative paths with `/`, sorted."""

    root: Path
    files: tuple[str, ...]

    @classmethod
    def scan(cls, root: Path) -> Workspace:
        """Find the text files below `root`; hidden folders, build outputs and links are passed over.

        Raises:
            WorkspaceError: `root` is no directory, or has no text file of a useful size.
        """
        if not root.is_dir():
            raise WorkspaceError(f"{root} is not a directory")
        files: list[str] = []
        pending = [root]
        while pending and len(files) < _MAX_FILES:
            for entry in sorted(pending.pop().iterdir()):
                if entry.name.startswith(".") or entry.is_symlink():
                    continue
                if entry.is_dir():
                    if entry.name not in _SKIPPED:
                        pending.append(entry)
                elif entry.suffix in _SUFFIXES and _MIN_BYTES <= entry.stat().st_size <= _MAX_BYTES:
                    files.append(entry.relative_to(root).as_posix())
        if not files:
            raise WorkspaceError(f"{root} has no text file of {_MIN_BYTES} to {_MAX_BYTES} bytes to work on")
        return cls(root, tuple(sorted(files)))

    def read(self, path: str) -> str:
        """The text of a file; bytes that are not UTF-8 are replaced."""
        return (self.root / path).read_text("utf-8", "replace")

    def lines(self, path: str) -> list[str]:
        """The lines of a file, without their ends."""
        return self.read(path).splitlines()
