"""A random life of a router against a naive model: pins, capacity, one settlement each, FIFO, the accounting identity."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import ceil
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from conserve import Decoder, Draining, ManualClock, NoWorkers, Overloaded, Prefiller, Rejected, Router, Turn

BLOCK = 16
CAPACITY = 50
conversations = st.sampled_from([f"task-{n}" for n in range(6)])
# 50 blocks of 16 tokens: beyond 800 no decoder fits.
prompts = st.integers(min_value=1, max_value=820)
outputs = st.integers(min_value=0, max_value=200)
picks = st.integers(min_value=0, max_value=1_000)


@dataclass(eq=False)
class Known:
    """What the model knows about a live conversation."""

    turns: int = 0
    decoder: int = -1
    pinned: bool = False


@dataclass(eq=False)
class Open:
    """A turn that was let in and is not settled."""

    conversation: str
    known: Known
    turn: Turn


@dataclass(eq=False)
class Waiter:
    conversation: str
    task: asyncio.Task[Turn]
    newcomer: bool


def some_open(machine: Any) -> bool:
    return bool(machine.open)


class RouterMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.router = Router(
            [Prefiller("http://p0:8000", name="p0"), Prefiller("http://p1:8000", name="p1")],
            [Decoder(f"http://d{n}:8000", kv_blocks=CAPACITY, name=f"d{n}") for n in range(2)],
            clock=self.clock,
            # Ties are broken by a hash under the secret: a random one would make a run impossible to repeat.
            secret=b"0123456789abcdef",
            idle_timeout_s=100.0,
            queue_limit=8,
            queue_timeout_s=30.0,
        )
        self.loop = asyncio.new_event_loop()
        self.known: dict[str, Known] = {}
        self.open: list[Open] = []
        self.line: list[Waiter] = []
        self.gone: set[int] = set()
        self.draining: set[int] = set()
        self.joined = 2

    def teardown(self) -> None:
        for waiter in self.line:
            waiter.task.cancel()
        self.run_loop()
        for entry in self.open:
            entry.turn.fail()
        self.open.clear()
        self.router.check()
        self.loop.close()

    # ------------------------------------------------------------------------------------------- turns come

    @rule(conversation=conversations, prompt=prompts)
    def begin(self, conversation: str, prompt: int) -> None:
        fits = ceil(prompt / BLOCK) <= CAPACITY
        try:
            turn = self.router.turn(conversation, prompt_tokens=prompt).__enter__()
        except Rejected as refused:
            assert isinstance(refused, (Overloaded, NoWorkers, Draining)) or not fits, refused  # noqa: PT017
        else:
            assert fits, "a prompt that fits no decoder is refused"
            self.let_in(conversation, turn)

    @rule(conversation=conversations, prompt=prompts, timeout_s=st.none() | st.floats(1, 60))
    def wait_in_line(self, conversation: str, prompt: int, timeout_s: float | None) -> None:
        async def enter() -> Turn:
            return await self.router.turn(
                conversation, prompt_tokens=prompt, timeout_s=timeout_s
            ).__aenter__()

        newcomer = self.router.conversation(conversation) is None
        newcomer = newcomer and all(w.conversation != conversation for w in self.line)
        self.line.append(Waiter(conversation, self.loop.create_task(enter()), newcomer))

    @precondition(lambda self: bool(self.line))
    @rule(pick=picks)
    def leave_the_line(self, pick: int) -> None:
        waiter = self.line[pick % len(self.line)]
        waiter.task.cancel()
        self.run_loop()
        assert waiter not in self.line

    def let_in(self, conversation: str, turn: Turn) -> None:
        """Check a turn that was let in against the model, and write it down."""
        route = turn.route
        known = self.known.setdefault(conversation, Known())
        assert route.decoder_id not in self.gone, "no turn is placed on a lost worker"
        if known.pinned and known.decoder not in self.draining:
            assert route.decoder_id == known.decoder, "one pin for life"
            assert (route.kind, route.handoff) == ("pinned", False), (
                "a pinned conversation is not handed over again"
            )
        assert route.turn > known.turns, "turn numbers only grow"
        known.turns, known.decoder = route.turn, route.decoder_id
        # A conversation that is placed is pinned when its KV has arrived.
        known.pinned = known.pinned and route.kind == "pinned"
        self.open.append(Open(conversation, known, turn))

    # ---------------------------------------------------------------------------------------- turns proceed

    def pick(self, pick: int) -> Open:
        return self.open[pick % len(self.open)]

    @precondition(some_open)
    @rule(pick=picks, tokens=prompts)
    def prefilled(self, pick: int, tokens: int) -> None:
        turn = self.pick(pick).turn
        if turn.route.handoff:
            turn.prefilled(tokens)

    @precondition(some_open)
    @rule(pick=picks)
    def handed_over(self, pick: int) -> None:
        entry = self.pick(pick)
        entry.turn.handed_over()
        self.learn_pin(entry)

    @precondition(some_open)
    @rule(pick=picks)
    def reprefill(self, pick: int) -> None:
        turn = self.pick(pick).turn
        before = turn.route
        if before.prefiller_id is not None:
            after = turn.reprefill(avoid=[before.prefiller_id])
            assert after.decoder_id == before.decoder_id
            assert after.prefiller_id != before.prefiller_id

    @precondition(some_open)
    @rule(pick=picks, output=outputs, prompt=st.none() | prompts)
    def finish(self, pick: int, output: int, prompt: int | None) -> None:
        entry = self.pick(pick)
        entry.turn.finish(output_tokens=output, prompt_tokens=prompt)
        self.settled(entry)
        self.learn_pin(entry)

    @precondition(some_open)
    @rule(
        pick=picks,
        reason=st.sampled_from(["client_gone", "prefill_failed", "decoder_error", "timeout", "dropped"]),
    )
    def fail(self, pick: int, reason: Any) -> None:
        entry = self.pick(pick)
        entry.turn.fail(reason)
        self.settled(entry)

    @precondition(some_open)
    @rule(pick=picks)
    def drop(self, pick: int) -> None:
        entry = self.pick(pick)
        self.open.remove(entry)
        del entry.turn
        self.forget_vanished()

    def settled(self, entry: Open) -> None:
        self.open.remove(entry)
        assert entry.turn.settled
        with pytest.raises(RuntimeError):
            entry.turn.finish()
        with pytest.raises(RuntimeError):
            entry.turn.fail()
        self.forget_vanished()

    def learn_pin(self, entry: Open) -> None:
        if self.known.get(entry.conversation) is entry.known:
            view = self.router.conversation(entry.conversation)
            entry.known.pinned = False
            if view is not None and view.phase == "pinned" and view.decoder_id is not None:
                # A pin to a lost decoder is void: the next turn relocates.
                entry.known.decoder, entry.known.pinned = view.decoder_id, view.decoder_id not in self.gone

    def forget_vanished(self) -> None:
        """A first turn that never reached its decoder leaves nothing: its id starts afresh."""
        for conversation, known in list(self.known.items()):
            if self.router.conversation(conversation) is None:
                assert not known.pinned, "a pinned conversation does not vanish by itself"
                del self.known[conversation]

    # ---------------------------------------------------------------------------- conversations and workers

    @rule(conversation=conversations)
    def close(self, conversation: str) -> None:
        was_known = self.router.conversation(conversation) is not None
        assert self.router.close(conversation) == was_known
        self.known.pop(conversation, None)

    @rule(conversation=conversations)
    def relocate(self, conversation: str) -> None:
        if self.router.relocate(conversation) and conversation in self.known:
            self.known[conversation].pinned = False

    @rule(seconds=st.floats(0, 40))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.router.tick()

    @rule()
    def sweep(self) -> None:
        self.router.sweep()
        at_work = {
            entry.conversation for entry in self.open if self.known.get(entry.conversation) is entry.known
        }
        for conversation in list(self.known):
            if self.router.conversation(conversation) is None:
                assert conversation not in at_work, "a conversation at work is not idle"
                del self.known[conversation]

    @rule(pick=picks)
    def lose(self, pick: int) -> None:
        alive = [w for w in self.router.snapshot().workers if w.role == "decoder" and w.health != "lost"]
        if alive:
            lost = alive[pick % len(alive)]
            self.router.lose(lost.id, reason="asked")
            self.gone.add(lost.id)
            self.unpin(lost.id)

    @rule()
    def join(self) -> None:
        name = f"d{self.joined}"
        self.joined += 1
        worker = self.router.join(Decoder(f"http://{name}:8000", kv_blocks=CAPACITY, name=name))
        assert worker not in self.gone, "a worker id is never reused"

    @rule(pick=picks)
    def drain(self, pick: int) -> None:
        alive = [w for w in self.router.snapshot().workers if w.role == "decoder" and w.health != "lost"]
        if len(alive) > 1:
            drained = alive[pick % len(alive)]
            self.router.drain(drained.id)
            self.draining.add(drained.id)

    def unpin(self, decoder: int) -> None:
        for known in self.known.values():
            if known.decoder == decoder:
                known.pinned = False

    # ------------------------------------------------------------------------------------------- invariants

    def run_loop(self) -> None:
        """Run the tasks in line; those that got in are turns from here on."""

        async def idle() -> None:
            for _ in range(6):
                await asyncio.sleep(0)

        self.loop.run_until_complete(idle())
        done = [w for w in self.line if w.task.done()]
        before = self.line
        self.line = [w for w in before if not w.task.done()]
        for waiter in done:
            if waiter.task.cancelled():
                self.forget_vanished()
                continue
            error = waiter.task.exception()
            if error is not None:
                assert isinstance(error, Rejected), error
                # It may have been the last that kept a conversation whose first turn had failed.
                self.forget_vanished()
                continue
            turn = waiter.task.result()
            if waiter.newcomer and turn.route.turn == 1:
                ahead = before[: before.index(waiter)]
                assert not any(w.newcomer and w in self.line for w in ahead), (
                    "newcomers are let in first come, first served"
                )
            self.let_in(waiter.conversation, turn)
            del turn
        # A result stays with its task: let go of it, so that a dropped turn is dropped.
        del done, before

    @invariant()
    def the_books_balance(self) -> None:
        self.run_loop()
        self.router.check()
        snapshot = self.router.snapshot()
        for worker in snapshot.workers:
            if worker.kv_blocks is not None:
                assert 0 <= worker.booked_blocks <= worker.kv_blocks, "booked blocks never pass the capacity"
        assert snapshot.waiting + snapshot.waiting_tail == len(self.line), (
            "who waits is in line, who does not is not"
        )
        assert not any(entry.turn.settled for entry in self.open), "nobody else settles a turn"


RouterMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.timeout(300)
class TestRouterMachine(RouterMachine.TestCase):  # type: ignore[valid-type, misc]
    """Run by pytest."""
