"""The engines that are compared on, and a door in front of them for each policy.

Workers are started once and serve under every policy: those that use prefillers see the roles that were asked for, the
others, and those written with `@both`, see workers that do both.

Promises: when a block of `started` or `door` is left, nothing that it started runs.
"""

from __future__ import annotations

import contextlib
import re
import sys
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from conserve._counted import counted
from conserve.demo.cluster import router_ready
from conserve.demo.errors import DemoError
from conserve.demo.facts import all_joined
from conserve.errors import ConfigError
from conserve.settings import WorkerAt
from conserve.sim.contender import Contender
from conserve.supervisor import Fleet, ProcessSpec
from conserve.supervisor.fleet_file import FleetFile, Role, Tier
from conserve.supervisor.launch import plan

from .errors import LiveError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    import aiohttp

__all__ = ["TINY", "Engines", "Worker", "from_file", "from_urls", "tiny"]

TINY: Final = "tiny:1p2d"
"""What is started where nothing else is named."""
_TINY: Final = re.compile(r"tiny:(\d+)[pP](\d+)[dD]")
_TINY_KV_BLOCKS: Final = 2048
_TINY_CHUNK_TOKENS: Final = 256
_START_S: Final = 120.0
# vLLM's decoders keep a turn for 480 s where they are told to keep turns at all, its prefillers one that nobody fetched for 30 s.
_IDLE_S: Final = 600.0
# A conversation waits as long as it must, and a slow engine is not a lost one; a fleet file's [router] has the last word.
_PATIENCE: Final[Mapping[str, str]] = {
    "CONSERVE_EVICT_IDLE": "true",
    "CONSERVE_QUEUE_TIMEOUT_S": "3600",
    "CONSERVE_PREFILL_TIMEOUT_S": "600",
    "CONSERVE_FIRST_BYTE_TIMEOUT_S": "600",
    "CONSERVE_ANSWER_TIMEOUT_S": "600",
    "CONSERVE_STREAM_IDLE_TIMEOUT_S": "600",
    "CONSERVE_PROBE_TIMEOUT_S": "20",
}
_OF_PREFILLERS: Final = ("bootstrap=", "engine_id=", "prefill_backlog_tokens=")
# Each door has a policy of its own, and is ours alone: it serves nobody else, and is asked without a key.
_OF_USERS_DOOR: Final = frozenset(
    f"CONSERVE_{key}"
    for key in ("POLICY", "POLICY_OPTION", "TLS_CERT", "TLS_KEY", "CONTROL_KEY", "CONVERSATION_HEADERS")
)
# Of the tiny engine, and of vLLM.
_CHUNK_FLAGS: Final = ("--chunk-tokens", "--max-num-batched-tokens")
_PYTHON: Final = (sys.executable, "-P", "-m")


@dataclass(frozen=True, slots=True)
class Worker:
    """One engine: how a door is told of it, and what it does unless all do both."""

    name: str
    url: str
    role: Role
    said: str
    kind: str = ""
    """Workers of one kind take as long for a step."""
    chunk_tokens: int | None = None
    """Most tokens in one of its steps, where it is known."""

    def role_under(self, policy: str) -> Role:
        """What it does under `policy`."""
        return "both" if Contender.read(policy).does_both else self.role

    def option(self, policy: str) -> tuple[str, str]:
        """The door's option for it under `policy`."""
        role = self.role_under(policy)
        said = self.said
        if role == "decoder":
            said = ",".join(part for part in said.split(",") if not part.startswith(_OF_PREFILLERS))
        return f"--{role}", said


