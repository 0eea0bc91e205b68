"""Sample values for the demo's tests: answers, a conversation of two turns, a fleet."""

from __future__ import annotations

from conserve.demo.account import Recomputation, recomputation
from conserve.demo.agent import Agent, Turn
from conserve.demo.client import Answer
from conserve.demo.plan import Plan
from conserve.demo.report import ConversationReport, FleetReport, WorkerReport


def answer(prompt: range | list[int], output: range | list[int], *, cached: int, text: str = "ok") -> Answer:
    return Answer(
        text=text,
        prompt_ids=tuple(prompt),
        output_ids=tuple(output),
        prompt_tokens=len(prompt),
        output_tokens=len(output),
        cached_tokens=cached,
        finish_reason="length",
        ttft_s=0.5,
        elapsed_s=1.0,
        headers={"x-conserve-decoder": "d0"},
    )


def account(now: Answer, before: Answer | None) -> Recomputation:
    return recomputation(now, before, block_size=16)


def conversation(
    number: int,
    *,
    handoffs: int = 1,
    relocations: int = 0,
    decoders: tuple[str, ...] = ("d0",),
    cached: int = 112,
) -> ConversationReport:
    first = answer(range(100), range(100, 120), cached=99, text="one")
    second = answer(range(150), [7], cached=cached, text="two")
    turns = (
        Turn(1, "", "", first, account(first, None)),
        Turn(2, "ls src", "src/a.py", second, account(second, first)),
    )
    return ConversationReport(
        agent=Agent(f"task-{number}", None, Plan("src/a.py", "Look.", ())),
        turns=turns,
        key="0" * 32,
        decoder="d0",
        decoders=decoders,
        handoffs=handoffs,
        relocations=relocations,
        ttfet_s=0.5,
        booked_blocks=10,
    )


def fleet(computed: int, *, booked: int = 10, check: str = "ok", **dispatch: int) -> FleetReport:
    return FleetReport(
        workers=(
            WorkerReport("p0", "prefiller", 100, 0, 0, 1, 0),
            WorkerReport("d0", "decoder", computed, 112, 99, 21, 0),
        ),
        router={
            "workers": [{"name": "p0", "booked_blocks": 0}, {"name": "d0", "booked_blocks": booked}],
            "check": check,
            "dispatch": dispatch,
        },
    )


# The decoder computed 1 token of turn 1 and 150 - 112 = 38 of turn 2.
COMPUTED = 39
