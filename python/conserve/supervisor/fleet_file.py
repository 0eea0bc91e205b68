"""A fleet file: which workers there are, on which devices, and how the router in front of them is set.

Promises: what `FleetFile.read` returns is whole and consistent; whatever is wrong is a ConfigError that names the key and
what it takes. Leaves to others: which command starts a worker (`launch`), whether ports are free now.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

from conserve.errors import ConfigError
from conserve.settings import is_host

from .declared import Declared
from .toml_table import Table

Role: TypeAlias = Literal["prefiller", "decoder", "both"]
Engine: TypeAlias = Literal["vllm", "tiny"]
Retention: TypeAlias = Literal["cache", "pin"]
_T = TypeVar("_T")

ROLES: Final = ("prefiller", "decoder", "both")
ENGINES: Final = ("vllm", "tiny")
RETENTIONS: Final = ("cache", "pin")
CONNECTORS: Final = ("nixl", "mooncake", "example", "none")
PRESETS: Final = ("cpu", "a40", "l40s", "a100", "h100", "h200")
WORKERS_MAX: Final = 1024
_LAST_PORT: Final = 65_535
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Set from the file's own keys: given again among `flags`, one of two values would win unseen.
_OWN_FLAGS: Final[Mapping[str, str]] = {
    "--model": "model",
    "--served-model-name": "served_model_name",
    "--host": "host",
    "--port": "first_port",
    "--role": "role",
    "--block-size": "block_size",
    "--max-model-len": "max_model_len",
    "--kv-blocks": "kv_blocks",
    "--kv-cache-memory-bytes": "kv_cache_bytes",
    "--kv-transfer-config": "connector",
    "--kv-events-config": "first_events_port",
    "--handoff-port": "first_handoff_port",
    "--tensor-parallel-size": "gpus",
    "-tp": "gpus",
}


@dataclass(frozen=True, slots=True)
class Tier:
    """Workers that are alike. `gpus` are shared out evenly among its `count` workers, in order."""

    name: str
    role: Role
    engine: Engine
    count: int = 1
    preset: str = "cpu"
    gpus: tuple[int, ...] = ()
    power_limit_w: int | None = None
    kv_blocks: int | None = None
    kv_cache_bytes: int | None = None
    tbt_target_ms: float | None = None
    decode_step_ms: float | None = None
    prompt_ms_per_token: float | None = None
    command: tuple[str, ...] = ("vllm",)
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def gpus_of(self, place: int) -> tuple[int, ...]:
        """The GPUs of the worker at `place` in the tier."""
        each = len(self.gpus) // self.count
        return self.gpus[place * each : (place + 1) * each]

    @property
    def ranks(self) -> int:
        """GPUs of one worker, at least 1: so many ports its connector may take."""
        return max(1, len(self.gpus) // self.count)


@dataclass(frozen=True, slots=True)
class FleetFile:
    """One fleet. Ports count upwards from `first_*`; 0 lets the system choose. Times are in seconds."""

    model: str
    tiers: tuple[Tier, ...]
    served_model_name: str | None = None
    connector: str = "nixl"
    declared: Declared | None = None
    handoff_folder: str | None = None
    retention: Retention = "cache"
    retention_ttl_s: int = 480
    host: str = "127.0.0.1"
    block_size: int = 16
    max_model_len: int | None = None
    first_port: int = 8100
    first_handoff_port: int = 5600
    first_events_port: int | None = None
    start_timeout_s: float = 900.0
    grace_s: float = 15.0
    router: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def read(cls, path: Path) -> FleetFile:
        """Read a file. Raises ConfigError."""
        try:
            return cls.parse(path.read_text("utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: is not UTF-8") from error

    @classmethod
    def parse(cls, text: str) -> FleetFile:
        """Read a file's text. Raises ConfigError."""
        try:
            top = Table("", tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"is not TOML: {error}") from error
        except RecursionError as error:
            raise ConfigError("is nested too deep") from error
        tables = top.tables("tier")
        models = _same(tables, top, "model", Table.text)
        sizes = _same(tables, top, "block_size", lambda table, key: table.whole(key, 1, 1024))
        lengths = _same(tables, top, "max_model_len", lambda table, key: table.whole(key, 2, 2**31 - 1))
        if models is None:
            raise top.wrong("model", "a model's name or folder, here or in each [[tier]]")
        connector, declared = _connector(top)
        retention = cast("Retention", top.one_of("retention", RETENTIONS) or "cache")
        ttl_s = top.whole("retention_ttl_s", 1, 86_400)
        if ttl_s is not None and retention != "pin":
            raise top.wrong("retention_ttl_s", 'nothing without retention = "pin"')
        host = top.text("host") or "127.0.0.1"
        if not is_host(host):
            raise top.wrong("host", f"an IP address or a host's name, not {host!r}")
        made = cls(
            model=models,
            tiers=tuple(_tier(table, place) for place, table in enumerate(tables)),
            served_model_name=top.text("served_model_name"),
            connector=connector,
            declared=declared,
            handoff_folder=top.text("handoff_folder"),
            retention=retention,
            retention_ttl_s=ttl_s or 480,
            host=host,
            block_size=sizes or 16,
            max_model_len=lengths,
            first_port=top.whole("first_port", 0, _LAST_PORT, default=8100),
            first_handoff_port=top.whole("first_handoff_port", 0, _LAST_PORT, default=5600),
            first_events_port=top.whole("first_events_port", 0, _LAST_PORT),
            start_timeout_s=top.seconds("start_timeout_s", default=900.0),
            grace_s=top.seconds("grace_s", default=15.0),
            router=top.table("router"),
        )
        top.nothing_else()
        _check(made)
        return made


