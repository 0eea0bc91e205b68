"""One run of the demo from start to end: processes, agents, facts, check, report."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import aiohttp

from conserve._counted import counted
from conserve.supervisor import Fleet, SupervisorError, WorkerProcess

from . import check, cluster, facts
from .agent import Agent, Server, Turn, converse
from .client import READ_BUFFER_BYTES
from .errors import DemoError
from .mishaps import mishaps, warnings
from .options import BLOCK_SIZE, DECODERS, PREFILLERS, Options
from .plan import make_plan
from .progress import Progress
from .report import Report
from .workspace import Workspace, WorkspaceError

_TENANTS = "abcdefghijklmnopqrstuvwxyz"


async def run_demo(options: Options, progress: Progress) -> Report:
    """Serve the conversations, and once more on one engine when `options.check` asks for it.

    All processes have ended when this returns or raises, also when it is cancelled. The logs are kept when something
    went wrong; the report names their folder.

    Raises:
        DemoError: a process did not start or ended, or a turn was not served.
    """
    if importlib.util.find_spec("torch") is None:
        raise DemoError("the engine needs torch: pip install 'conserve-router[engine]'")
    logs = Path(tempfile.mkdtemp(prefix="conserve-demo-"))
    try:
        workspace = await asyncio.to_thread(Workspace.scan, options.workdir)
        agents = make_agents(workspace, options)
        with _ended_by_signals():
            report = await _routed(options, workspace, agents, logs, progress)
            if options.check:
                report = await _checked(report, options, workspace, logs, progress)
    except asyncio.CancelledError:
        shutil.rmtree(logs, ignore_errors=True)
        raise
    except WorkspaceError as error:
        shutil.rmtree(logs, ignore_errors=True)
        raise DemoError(str(error)) from error
    except (DemoError, SupervisorError) as error:
        raise DemoError(f"{error}\nThe logs of all processes are in {logs}") from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise DemoError(f"the router or a worker did not answer: {error}\nThe logs are in {logs}") from error
    return with_logs(report, logs)


def with_logs(report: Report, logs: Path) -> Report:
    """The report with the folder of the logs and what they warn of; the folder of a plain run is removed."""
    if report.problems or report.mishaps:
        return replace(report, logs=logs, warnings=warnings(logs))
    shutil.rmtree(logs, ignore_errors=True)
    return report


def make_agents(workspace: Workspace, options: Options) -> list[Agent]:
    """The agents with their plans. With several tenants, each uses the same conversation ids as the others."""
    agents: list[Agent] = []
    for number in range(options.conversations):
        plan = make_plan(workspace, number, turns=options.turns, prompt_chars=options.sizes.prompt_chars)
        index, tenant = divmod(number, options.tenants)
        agents.append(
            Agent(
                id=f"task-{index + 1}",
                tenant=None if options.tenants == 1 else _tenant_name(tenant),
                plan=plan,
            )
        )
    return agents


async def _routed(
    options: Options, workspace: Workspace, agents: list[Agent], logs: Path, progress: Progress
) -> Report:
    """The conversations through the router, with what it and the engines say about them."""
    progress.phase(
        f"starting {PREFILLERS} prefiller, {DECODERS} decoders and the router, model {options.model}, logs in {logs}"
    )
    async with Fleet(log_dir=logs) as fleet, _session(options) as session:
        serving = await cluster.start_cluster(fleet, options, on_ready=progress.process_ready)
        await facts.all_joined(session, serving.router, serving.workers, timeout_s=options.start_timeout_s)
        progress.phase(
            f"{len(agents)} {'agent works' if len(agents) == 1 else 'agents work'} on {options.workdir}: "
            f"{counted(options.turns, 'turn')} each, "
            f"{'with' if options.headers else 'without'} conversation headers"
        )
        began = time.perf_counter()
        server = _server(options, session, serving.router, headers=options.headers)
        turns = await _converse_all(agents, server, workspace, options, fleet, progress)
        elapsed_s = time.perf_counter() - began
        await facts.all_settled(session, serving.router)
        conversations = [
            await facts.conversation_report(
                session, serving, agent, turns[agent.label], by_header=options.headers
            )
            for agent in agents
        ]
        workers = await facts.fleet_report(session, serving)
    problems = tuple(check.broken_promises(conversations, workers)) if options.check else ()
    return Report(
        model=options.model,
        conversations=tuple(conversations),
        fleet=workers,
        elapsed_s=elapsed_s,
        problems=problems,
        mishaps=tuple(mishaps(conversations, workers)),
    )


async def _checked(
    report: Report, options: Options, workspace: Workspace, logs: Path, progress: Progress
) -> Report:
    """The same conversations on one engine, each turn's history made of that engine's own answers."""
    progress.phase("the same conversations on one engine, without router and handoff")
    agents = [conversation.agent for conversation in report.conversations]
    replay = {
        conversation.agent.label: [turn.tool_output for turn in conversation.turns]
        for conversation in report.conversations
    }
    async with Fleet(log_dir=logs) as fleet, _session(options) as session:
        url = await cluster.start_single(fleet, options, on_ready=progress.process_ready)
        began = time.perf_counter()
        server = _server(options, session, url, headers=False)
        turns = await _converse_all(agents, server, workspace, options, fleet, progress, replay=replay)
        elapsed_s = time.perf_counter() - began
    single = {label: [turn.answer.text for turn in told] for label, told in turns.items()}
    different = tuple(check.different_texts(report.conversations, single))
    return replace(report, checked=True, check_elapsed_s=elapsed_s, problems=report.problems + different)


async def _converse_all(
    agents: list[Agent],
    server: Server,
    workspace: Workspace,
    options: Options,
    fleet: Fleet,
    progress: Progress,
    *,
    replay: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, tuple[Turn, ...]]:
    """All conversations at once, by label. One that fails, or a process that ends, ends them all."""
    progress.agents(agents, options.turns)
    try:
        async with asyncio.TaskGroup() as group:
            lost = group.create_task(_raise_when_lost(fleet))
            tasks = {
                agent.label: group.create_task(
                    converse(
                        agent,
                        server,
                        workspace,
                        watcher=progress,
                        tool_chars=options.sizes.tool_chars,
                        replay=None if replay is None else replay[agent.label],
                    )
                )
                for agent in agents
            }
            await asyncio.wait(tasks.values())
            lost.cancel()
    except* DemoError as errors:
        raise DemoError(str(errors.exceptions[0])) from errors
    return {label: task.result() for label, task in tasks.items()}


async def _raise_when_lost(fleet: Fleet) -> None:
    """Turn the end of a process into an error that names it.

    Raises:
        DemoError: always, when the first process ends.
    """
    process: WorkerProcess = await fleet.first_exit()
    raise DemoError(f"{process.name} ended with status {process.returncode}; its log is {process.log_path}")


def _server(options: Options, session: aiohttp.ClientSession, url: str, *, headers: bool) -> Server:
    return Server(
        session=session,
        url=url,
        model=cluster.MODEL_NAME,
        max_tokens=options.max_tokens,
        block_size=BLOCK_SIZE,
        conversation_headers=headers,
        turn_timeout_s=options.turn_timeout_s,
    )


def _session(options: Options) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=options.conversations + 4), read_bufsize=READ_BUFFER_BYTES
    )


def _tenant_name(number: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    name = ""
    number += 1
    while number:
        number, letter = divmod(number - 1, len(_TENANTS))
        name = _TENANTS[letter] + name
    return name


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP cancel the run as Ctrl-C does, so that the processes are stopped in order.

    Not SIGHUP where it was to be ignored, as under `nohup`.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("run_demo runs in a task")
    terminals = [fd for fd in (1, 2) if os.isatty(fd)]

    def hang_up() -> None:
        # The terminal is gone: what is still said must not fail.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for fd in terminals:
            os.dup2(nowhere, fd)
        os.close(nowhere)
        task.cancel()

    heeded: dict[signal.Signals, Callable[[], object]] = {signal.SIGTERM: task.cancel}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        heeded[signal.SIGHUP] = hang_up
    for number, act in heeded.items():
        loop.add_signal_handler(number, act)
    try:
        yield
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)