@dataclass(frozen=True, slots=True)
class Engines:
    """The workers of one comparison, started by us (`specs`) or already there."""

    words: str
    workers: tuple[Worker, ...]
    connector: tuple[str, ...] = ("--connector", "nixl")
    router_env: Mapping[str, str] = field(default_factory=dict)
    specs: tuple[ProcessSpec, ...] = ()
    start_timeout_s: float = _START_S
    idle_timeout_s: float = _IDLE_S
    """How long they may keep what a run left."""
    must_be_free: Callable[[], None] = lambda: None
    """Refuses ports that somebody else has: its server would be taken for the one that is started."""
    warnings: tuple[str, ...] = ()
    """What the fleet file asks for in vain."""

    def all_both(self, policy: str) -> bool:
        """Whether every worker does both under `policy`."""
        return all(worker.role_under(policy) == "both" for worker in self.workers)

    def hands_over(self, policy: str) -> bool:
        """Whether KV may go from one worker to another under `policy`."""
        contender = Contender.read(policy)
        return contender.hands_over_among_equals if self.all_both(policy) else contender.hands_over

    def check(self, policies: Sequence[str]) -> None:
        """Refuses policies that these workers cannot run.

        Raises:
            ConfigError: there is no prefiller for one that needs some, or nobody that decodes.
        """
        roles = {worker.role for worker in self.workers}
        for policy in policies:
            contender = Contender.read(policy)
            lacks = contender.needs_prefillers and "prefiller" not in roles
            if not contender.does_both and (lacks or roles == {"prefiller"}):
                needed = (
                    "at least one prefiller and one decoder" if contender.needs_prefillers else "a decoder"
                )
                raise ConfigError(
                    f"policy {policy} needs {needed} among the workers; {policy}@both has all of them do both"
                )

    @contextlib.asynccontextmanager
    async def started(self, log_dir: Path, *, tell: Callable[[str], None]) -> AsyncIterator[Fleet]:
        """The workers, up and ready. vLLM takes minutes for it, so `tell` hears of each.

        Raises:
            ConfigError: somebody else has one of their ports.
        """
        self.must_be_free()
        async with Fleet(log_dir=log_dir, grace_s=15.0) as fleet:
            if self.specs:
                tell(f"starting {counted(len(self.specs), 'worker')}; logs in {log_dir}")
                await fleet.start(
                    self.specs,
                    timeout_s=self.start_timeout_s,
                    on_ready=lambda process: tell(f"{process.name} serves {process.url}"),
                )
            yield fleet

    @contextlib.asynccontextmanager
    async def door(self, policy: str, http: aiohttp.ClientSession, log_dir: Path) -> AsyncIterator[str]:
        """A door under `policy` that sees every worker; its URL.

        Raises:
            LiveError: it does not see them all in time.
        """
        contender = Contender.read(policy)
        argv = [*_PYTHON, "conserve.cli", "serve", "--host", "127.0.0.1", "--port", "0"]
        argv += [*self.connector, "--log-level", "error", "--policy", contender.name]
        if contender.options:
            argv += ["--policy-option", " ".join(contender.options)]
        for worker in self.workers:
            argv += worker.option(policy)
        spec = ProcessSpec(
            name="door",
            role="router",
            argv=tuple(argv),
            env={"PYTHONUNBUFFERED": "1", **_PATIENCE, **self.router_env},
            hidden_prefixes=("CONSERVE_",),
            health_path="/readyz",
            ready=router_ready,
        )
        async with Fleet(log_dir=log_dir) as fleet:
            url = (await fleet.start([spec], timeout_s=_START_S))["door"]
            try:
                await all_joined(http, url, [worker.name for worker in self.workers], timeout_s=_START_S)
            except DemoError as error:
                raise LiveError(str(error)) from error
            yield url


def tiny(text: str, *, model: str = "random", kv_blocks: int = _TINY_KV_BLOCKS) -> Engines:
    """Tiny engines, written `tiny:1p2d`.

    Raises:
        ConfigError: it is not written like that.
    """
    found = _TINY.fullmatch(text)
    if found is None or "0" in found.groups():
        raise ConfigError(f"workers is {text!r}; write prefillers and decoders, at least one of each: {TINY}")
    roles: tuple[tuple[Role, int], ...] = (("prefiller", int(found[1])), ("decoder", int(found[2])))
    tiers = tuple(
        Tier(
            name=role,
            role=role,
            engine="tiny",
            count=count,
            kv_blocks=kv_blocks,
            flags=("--chunk-tokens", str(_TINY_CHUNK_TOKENS), "--max-num-seqs", "64"),
        )
        for role, count in roles
    )
    file = FleetFile(
        model=model,
        tiers=tiers,
        served_model_name="live",
        first_port=0,
        first_handoff_port=0,
        max_model_len=8192,
        start_timeout_s=180.0,
    )
    return _planned(file, words=f"{text}, model {model}, {kv_blocks} KV blocks each")


