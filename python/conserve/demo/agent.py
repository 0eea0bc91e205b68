"""One agent: it sends its task, then, turn by turn, its whole history with the output of a tool that has just run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from .account import Recomputation, recomputation
from .client import Answer, Message, ServingError, chat_body, stream_chat
from .errors import DemoError
from .plan import SYSTEM, Plan
from .workspace import Workspace


class Watcher(Protocol):
    """Is told what the agents do."""

    def turn_started(self, agent: Agent, turn: int, command: str) -> None:
        """A request is about to be sent; `command` is the tool that ran before it, empty for turn 1."""

    def text(self, agent: Agent, piece: str) -> None:
        """A piece of the answer came."""

    def turn_finished(self, agent: Agent, turn: Turn) -> None:
        """The answer is whole."""


@dataclass(frozen=True, slots=True)
class Agent:
    """Who works on what. `id` is the conversation id that is sent; two tenants may use the same one."""

    id: str
    tenant: str | None
    plan: Plan

    @property
    def label(self) -> str:
        """The conversation as it is shown: `task-3`, or `b/task-3` for tenant b."""
        return f"{self.tenant}/{self.id}" if self.tenant else self.id

    def headers(self, *, conversation: bool) -> dict[str, str]:
        """What the agent sends besides the body; no conversation header for clients that know of none."""
        headers = {"X-Conversation-ID": self.id} if conversation else {}
        return headers | ({"Authorization": f"Bearer key-of-tenant-{self.tenant}"} if self.tenant else {})


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: the tool that ran before it, what came back, and what was computed for it."""

    number: int
    command: str
    tool_output: str
    answer: Answer
    tokens: Recomputation


@dataclass(frozen=True, slots=True)
class Server:
    """Where and how the agents ask."""

    session: aiohttp.ClientSession
    url: str
    model: str
    max_tokens: int
    block_size: int
    conversation_headers: bool
    turn_timeout_s: float


async def converse(
    agent: Agent,
    server: Server,
    workspace: Workspace,
    *,
    watcher: Watcher,
    tool_chars: int,
    replay: Sequence[str] | None = None,
) -> tuple[Turn, ...]:
    """Carry the conversation through all its turns.

    The tools run between the turns; with `replay`, outputs recorded in an earlier run are sent instead, so that two runs
    differ in nothing but their answers.

    Raises:
        DemoError: a turn was not served; the message names the conversation and the turn.
    """
    messages: list[Message] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": agent.plan.task},
    ]
    turns: list[Turn] = []
    for number in range(1, len(agent.plan.steps) + 2):
        command = output = ""
        if number > 1:
            step = agent.plan.steps[number - 2]
            command = step.tool.command
            output = (
                replay[number - 1] if replay is not None else step.tool.run(workspace, max_chars=tool_chars)
            )
            messages.append({"role": "user", "content": f"I ran `{command}`:\n\n{output}\n\n{step.question}"})
        watcher.turn_started(agent, number, command)
        answer = await ask(agent, server, messages, watcher=watcher)
        try:
            tokens = recomputation(answer, turns[-1].answer if turns else None, block_size=server.block_size)
        except ValueError as error:
            raise DemoError(f"conversation {agent.label}, turn {number}: {error}") from error
        turn = Turn(number, command, output, answer, tokens)
        turns.append(turn)
        messages.append({"role": "assistant", "content": answer.text})
        watcher.turn_finished(agent, turn)
    return tuple(turns)


async def ask(agent: Agent, server: Server, messages: Sequence[Message], *, watcher: Watcher) -> Answer:
    """Send one turn's whole history and read the answer.

    Raises:
        DemoError: it was not served; the message names the conversation.
    """
    headers: Mapping[str, str] = agent.headers(conversation=server.conversation_headers)
    try:
        return await stream_chat(
            server.session,
            server.url,
            chat_body(server.model, messages, max_tokens=server.max_tokens),
            headers=headers,
            timeout_s=server.turn_timeout_s,
            on_text=lambda piece: watcher.text(agent, piece),
        )
    except ServingError as error:
        raise DemoError(f"conversation {agent.label} was not served: {error}") from error
