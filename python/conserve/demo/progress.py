"""What is shown while the demo runs: a live table on a terminal, one line for each step elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from conserve.supervisor import WorkerProcess

from .agent import Agent, Turn

_TEXT_CHARS = 200
# A column without a width takes what is left.
_COLUMNS = (
    ("conversation", 12),
    ("turn", 5),
    ("decoder", 7),
    ("state", 14),
    ("tool", None),
    ("answer", None),
)


class Progress:
    """Prints one line for each step. The base of the live view, and what a log file gets."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def phase(self, text: str) -> None:
        """A new part of the demo begins."""
        self.console.print(f"[bold]==> {escape(text)}[/]", highlight=False, soft_wrap=True)

    def agents(self, agents: list[Agent], turns: int) -> None:
        """These agents are about to begin."""

    def process_ready(self, process: WorkerProcess) -> None:
        """A worker or the router serves."""
        self.console.print(
            f"    {process.name} ({process.spec.role}, pid {process.pid}) serves at {process.url}",
            highlight=False,
        )

    def turn_started(self, agent: Agent, turn: int, command: str) -> None:
        """A request is about to be sent."""

    def text(self, agent: Agent, piece: str) -> None:
        """A piece of an answer came."""

    def turn_finished(self, agent: Agent, turn: Turn) -> None:
        """An answer is whole."""
        tool = f" after `{turn.command}`" if turn.command else ""
        self.console.print(
            f"    {agent.label} turn {turn.number}{tool}: {turn.answer.prompt_tokens:,} prompt tokens, "
            f"{turn.answer.cached_tokens:,} in place, first token {turn.answer.ttft_s:.2f} s, "
            f"answer of {turn.answer.output_tokens} in {turn.answer.elapsed_s:.2f} s",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


class LiveProgress(Progress):
    """A table that is redrawn eight times a second: where each conversation is and what it is saying."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._rows: dict[str, _Row] = {}
        self._turns = 0
        self._live = Live(console=console, get_renderable=self._table, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def phase(self, text: str) -> None:
        """A new part begins: the table is empty until its agents are known."""
        self._rows = {}
        super().phase(text)

    def agents(self, agents: list[Agent], turns: int) -> None:
        """One row for each agent."""
        self._turns = turns
        self._rows = {agent.label: _Row() for agent in agents}

    def turn_started(self, agent: Agent, turn: int, command: str) -> None:
        """The row waits for its answer."""
        row = self._rows[agent.label]
        row.turn, row.tool, row.text, row.state = turn, command or "(the task itself)", "", "waiting"

    def text(self, agent: Agent, piece: str) -> None:
        """The row shows the end of the answer."""
        row = self._rows[agent.label]
        row.text += piece
        row.state = "answering"

    def turn_finished(self, agent: Agent, turn: Turn) -> None:
        """The row names the decoder that answered."""
        row = self._rows[agent.label]
        row.decoder = turn.answer.headers.get("x-conserve-decoder", "")
        row.state = "done" if turn.number == self._turns else "running a tool"

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 1), show_header=bool(self._rows), expand=True)
        for name, width in _COLUMNS:
            table.add_column(name, no_wrap=True, overflow="ellipsis", width=width, ratio=None if width else 1)
        for label, row in self._rows.items():
            text = " ".join(row.text.split())
            table.add_row(
                label,
                f"{row.turn}/{self._turns}",
                row.decoder,
                row.state,
                escape(row.tool),
                escape(text[-_TEXT_CHARS:]),
            )
        return table


class _Row:
    """One line of the live table."""

    def __init__(self) -> None:
        self.turn = 0
        self.tool = ""
        self.text = ""
        self.state = ""
        self.decoder = ""


def progress_for(console: Console) -> Progress:
    """The live view when somebody looks at a terminal, lines otherwise."""
    return LiveProgress(console) if console.is_terminal else Progress(console)
