"""Measure on your own engines: `bench live` compares policies."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from conserve._counted import counted
from conserve.errors import ConfigError
from conserve.live import LiveError, LivePlan
from conserve.live.compare import Comparison, compare_live, compared, whole_rounds
from conserve.live.engines import TINY, Engines, from_file, from_urls, tiny
from conserve.live.report import as_data
from conserve.live.run import Round
from conserve.policies import POLICIES
from conserve.sim.contender import USUAL, split_names
from conserve.sim.workload import WORKLOADS, traces_dir

from ._fit import console
from ._live_table import show

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["app"]

_FAILED = 1
_MISUSED = 2
_INTERRUPTED = 130
_LOG_COLUMNS = 160

app = typer.Typer(help="Measure on your own engines.", no_args_is_help=True)


@app.callback()
def _bench() -> None:
    """Measure on your own engines."""


@app.command(short_help="Compare policies on real engines.")
def live(
    policies: Annotated[
        str,
        typer.Option(
            "--policies",
            "--policy",
            help=f"Separated by commas, of {', '.join(POLICIES)}; the first is the base. Options as in ampd(min, X=0); "
            "follow-kv@both has all workers do both.",
        ),
    ] = USUAL,
    workers: Annotated[
        str | None,
        typer.Option(
            help=f"Tiny engines to start on this machine; {TINY} where no other workers are named.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="Of tiny engines: random, smollm2 or a folder.")] = "random",
    kv_blocks: Annotated[int, typer.Option(min=2, help="Of each tiny engine.")] = 2048,
    fleet: Annotated[
        Path | None, typer.Option(metavar="FLEET.toml", help="Workers to start, as for `conserve up`.")
    ] = None,
    prefiller: Annotated[list[str] | None, typer.Option(metavar="URL", help="A running one.")] = None,
    decoder: Annotated[list[str] | None, typer.Option(metavar="URL", help="A running one.")] = None,
    both: Annotated[list[str] | None, typer.Option(metavar="URL", help="A running one.")] = None,
    connector: Annotated[str, typer.Option(help="Of running workers.")] = "nixl",
    trace: Annotated[
        str,
        typer.Option(help=f"A file of conversations, or synthetic:NAME or NAME, of {', '.join(WORKLOADS)}."),
    ] = "synthetic:swe-agent",
    traces: Annotated[Path | None, typer.Option(help="Folder of recorded traces.")] = None,
    conversations: Annotated[int, typer.Option(min=1, help="In each run.")] = 16,
    rate: Annotated[float, typer.Option(help="Conversations per second, Poisson.")] = 0.5,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each policy.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the first round; each next one has the next.")] = 1,
    scale: Annotated[float, typer.Option(help="Prompts and answers shrunk or stretched by this.")] = 1.0,
    gap_scale: Annotated[float, typer.Option(help="The same for tool times.")] = 1.0,
    max_turns: Annotated[int | None, typer.Option(min=1, help="First turns of each conversation.")] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure the engines and simulate the same rounds too.")
    ] = False,
    chunk_tokens: Annotated[
        int | None, typer.Option(min=2, help="Most tokens in a step of these engines, for --calibrate.")
    ] = None,
    log_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A log for each process that is started.")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="All data.")] = None,
) -> None:
    """Compare policies on real engines: the same conversations and arrivals through a door for each, in turn.

    Whatever ends it early, the rounds that every policy had are printed and written.

    Exit status: 0; 1 the engines could not be measured to the end; 2 an option is wrong; 130 by Ctrl-C or SIGTERM.
    """
    out = console(piped_columns=_LOG_COLUMNS)
    errors = Console(stderr=True, soft_wrap=True)

    def tell(line: str) -> None:
        errors.print(line, markup=False, highlight=False)

    ran: list[Round] = []
    stopped, status = None, 0
    try:
        plan = LivePlan(
            trace=trace,
            policies=split_names(policies),
            rate_per_s=rate,
            conversations=conversations,
            rounds=rounds,
            seed=seed,
            scale=scale,
            gap_scale=gap_scale,
            max_turns=max_turns,
            traces=traces or traces_dir(),
        )
        engines = _engines(workers, model, kv_blocks, fleet, prefiller, decoder, both, connector)
        engines.check(plan.policies)
        if json_path is not None and not json_path.absolute().parent.is_dir():
            raise ConfigError(f"--json {json_path}: there is no folder {json_path.absolute().parent}")
        logs = log_dir or Path(tempfile.mkdtemp(prefix="conserve-bench-"))
        work = compare_live(
            plan, engines, log_dir=logs, rounds=ran, calibrate=calibrate, chunk_tokens=chunk_tokens, tell=tell
        )
        try:
            result = asyncio.run(_until_sigterm(work))
        except (LiveError, KeyboardInterrupt, asyncio.CancelledError) as error:
            stopped = str(error) or "interrupted"
            status = _FAILED if isinstance(error, LiveError) else _INTERRUPTED
            tell(f"conserve bench live: {stopped}")
            result = compared(plan, ran)
    except ConfigError as error:
        tell(f"conserve bench live: {error}")
        raise typer.Exit(_MISUSED) from None
    if not result.outcomes:
        raise typer.Exit(status)
    whole = whole_rounds(plan, ran)
    if whole < plan.rounds:
        tell(f"what every policy had follows: {counted(whole, 'round')} of {plan.rounds}")
    if json_path is not None:
        data = {
            "command": " ".join(["conserve", *sys.argv[1:]]),
            **as_data(plan, engines, result, stopped=stopped),
        }
        json_path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    show(replace(plan, rounds=whole), engines, result, out)
    if status:
        raise typer.Exit(status)


async def _until_sigterm(work: Coroutine[None, None, Comparison]) -> Comparison:
    """SIGTERM cancels the work as Ctrl-C does."""
    doing = asyncio.create_task(work)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, doing.cancel)
    try:
        return await doing
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _engines(
    workers: str | None,
    model: str,
    kv_blocks: int,
    fleet: Path | None,
    prefiller: list[str] | None,
    decoder: list[str] | None,
    both: list[str] | None,
    connector: str,
) -> Engines:
    running = bool(prefiller or decoder or both)
    if (workers is not None) + (fleet is not None) + running > 1:
        raise ConfigError("give one of --workers, --fleet, or the URLs of running workers")
    if fleet is not None:
        return from_file(fleet)
    if running:
        return from_urls(prefiller or (), decoder or (), both or (), connector=connector)
    return tiny(workers or TINY, model=model, kv_blocks=kv_blocks)