def _connector(top: Table) -> tuple[str, Declared | None]:
    """`connector = "nixl"`, or `[connector.name]` with a shape of one's own."""
    if own := top.only_table("connector", CONNECTORS):
        name, table = own
        if name in CONNECTORS or not _NAME.fullmatch(name):
            raise top.wrong(f"connector.{name}", f"a new name, not one of {', '.join(CONNECTORS)}")
        return name, Declared.read(table)
    return top.one_of("connector", CONNECTORS) or "nixl", None


def _tier(table: Table, place: int) -> Tier:
    role = table.one_of("role", ROLES)
    if role is None:
        raise table.wrong("role", f"one of {', '.join(ROLES)}")
    engine = cast("Engine", table.one_of("engine", ENGINES) or "vllm")
    tier = Tier(
        name=table.text("name") or f"{role}{place}",
        role=cast("Role", role),
        engine=engine,
        count=table.whole("count", 1, WORKERS_MAX, default=1),
        preset=table.one_of("preset", PRESETS) or "cpu",
        gpus=table.wholes("gpus", 0, 1023),
        power_limit_w=table.whole("power_limit_w", 1, 10_000),
        kv_blocks=table.whole("kv_blocks", 2, 2**24 - 1),
        kv_cache_bytes=table.whole("kv_cache_bytes", 1 << 20, 1 << 50),
        tbt_target_ms=table.millis("tbt_target_ms"),
        decode_step_ms=table.millis("decode_step_ms"),
        prompt_ms_per_token=table.millis("prompt_ms_per_token", most=10_000),
        command=table.texts("command") or ("vllm",),
        flags=table.texts("flags"),
        env=table.strings("env"),
    )
    table.nothing_else()
    if not _NAME.fullmatch(tier.name):
        raise table.wrong("name", f"letters, digits, '.', '_' or '-', not {tier.name!r}")
    for flag in tier.flags:
        for own, key in _OWN_FLAGS.items():
            if _means(flag, own):
                raise table.wrong(
                    "flags", f"anything but {flag.partition('=')[0]}, which is set with {key!r}"
                )
    if tier.power_limit_w is not None and not tier.gpus:
        raise table.wrong("power_limit_w", "nothing without gpus: it limits each of them")
    if len(set(tier.gpus)) != len(tier.gpus):
        raise table.wrong("gpus", f"each GPU once, not {list(tier.gpus)}")
    if len(tier.gpus) % tier.count:
        raise table.wrong(
            "gpus",
            f"a multiple of count = {tier.count} GPUs, so that each worker gets as many; not {len(tier.gpus)}",
        )
    if engine == "vllm":
        _check_vllm(table, tier)
    elif tier.command != ("vllm",):
        raise table.wrong("command", 'nothing with engine = "tiny", which is part of this program')
    elif tier.kv_cache_bytes is not None:
        raise table.wrong("kv_cache_bytes", 'nothing with engine = "tiny"; give kv_blocks')
    _check_step(table, tier)
    return tier


def _check_step(table: Table, tier: Tier) -> None:
    measured = {
        "decode_step_ms": tier.decode_step_ms,
        "prompt_ms_per_token": tier.prompt_ms_per_token,
    }
    if tier.tbt_target_ms is None:
        for key, value in measured.items():
            if value is not None:
                raise table.wrong(key, "nothing without tbt_target_ms")
        return
    if tier.engine != "vllm":
        raise table.wrong("tbt_target_ms", f"nothing with engine = {tier.engine!r}")
    if tier.role == "prefiller":
        raise table.wrong("tbt_target_ms", "nothing for a prefiller: nobody waits for a token there")
    if tier.preset == "cpu" and None in measured.values():
        missing = next(key for key, value in measured.items() if value is None)
        raise table.wrong(missing, "what was measured, because preset 'cpu' says nothing of it")
    for flag in tier.flags:
        if _means(flag, "--max-num-batched-tokens"):
            raise table.wrong("flags", f"anything but {flag}, which tbt_target_ms sets")
        if _means(flag, "--config"):
            raise table.wrong("flags", f"anything but {flag}, whose file may say what tbt_target_ms sets")