def from_file(path: Path) -> Engines:
    """The workers of a fleet file.

    Raises:
        ConfigError: the file is wrong; the message names the key.
    """
    return _planned(FleetFile.read(path), words=path.name)


def from_urls(
    prefillers: Sequence[str], decoders: Sequence[str], both: Sequence[str], *, connector: str
) -> Engines:
    """Workers that run already, each written as `conserve serve` takes it.

    Raises:
        ConfigError: one is written otherwise, or there are none.
    """
    workers, words = [], []
    for role, letter, said_all in (
        ("prefiller", "p", prefillers),
        ("decoder", "d", decoders),
        ("both", "w", both),
    ):
        if said_all:
            words.append(f"{len(said_all)} both" if role == "both" else counted(len(said_all), role))
        for place, said in enumerate(said_all):
            try:
                at = WorkerAt.parse(said)
            except ValueError as error:
                raise ConfigError(f"{role}: {error}") from None
            name = at.name or f"{letter}{place}"
            shown = said if at.name else f"{said},name={name}"
            workers.append(Worker(name, at.url, role, shown, kind=at.tier or ""))  # type: ignore[arg-type]
    if not workers:
        raise ConfigError(f"no workers: give --workers {TINY}, --fleet FILE, or the URLs of running ones")
    return Engines(
        words=f"running workers, {', '.join(words)}, connector {connector}",
        workers=tuple(workers),
        connector=("--connector", connector),
    )


def _planned(file: FleetFile, *, words: str) -> Engines:
    """Every worker is started so that it can do both; its role in the file is what it does under policies that split."""
    tiers = [tier for tier in file.tiers for _ in range(tier.count)]
    laid = plan(
        replace(
            file,
            tiers=tuple(replace(tier, role="both") for tier in file.tiers),
            router={**file.router, "port": 0},
        )
    )
    argv = list(laid.router.argv)
    said = [value for key, value in pairwise(argv) if key == "--both"]
    connector = argv[argv.index("--connector") :][:2] if "--connector" in argv else []
    return Engines(
        words=words,
        workers=tuple(
            Worker(
                each.spec.name,
                each.url,
                tier.role,
                text,
                kind=_kind(tier),
                chunk_tokens=_chunk_tokens(each.spec.argv),
            )
            for each, tier, text in zip(laid.workers, tiers, said, strict=True)
        ),
        connector=tuple(connector),
        router_env={key: value for key, value in laid.router.env.items() if key not in _OF_USERS_DOOR},
        specs=tuple(each.spec for each in laid.workers),
        start_timeout_s=file.start_timeout_s,
        idle_timeout_s=_IDLE_S + (file.retention_ttl_s if file.retention == "pin" else 0),
        must_be_free=laid.must_be_free,
        warnings=(*laid.warnings, *_unheeded(file)),
    )


def _kind(tier: Tier) -> str:
    """What makes its steps as long as those of another tier."""
    ranks = len(tier.gpus) // tier.count
    return repr((tier.engine, tier.preset, ranks, tier.flags, sorted(tier.env.items()), tier.command))


def _chunk_tokens(argv: Sequence[str]) -> int | None:
    """Most tokens in a step, as the command line says, the last word having it."""
    said = [
        after if word in _CHUNK_FLAGS else word.partition("=")[2]
        for word, after in pairwise((*argv, ""))
        if word.partition("=")[0] in _CHUNK_FLAGS
    ]
    return int(said[-1]) if said and said[-1].isdecimal() else None


def _unheeded(file: FleetFile) -> list[str]:
    return [
        f"tier {tier.name}: power_limit_w is for `conserve up`; set the limit yourself before you compare"
        for tier in file.tiers
        if tier.power_limit_w is not None
    ]
