"""A fleet file -> the processes to start: each worker's command, environment and ports, and the router's.

Promises: nothing is started but the description of vLLM's commands, which `conserve_workers.vllm` gives in a process of its
own; what is planned is what `start` starts and what a dry run prints. Leaves to others: starting and keeping (`keeper`).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from conserve.errors import ConfigError
from conserve.settings import Settings
from conserve.tls import files_of, trust_of

from .fleet_file import FleetFile, Role, Tier
from .ports import Ports
from .spec import ProcessSpec

# -P: the directory that the user stands in is not searched for modules.
_PYTHON: Final = (sys.executable, "-P", "-m")
_DESCRIBE_TIMEOUT_S: Final = 60
_LETTERS: Final[Mapping[Role, str]] = {"prefiller": "p", "decoder": "d", "both": "w"}
_OPTION: Final[Mapping[Role, str]] = {"prefiller": "--prefiller", "decoder": "--decoder", "both": "--both"}
# What the fleet file decides for the router; from the user's environment it would be said twice.
_DECIDED: Final = (
    *("prefillers", "decoders", "both", "connector", "connector_shape"),
    *("retention", "retention_ttl_s"),
)


@dataclass(frozen=True, slots=True)
class Planned:
    """One worker that is to be: its process, where it will serve, and its tier."""

    spec: ProcessSpec
    url: str
    tier: str
    role: Role
    ports: Mapping[str, int]
    gpus: tuple[int, ...] = ()
    engine_id: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """All processes of one fleet. `drain_s` is how long the router lets requests finish at its end."""

    workers: tuple[Planned, ...]
    router: ProcessSpec
    router_url: str
    drain_s: float
    hosts: tuple[Ports, ...]
    warnings: tuple[str, ...] = ()

    def must_be_free(self) -> None:
        """Raise ConfigError, which names the key, for the first port that somebody else has now."""
        for ports in self.hosts:
            ports.must_be_free()


def plan(fleet: FleetFile) -> Plan:
    """Lay out ports and commands. Raises ConfigError, which names the key."""
    settings = _settings(fleet)
    ports = Ports(fleet.host)
    door = Ports(settings.host) if settings.host != fleet.host else ports
    router_port = (
        door.take(settings.port, owner="router", key="router.port")
        if settings.port
        # It is bound only when the workers serve, minutes later.
        else door.take_free(owner="router", key="router.port", hold=True)
    )
    laid = list(_lay_out(fleet, ports))
    commands = _commands(fleet, laid)
    workers = tuple(
        Planned(
            spec=ProcessSpec(
                name=each.name,
                role=each.tier.role,
                argv=tuple(command["argv"]),
                env=command["env"],
                url=each.url,
                has_children=each.tier.engine == "vllm",
            ),
            url=each.url,
            tier=each.tier.name,
            role=each.tier.role,
            ports=each.ports,
            gpus=each.tier.gpus_of(each.place),
            engine_id=_engine_id(each),
        )
        for each, command in zip(laid, commands, strict=True)
    )
    router = _router(fleet, workers, host=settings.host, port=router_port)
    return Plan(
        workers=workers,
        router=router,
        router_url=f"{'http' if settings.tls_cert is None else 'https'}://{_bracketed(settings.host)}:{router_port}",
        drain_s=settings.shutdown_timeout_s,
        hosts=(ports,) if door is ports else (ports, door),
        warnings=_warnings(laid, commands),
    )


@dataclass(frozen=True, slots=True)
class _Laid:
    """A worker with its ports, before its command."""

    name: str
    tier: Tier
    place: int
    url: str
    ports: Mapping[str, int]


def _lay_out(fleet: FleetFile, ports: Ports) -> Iterator[_Laid]:
    firsts = {
        "http": fleet.first_port,
        "handoff": fleet.first_handoff_port,
        "events": fleet.first_events_port,
        "replay": 0,
    }
    keys = {"http": "first_port", "handoff": "first_handoff_port", "events": "first_events_port"}
    keys["replay"] = keys["events"]
    after = dict.fromkeys(firsts, 0)
    counts = dict.fromkeys(_LETTERS, 0)
    for tier in fleet.tiers:
        wanted = {"http": 1}
        if fleet.connector not in ("none", "example"):
            wanted["handoff"] = tier.ranks
        if fleet.first_events_port is not None and tier.engine == "vllm":
            wanted["events"] = wanted["replay"] = 1
        for place in range(tier.count):
            name = f"{_LETTERS[tier.role]}{counts[tier.role]}"
            counts[tier.role] += 1
            got: dict[str, int] = {}
            for use, number in wanted.items():
                first = firsts[use]
                for step in range(number):
                    port = (
                        ports.take(first + after[use] + step, owner=name, key=keys[use])
                        if first
                        else ports.take_free(owner=name, key=keys[use])
                    )
                    got.setdefault(use, port)
                after[use] += number
            url = f"http://{_bracketed(fleet.host)}:{got['http']}"
            yield _Laid(name, tier, place, url, got)


def _commands(fleet: FleetFile, laid: Sequence[_Laid]) -> list[dict[str, Any]]:
    """`argv` and `env` of each worker, and of vLLM's `warnings`."""
    asked = [_vllm_fields(fleet, each) for each in laid if each.tier.engine == "vllm"]
    described = iter(_describe_vllm(asked)) if asked else iter(())
    return [next(described) if each.tier.engine == "vllm" else _tiny(fleet, each) for each in laid]


