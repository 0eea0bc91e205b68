"""The fixed plan of each agent: its task, the file it begins with, and the tool of each later turn.

A model of this size cannot choose tools, so the plan does; nothing in it depends on the answers. Agents are given
different files, so that no two conversations begin alike.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath

from .tools import CountLines, Grep, ListFiles, Outline, ReadLines, Tool
from .workspace import CODE, Workspace

SYSTEM = "You are a careful software engineer. You read files, you run tools, and you answer in a few plain sentences."

_GOALS = (
    "Explain what this file is for and which promise it makes to its callers.",
    "Find the function that is most likely to be wrong when its input is empty, and say why.",
    "Say which names a newcomer would misunderstand, and propose better ones.",
    "List what this file needs from other files, and what would break if they changed.",
    "Write down which cases a test of this file must cover.",
    "Say what happens when an operation in this file fails half way.",
    "Summarise this file for the release notes.",
    "Find the part of this file that costs the most time, and say how you would measure it.",
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{4,}")
_SLICE_LINES = 14


@dataclass(frozen=True, slots=True)
class Step:
    """What happens before a later turn: a tool runs, and a question is asked about its output."""

    tool: Tool
    question: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What one agent does. `task` is the first user message; `steps[n]` is run before turn n + 2."""

    path: str
    task: str
    steps: tuple[Step, ...]


def make_plan(workspace: Workspace, agent: int, *, turns: int, prompt_chars: int) -> Plan:
    """The plan of agent number `agent`, from the files of the workspace alone.

    Agents take code before prose, and the longest files first. When there are more agents than files, the next ones begin further down.
    """
    ranked = sorted(
        workspace.files,
        key=lambda path: (PurePosixPath(path).suffix not in CODE, -len(workspace.read(path)), path),
    )
    path = ranked[agent % len(ranked)]
    lines = workspace.lines(path)
    first = (agent // len(ranked) * 40) % max(1, len(lines) - 20)
    shown = _fitting(lines[first:], prompt_chars)
    last = first + len(shown)
    goal = _GOALS[agent % len(_GOALS)]
    task = (
        f"Task {agent + 1}. {goal} The file is {path}, {len(lines)} lines long. Here are its lines {first + 1} to {last}:\n\n"
        + "\n".join(shown)
        + "\n\nBegin with what you see here. You will be shown more of the project in the next turns."
    )
    return Plan(path=path, task=task, steps=tuple(_steps(path, lines, last, turns - 1)))


def _steps(path: str, lines: list[str], seen: int, count: int) -> list[Step]:
    """The tools of the later turns, in the order in which an engineer would reach for them."""
    folder = PurePosixPath(path).parent.as_posix()
    folder = "" if folder == "." else folder
    words = Counter(word for line in lines for word in _WORD.findall(line))
    ranked = [word for word, _ in words.most_common(count)] or ["main"]
    steps: list[Step] = []
    for turn in range(count):
        lap, kind = divmod(turn, 5)
        word = ranked[lap % len(ranked)]
        start = (seen + lap * _SLICE_LINES) % max(1, len(lines)) + 1
        if kind == 0:
            steps.append(Step(Outline(path), "Which three of these names matter most, and why?"))
        elif kind == 1:
            steps.append(Step(Grep(word, folder), f"How is `{word}` used? Name one of the files."))
        elif kind == 2:
            steps.append(Step(ReadLines(path, start, _SLICE_LINES), "What do these lines do, step by step?"))
        elif kind == 3:
            steps.append(Step(CountLines(folder), "Which file would you split first, and into which parts?"))
        else:
            steps.append(Step(ListFiles(folder), "Which of these files would you read next, and what for?"))
    return steps


def _fitting(lines: list[str], max_chars: int) -> list[str]:
    """As many of the first lines as fit, at least one; a line longer than all of it is cut."""
    taken: list[str] = []
    room = max_chars
    for line in lines:
        if len(line) + 1 > room:
            break
        taken.append(line)
        room -= len(line) + 1
    return taken or [line[:max_chars] for line in lines[:1]]
