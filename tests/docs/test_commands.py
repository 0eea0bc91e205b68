"""The commands that the pages print have the options they use, and `make` has the targets."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "workers" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?:sh|console|text)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = {
    "conserve serve": (sys.executable, "-m", "conserve.cli", "serve", "--help"),
    "conserve up": (sys.executable, "-m", "conserve.cli", "up", "--help"),
    "conserve demo": (sys.executable, "-m", "conserve.cli", "demo", "--help"),
    "conserve bench live": (sys.executable, "-m", "conserve.cli", "bench", "live", "--help"),
    "python -m conserve_workers.tiny": (sys.executable, "-m", "conserve_workers.tiny", "--help"),
}


def commands() -> list[tuple[str, str]]:
    """Each command line in a fenced block with the page it is on, comments and continuations resolved."""
    found = []
    for page in PAGES:
        for block in FENCE.findall(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                command = line.partition("#")[0].strip().replace(".venv/bin/", "")
                if command.startswith(("make ", *PROGRAMS)):
                    found.append((str(page.relative_to(ROOT)), command))
    return found


@functools.cache
def help_of(program: str) -> str:
    done = subprocess.run(PROGRAMS[program], capture_output=True, text=True, timeout=100, check=True)
    return done.stdout


@pytest.mark.parametrize(("page", "command"), commands())
def test_printed_command_exists(page: str, command: str) -> None:
    words = shlex.split(command)
    if words[0] == "make":
        targets = {word for word in words[1:] if "=" not in word}
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        missing = {target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)}
    else:
        program = next(name for name in PROGRAMS if command.startswith(name))
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        text = help_of(program)
        missing = {option for option in options if not re.search(rf"{option}\b", text)}
    assert not missing, f"{page} prints {command!r}"


def test_the_two_commands_are_on_the_first_screen() -> None:
    first = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:20]
    assert any(line.startswith("make demo") for line in first)
    assert any(line.startswith("make test") for line in first)