def _means(flag: str, option: str) -> bool:
    """Whether an engine takes `flag` for `option`.

    vLLM takes `_` for `-`, a part of a JSON option behind a dot, and any beginning that only one option has. One that several
    have it refuses, so that it does not matter which of them is named here.
    """
    said = flag.partition("=")[0].partition(".")[0].replace("_", "-")
    return said == option or (len(said) > len("--") and said.startswith("--") and option.startswith(said))


def _check_vllm(table: Table, tier: Tier) -> None:
    if tier.kv_blocks is not None:
        raise table.wrong("kv_blocks", 'nothing with engine = "vllm"; give kv_cache_bytes')
    if tier.preset == "cpu" and tier.gpus:
        presets = ", ".join(preset for preset in PRESETS if preset != "cpu")
        raise table.wrong("gpus", f'no GPUs with preset = "cpu", the usual one; name the GPU\'s: {presets}')
    if tier.preset != "cpu" and not tier.gpus:
        raise table.wrong("gpus", f"a list of GPU indices, because preset is {tier.preset!r}")


def _same(tables: list[Table], top: Table, key: str, read: Callable[[Table, str], _T | None]) -> _T | None:
    """The value of a key that may stand at the top or in each tier, but must not differ: a handoff needs it the same."""
    value, said_by = read(top, key), top
    for table in tables:
        own = read(table, key)
        if own is None:
            continue
        if value is not None and own != value:
            where = said_by.place or "the top of the file"
            raise table.wrong(
                key, f"{value!r} as in {where}: workers that hand KV over must agree; not {own!r}"
            )
        value, said_by = own, table
    return value


def _check(fleet: FleetFile) -> None:
    names = [tier.name for tier in fleet.tiers]
    for place, tier in enumerate(fleet.tiers):
        where = f"tier[{place}]"
        if names.index(tier.name) != place:
            raise ConfigError(f"{where}.name: {tier.name!r} is the name of another tier", key=f"{where}.name")
        for other in fleet.tiers[:place]:
            if both := sorted(set(tier.gpus) & set(other.gpus)):
                raise ConfigError(
                    f"{where}.gpus: GPU {both[0]} belongs to tier {other.name!r} already", key=f"{where}.gpus"
                )
    if not any(tier.role in ("decoder", "both") for tier in fleet.tiers):
        raise ConfigError('tier: at least one with role = "decoder" or "both"', key="tier")
    if sum(tier.count for tier in fleet.tiers) > WORKERS_MAX:
        raise ConfigError(f"tier: at most {WORKERS_MAX} workers in all", key="tier")
    engines = {tier.engine for tier in fleet.tiers}
    if len(engines) > 1 and fleet.connector != "none":
        raise ConfigError(
            'tier.engine: vllm and tiny cannot hand KV to each other; use one of them, or connector = "none"',
            key="tier.engine",
        )
    if "tiny" in engines and fleet.connector not in ("nixl", "none"):
        raise ConfigError('connector: the tiny engine takes "nixl" or "none"', key="connector")
    if fleet.connector == "example" and fleet.handoff_folder is None:
        raise ConfigError(
            'handoff_folder: takes a folder that every worker sees, because connector is "example"',
            key="handoff_folder",
        )
    if fleet.retention == "pin":
        if "tiny" in engines:
            raise ConfigError('retention: the tiny engine takes "cache"', key="retention")
        if fleet.declared is None and fleet.connector != "nixl":
            raise ConfigError(
                f'retention: "pin" takes connector = "nixl", or one of your own; {fleet.connector!r} cannot keep blocks',
                key="retention",
            )
        if fleet.declared is not None and not fleet.declared.retain:
            raise ConfigError(
                f'connector.{fleet.connector}.retain: takes what makes the engine keep a turn, because retention is "pin"',
                key=f"connector.{fleet.connector}.retain",
            )
    if fleet.declared is None:
        return
    for place, tier in enumerate(fleet.tiers):
        if clash := fleet.declared.flag_said_twice(tier.role, tier.flags):
            raise ConfigError(
                f"tier[{place}].flags: {clash} is set by connector.{fleet.connector}.flags already",
                key=f"tier[{place}].flags",
            )
