"""`conserve demo` itself: exit statuses, the JSON file, and what is shown, without any process."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner, Result

from conserve.cli import demo as command
from conserve.demo import DemoError, Options, Report, run_demo
from conserve.demo.progress import LiveProgress, Progress
from tests.unit.demo.samples import COMPUTED, conversation, fleet


def call(monkeypatch: pytest.MonkeyPatch, outcome: Report | BaseException, *arguments: str) -> Result:
    """Run the command with a demo that ends like this; `options_seen` gets what it was asked to do."""

    async def run_demo(options: Options, progress: Progress) -> Report:
        options_seen.append(options)
        progress.phase("serving")
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    options_seen.clear()
    monkeypatch.setattr(command, "run_demo", run_demo)
    app = typer.Typer()
    app.command()(command.demo)
    return CliRunner().invoke(app, list(arguments))


options_seen: list[Options] = []


def report(*problems: str, checked: bool = False) -> Report:
    return Report(
        model="random",
        conversations=(conversation(1), conversation(2)),
        fleet=fleet(2 * COMPUTED, booked=20),
        elapsed_s=2.0,
        checked=checked,
        check_elapsed_s=1.0 if checked else None,
        problems=problems,
    )


def test_success_prints_the_tables_and_writes_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "out.json"
    result = call(
        monkeypatch, report(checked=True), "--check", "--json", str(path), "--tenants", "2", "--no-headers"
    )
    assert result.exit_code == 0, result.output
    assert "task-1" in result.output
    assert "2 conversations, 4 turns, 2 KV handoffs, 0 relocations in 2 s" in result.output
    assert "every text equal to a" in result.output
    assert not [line for line in result.output.splitlines() if line != line.rstrip()], (
        "no line ends in spaces"
    )
    assert json.loads(path.read_text())["conversations"][1]["id"] == "task-2"
    assert (options_seen[0].tenants, options_seen[0].headers, options_seen[0].check) == (2, False, True)


def test_problem_is_named_and_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = call(
        monkeypatch, report("conversation task-1 was relocated once: d0", checked=True), "--json", str(path)
    )
    assert result.exit_code == 1
    assert "conversation task-1 was relocated once: d0" in result.output
    assert "every text equal" not in result.output
    assert json.loads(path.read_text())["check"]["problems"] == ["conversation task-1 was relocated once: d0"]


def test_mishap_is_told_below_the_tables_with_the_logs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unplanned = replace(
        report(),
        mishaps=("the router had a prompt computed again",),
        warnings=("d0: WARNING handoff of request 7 failed: timed out",),
        logs=tmp_path,
    )
    result = call(monkeypatch, unplanned)
    assert result.exit_code == 0, "without --check it is told, not refused"
    below = result.output[result.output.index("4 turns, 2 KV handoffs") :]
    assert "! the router had a prompt computed again" in below
    assert "d0: WARNING handoff of request 7 failed: timed out" in below
    assert f"The logs of all processes are in {tmp_path}" in below


@pytest.mark.parametrize(
    ("outcome", "status", "message"),
    [
        (DemoError("decoder d0 ended with status 1"), 3, "conserve demo: decoder d0 ended with status 1"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (asyncio.CancelledError(), 130, "interrupted"),
    ],
)
def test_demo_that_did_not_end_says_why(
    monkeypatch: pytest.MonkeyPatch, outcome: BaseException, status: int, message: str
) -> None:
    result = call(monkeypatch, outcome)
    assert result.exit_code == status
    assert message in result.output


def test_live_view_shows_each_conversation() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    one = conversation(1)
    with LiveProgress(console) as progress:
        progress.phase("serving")
        progress.agents([one.agent], turns=2)
        progress.turn_started(one.agent, 2, "grep -rnw Store src")
        progress.text(one.agent, "half an ")
        progress.text(one.agent, "[bold]answer")
        progress.turn_finished(one.agent, one.turns[1])
    shown = out.getvalue()
    assert "grep -rnw Store src" in shown
    assert "half an [bold]answer" in shown, "what a model writes is no markup"
    assert "2/2" in shown


def test_plain_view_has_one_line_for_each_turn() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, width=40))
    one = conversation(1)
    progress.turn_finished(one.agent, one.turns[1])
    assert out.getvalue().count("\n") == 1, "lines are not wrapped"
    assert "task-1 turn 2 after `ls src`: 150 prompt tokens, 112 in place" in out.getvalue()


async def test_missing_engine_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("importlib.util.find_spec", lambda _name: None)
        with pytest.raises(DemoError, match=r"pip install 'conserve-router\[engine\]'"):
            await run_demo(Options(workdir=tmp_path), Progress(Console(file=io.StringIO())))