def _warnings(laid: Sequence[_Laid], commands: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """What is allowed but will not be as it was asked for, once for each tier."""
    said = (
        f"tier {each.tier.name}: {warning}"
        for each, command in zip(laid, commands, strict=True)
        for warning in command.get("warnings", ())
    )
    return tuple(dict.fromkeys(said))


def _vllm_fields(fleet: FleetFile, each: _Laid) -> dict[str, Any]:
    tier, own = each.tier, fleet.declared
    return {
        "role": tier.role,
        "model": fleet.model,
        "port": each.ports["http"],
        "preset": tier.preset,
        "host": fleet.host,
        "served_model_name": fleet.served_model_name,
        "connector": "none" if own else fleet.connector,
        "handoff_port": each.ports.get("handoff"),
        "handoff_folder": fleet.handoff_folder,
        "engine_id": _engine_id(each),
        "retention_ttl_s": fleet.retention_ttl_s if fleet.retention == "pin" and not own else None,
        "events_port": each.ports.get("events"),
        "replay_port": each.ports.get("replay"),
        "gpus": tier.gpus_of(each.place),
        "block_size": fleet.block_size,
        "max_model_len": fleet.max_model_len,
        "kv_cache_bytes": tier.kv_cache_bytes,
        "tbt_target_ms": tier.tbt_target_ms,
        "decode_step_ms": tier.decode_step_ms,
        "prompt_ms_per_token": tier.prompt_ms_per_token,
        "command": tier.command,
        "flags": (*(own.flags[tier.role] if own else ()), *tier.flags),
        "env": {**(own.env if own else {}), **tier.env},
    }


def _engine_id(each: _Laid) -> str | None:
    """What the transfer layer calls a worker: its own for as long as nobody else has its port."""
    return f"{each.name}-{each.ports['handoff']}" if "handoff" in each.ports else None


def _describe_vllm(workers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [*_PYTHON, "conserve_workers.vllm"],
        input=json.dumps(workers),
        capture_output=True,
        text=True,
        timeout=_DESCRIBE_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise ConfigError(f"tier: vLLM's command cannot be made: {done.stderr.strip()}", key="tier")
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def _tiny(fleet: FleetFile, each: _Laid) -> dict[str, Any]:
    tier = each.tier
    options = {
        "--model": fleet.model,
        "--served-model-name": fleet.served_model_name,
        "--role": tier.role,
        "--host": fleet.host,
        "--port": each.ports["http"],
        "--handoff-port": each.ports.get("handoff"),
        "--block-size": fleet.block_size,
        "--kv-blocks": tier.kv_blocks,
        "--max-model-len": fleet.max_model_len,
        "--device": "cuda" if tier.gpus else None,
    }
    given = [word for key, value in options.items() if value is not None for word in (key, str(value))]
    env = {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if tier.gpus:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, tier.gpus_of(each.place)))
    return {"argv": [*_PYTHON, "conserve_workers.tiny", *given, *tier.flags], "env": {**env, **tier.env}}


def _settings(fleet: FleetFile) -> Settings:
    """The router's settings as they will be, tried as far as can be without workers: minutes later is late for a mistake."""
    for key, value in fleet.router.items():
        if key in _DECIDED:
            raise ConfigError(f"router.{key}: is decided by the rest of the file", key=f"router.{key}")
        if "\0" in _as_variable(value):  # The router reads it from its environment, which cannot hold one.
            raise ConfigError(f"router.{key}: takes text without NUL", key=f"router.{key}")
    try:
        settings = Settings(**{"block_size": fleet.block_size, **fleet.router})
        settings.dispatcher(settings.router(empty=True))
        files_of(settings)
        trust_of(settings)
    except ConfigError as error:
        raise ConfigError(f"router.{error}", key=f"router.{error.key}", accepted=error.accepted) from error
    return settings


def _router(fleet: FleetFile, workers: Sequence[Planned], *, host: str, port: int) -> ProcessSpec:
    argv = [*_PYTHON, "conserve.cli", "serve", "--host", host, "--port", str(port)]
    said = {"block_size": fleet.block_size, "retention": fleet.retention, **fleet.router}
    if fleet.retention == "pin":
        said["retention_ttl_s"] = fleet.retention_ttl_s
    if fleet.declared is None:
        argv += ["--connector", fleet.connector]
    else:
        said["connector_shape"] = fleet.declared.shape
    for each in workers:
        gpus = f",gpus={'+'.join(map(str, each.gpus))}" if each.gpus else ""
        events = "".join(
            f",{key}=tcp://{_bracketed(fleet.host)}:{each.ports[use]}"
            for key, use in (("kv_events", "events"), ("kv_replay", "replay"))
            if use in each.ports
        )
        said_of = f"{each.url},name={each.spec.name},tier={each.tier}{gpus}{_peer(fleet, each)}{events}"
        argv += [_OPTION[each.role], said_of]
    env = {
        f"CONSERVE_{key.upper()}": _as_variable(value)
        for key, value in said.items()
        if key not in ("host", "port")
    }
    return ProcessSpec(
        name="router",
        role="router",
        argv=tuple(argv),
        env={"PYTHONUNBUFFERED": "1", **env},
        hidden_prefixes=tuple(f"CONSERVE_{key.upper()}" for key in _DECIDED),
        health_path="/healthz",
        ready=_router_ready,
    )


def _peer(fleet: FleetFile, each: Planned) -> str:
    """What the router must know of a prefiller whose answers do not say where its KV lies."""
    if each.role == "decoder" or not each.engine_id or (fleet.connector != "mooncake" and not fleet.declared):
        return ""
    bootstrap = f"http://{_bracketed(fleet.host)}:{each.ports['handoff']}"
    return f",bootstrap={bootstrap},engine_id={each.engine_id}"


def _router_ready(line: str) -> str | None:
    """The URL of `conserve serves http://HOST:PORT/v1 (...)`; None for any other line."""
    match = re.search(r"\bserves (https?://\S+)/v1\b", line)
    return match[1] if match else None


def _as_variable(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
