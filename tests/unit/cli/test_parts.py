"""How far a long run is, said where there is no terminal to draw bars on."""

from __future__ import annotations

import io

from rich.console import Console

from conserve.cli._parts import Parts


def said(steps: list[tuple[float, int, int]]) -> list[str]:
    """The lines for a part whose runs are done at these times."""
    text, now = io.StringIO(), iter([at for at, _, _ in steps])
    with Parts(Console(file=text, width=100), clock=lambda: next(now)) as parts:
        for _, done, of in steps:
            parts.done("claims", done, of)
    return text.getvalue().splitlines()


def test_a_line_is_said_for_each_tenth_with_the_time_left() -> None:
    steps = [(6.0 * done, done, 100) for done in range(101)]
    lines = said(steps)
    assert len(lines) == 11
    assert lines[0] == "claims: 0 of 100 runs"
    assert lines[1] == "claims: 10 of 100 runs, 9 min left"
    assert lines[-1] == "claims: 100 of 100 runs"


def test_runs_of_before_say_nothing_about_the_pace() -> None:
    lines = said([(0.0, 50, 100), (60.0, 60, 100)])
    assert lines == ["claims: 50 of 100 runs", "claims: 60 of 100 runs, 4 min left"]


def test_hours_are_said_as_hours() -> None:
    assert said([(0.0, 0, 100), (600.0, 10, 100)])[-1] == "claims: 10 of 100 runs, 1 h 30 min left"


def test_nothing_to_run_is_said_once() -> None:
    assert said([(0.0, 0, 0)]) == ["claims: 0 of 0 runs"]
