"""Everything an operator can set, from arguments or from the environment (`CONSERVE_<NAME>`), checked in one place.

Times are in seconds and sizes in bytes; the unit is the last word of the name.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from conserve._core import Decoder, Dispatcher, Prefiller, Router, Worker
from conserve._meant import meant
from conserve.errors import ConfigError
from conserve.policies import DEFAULT_POLICY, POLICIES, PolicyName

__all__ = ["WORKER_KEYS", "Role", "Settings", "WorkerAt", "is_host"]

Role: TypeAlias = Literal["prefiller", "decoder", "both"]

_NUMBERS: Final = ("kv_blocks", "block_size", "max_model_len", "prefill_backlog_tokens")
_TEXTS: Final = ("name", "tier", "bootstrap", "engine_id")
_SOCKETS: Final = ("kv_events", "kv_replay")
_OF_WORKER: Final = ("name", "tier", *_NUMBERS)
WORKER_KEYS: Final = (*_TEXTS, *_NUMBERS, *_SOCKETS, "gpus")
"""What may stand behind a worker's URL, as `key=value`."""
_LABEL: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_MEANINGLESS: Final[dict[Role, tuple[str, ...]]] = {
    "prefiller": ("kv_blocks", "block_size"),
    "decoder": ("prefill_backlog_tokens", "bootstrap", "engine_id"),
    "both": (),
}


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerAt:
    """Where a worker is and what is known about it beforehand: `http://d0:8000,kv_blocks=40000,name=d0`."""

    url: str
    name: str | None = None
    tier: str | None = None
    kv_blocks: int | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    prefill_backlog_tokens: int | None = None
    bootstrap: str | None = None
    """Of a prefiller, for connector mooncake: the address of its bootstrap server."""
    engine_id: str | None = None
    """Of a prefiller, for connector mooncake: what the transfer layer calls it."""
    kv_events: str | None = None
    """Where it publishes its KV events (ZeroMQ): `kv_events=tcp://d0:5557`."""
    kv_replay: str | None = None
    """Where it repeats those that were missed."""
    gpus: tuple[int, ...] = ()
    """The GPUs of this machine that it runs on, written `gpus=0+1`, so that their energy is counted as its own."""

    @classmethod
    def parse(cls, text: str) -> WorkerAt:
        """Read `URL[,key=value...]`; raises ValueError that names the key and what it takes."""
        url, *options = (part.strip() for part in text.split(","))
        if not url.startswith(("http://", "https://")) or len(url.partition("://")[2]) == 0:
            raise ValueError(f"{url!r} is not a worker's URL: write http://host:port[,key=value...]")
        values: dict[str, Any] = {}
        for option in options:
            key, _, value = option.partition("=")
            if key in _NUMBERS:
                if not value.isascii() or not value.isdigit() or int(value) == 0:
                    raise ValueError(f"worker {url}: {key} takes a whole number above 0, not {value!r}")
                values[key] = int(value)
            elif key == "gpus":
                if not re.fullmatch(r"\d{1,4}(\+\d{1,4})*", value, re.ASCII):
                    raise ValueError(
                        f"worker {url}: gpus takes indices joined by '+', like 0+1, not {value!r}"
                    )
                values[key] = tuple(dict.fromkeys(map(int, value.split("+"))))
            elif key in _SOCKETS:
                if not re.fullmatch(r"tcp://[^\s*]+:\d{1,5}|ipc://\S+", value):
                    raise ValueError(
                        f"worker {url}: {key} takes tcp://host:port or ipc://path, not {value!r}"
                    )
                values[key] = value
            elif key in _TEXTS and value:
                values[key] = value
            else:
                known = ", ".join(WORKER_KEYS)
                raise ValueError(f"worker {url}: {option!r} is no option; known: {known}, each as key=value")
        return cls(url.rstrip("/"), **values)

    def worker(self, role: Role) -> Prefiller | Decoder | Worker:
        """The same, as the router takes it. What a role has no use for must be absent: ConfigError names it."""
        for key in _MEANINGLESS[role]:
            if getattr(self, key) is not None:
                raise ConfigError(f"{role} {self.url}: {key} means nothing for a {role}", key=key)
        if self.kv_replay is not None and self.kv_events is None:
            raise ConfigError(
                f"{role} {self.url}: kv_replay means nothing without kv_events", key="kv_replay"
            )
        given = {key: value for key in _OF_WORKER if (value := getattr(self, key)) is not None}
        kinds: dict[Role, Callable[..., Prefiller | Decoder | Worker]] = {
            "prefiller": Prefiller,
            "decoder": Decoder,
            "both": Worker,
        }
        return kinds[role](self.url, **given)


def is_host(text: str) -> bool:
    """Whether `text` is an IP address, or could be a host's name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        labels = text.removesuffix(".").split(".")
        # Only an address ends with a number.
        return len(text) <= 253 and all(map(_LABEL.fullmatch, labels)) and not labels[-1].isdigit()
    return True


def _host(value: str) -> str:
    if not is_host(value):
        raise ValueError("takes an IP address or a host's name")
    return value


def _workers(value: object) -> object:
    if isinstance(value, str):
        value = value.split()
    if isinstance(value, Iterable):
        return tuple(WorkerAt.parse(item) if isinstance(item, str) else item for item in value)
    return value


def _words(value: object) -> object:
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


def _options(value: object) -> object:
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, Iterable):
        return value
    pairs = [tuple(item.split("=", 1)) if isinstance(item, str) else item for item in value]
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ValueError(f"{pair!r} is no option of a policy: write key=value")
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"takes each option once, not {key!r} {keys.count(key)} times")
    return tuple(pairs)


def _policy(value: object) -> object:
    """A name alone: elsewhere a policy is written with its options, and several of them."""
    if not isinstance(value, str) or value in POLICIES:
        return value
    name = value.partition("(")[0].strip()
    if name in POLICIES and name != value:
        raise ValueError(f"takes the name alone, {name}; its options are policy_option's, as key=value")
    if name.partition(",")[0].strip() in POLICIES:
        raise ValueError("takes one policy; `conserve sim` and `conserve bench live` compare several")
    raise ValueError(f"takes one of {', '.join(POLICIES)}, not {value!r}{meant(value, POLICIES)}")


def _never(value: object) -> object:
    return None if isinstance(value, str) and value.lower() in ("", "none", "never") else value


def _shape(value: object) -> object:
    """`{"prefill": {...}, "decode": {...} | "answer" | "nothing", "retain": {...}}`, as JSON or read, as the dispatcher takes it."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(value, dict) or not set(value) <= {"prefill", "decode", "retain"}:
        raise ValueError("takes an object with the keys prefill, decode and retain")
    prefill, decode, retain = value.get("prefill", {}), value.get("decode", "answer"), value.get("retain", {})
    for key, given in (("prefill", prefill), ("retain", retain)):
        if not isinstance(given, dict):
            raise ValueError(f"{key}: takes an object, not {given!r}")  # noqa: TRY004 - what pydantic takes
    if not isinstance(decode, dict) and decode not in ("answer", "nothing"):
        raise ValueError(f'decode: takes an object, "answer" or "nothing", not {decode!r}')
    added = json.dumps(prefill) if prefill else ""
    told = {"answer": None, "nothing": ""}[decode] if isinstance(decode, str) else json.dumps(decode)
    return added, told, json.dumps(retain) if retain else None


_Shape: TypeAlias = Annotated[tuple[str, str | None, str | None], NoDecode, BeforeValidator(_shape)]
_Options: TypeAlias = Annotated[tuple[tuple[str, str], ...], NoDecode, BeforeValidator(_options)]
_Workers: TypeAlias = Annotated[tuple[WorkerAt, ...], NoDecode, BeforeValidator(_workers)]
_Seconds: TypeAlias = Annotated[float, Field(gt=0, le=86_400)]


class Settings(BaseSettings):
    """The settings of one router and its door.

    `Settings(low_watermark=0.7)` or `CONSERVE_LOW_WATERMARK=0.7`; arguments win. Workers are written
    `URL[,key=value...]`, several separated by spaces. Raises ConfigError, which names the setting and its range.
    """

    model_config = SettingsConfigDict(
        env_prefix="CONSERVE_", env_ignore_empty=True, frozen=True, extra="forbid"
    )

    # The fleet.
    prefillers: _Workers = Field((), description="Workers that prefill first turns.")
    decoders: _Workers = Field((), description="Workers that keep conversations.")
    both: _Workers = Field((), description="Workers that do both.")
    connector: Literal["nixl", "mooncake", "example", "none"] = Field(
        "nixl", description="How KV is handed over."
    )
    connector_shape: _Shape | None = Field(
        None,
        description='Another way instead: `{"prefill": ..., "decode": ..., "retain": ...}` as JSON, see [fleet](../guides/fleet.md).',
    )
    retention: Literal["cache", "pin"] = Field(
        "cache",
        description="Whether decoders may evict what finished turns left, or `pin` it: they must have been started for it, see "
        "[fleet](../guides/fleet.md#retention).",
    )
    retention_ttl_s: int = Field(
        480, ge=1, le=86_400, description="With `pin`: how long after its last turn a decoder keeps it."
    )

    # The router.
    policy: Annotated[PolicyName, BeforeValidator(_policy)] = Field(
        DEFAULT_POLICY, description="The placement rule; see the guide on policies."
    )
    policy_option: _Options = Field(
        (), description="What the rule takes beside, as `key=value`, several separated by spaces."
    )
    low_watermark: float = Field(
        0.8, gt=0, le=1, description="New conversations stop at this share of a decoder."
    )
    prefill_backlog_tokens: int = Field(
        65_536, ge=1, description="Queued input tokens that close a prefiller."
    )
    queue_limit: int = Field(1024, ge=0, description="Places in the waiting line.")
    queue_timeout_s: _Seconds = Field(30.0, description="Longest wait in line.")
    idle_timeout_s: Annotated[_Seconds | None, BeforeValidator(_never)] = Field(
        3600.0, description="An idle conversation's blocks are freed after this; `none`: never."
    )
    evict_idle: bool = Field(
        True, description="Who finds no room takes that of idle conversations, the longest idle first."
    )
    tail_waits: bool = Field(
        False,
        description="A later turn waits until its growth fits the books; if not, it runs and the engine evicts for it.",
    )
    evict_idle_below: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Eviction rests while a larger share of prompts is computed again, unless nothing runs there.",
    )
    max_conversations: int = Field(4_000_000, ge=1, description="Conversations remembered.")
    block_size: int = Field(
        16, ge=1, le=65_536, description="Tokens in a KV block, where a worker does not say."
    )
    slo_ttft_ms: Annotated[float | None, Field(gt=0, le=86_400_000), BeforeValidator(_never)] = Field(
        None, description="A first token later than this is no goodput; `none`: any time will do."
    )
    slo_tbt_ms: Annotated[float | None, Field(gt=0, le=86_400_000), BeforeValidator(_never)] = Field(
        None, description="The same for the mean gap between a turn's tokens."
    )
    report_stale_s: _Seconds = Field(
        10.0, description="What a worker told of its load is not used when it is older."
    )
    secret: SecretStr | None = Field(
        None, description="32 hexadecimal digits that key the hash of tenants and ids; random by default."
    )

    # One request.
    conversation_headers: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_words)] = Field(
        ("x-conversation-id", "x-session-id"),
        description="Headers that name the conversation, first one wins.",
    )
    fingerprint: bool = Field(True, description="Recognise conversations without an id by their history.")
    max_body_bytes: int = Field(
        32 * 1024 * 1024, ge=1, le=2**30, description="Largest request body; above it 413."
    )
    max_depth: int = Field(512, ge=4, le=1024, description="Deepest nesting of a request body.")
    max_messages: int = Field(
        65_536, ge=1, le=2**20, description="Messages in one request that names no conversation."
    )
    max_conversation_id_bytes: int = Field(256, ge=1, le=4096, description="Longest conversation id.")
    max_answer_bytes: int = Field(
        64 * 1024 * 1024, ge=1, le=2**30, description="Largest answer held in memory whole."
    )
    retries: int = Field(
        2, ge=0, le=10, description="Further attempts at other workers before the first byte."
    )
    connect_timeout_s: _Seconds = Field(2.0, description="To connect to a worker.")
    prefill_timeout_s: _Seconds = Field(120.0, description="For a prefiller's answer.")
    first_byte_timeout_s: _Seconds = Field(120.0, description="For the first byte of a decoder's stream.")
    answer_timeout_s: _Seconds = Field(600.0, description="For a decoder's answer that is not streamed.")
    stream_idle_timeout_s: _Seconds = Field(60.0, description="Between two pieces of a stream.")
    lease_s: _Seconds = Field(25.0, description="Oldest handoff sent to a decoder; below the engine's lease.")
    forward_authorization: bool = Field(False, description="Pass the client's Authorization to the workers.")
    worker_key: SecretStr | None = Field(None, description="Sent to the workers as a bearer token.")

    # The door.
    door: Literal["fastapi", "native"] = Field(
        "native", description="Which program moves the bytes of turns: the one in Rust, or Python's."
    )
    door_threads: int = Field(
        0, ge=0, le=1024, description="Threads of the native door; 0 takes one for each processor core."
    )
    host: Annotated[str, AfterValidator(_host)] = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    body_timeout_s: _Seconds = Field(
        60.0, description="For a request's head to arrive, and again for the whole of its body."
    )
    client_stall_timeout_s: _Seconds = Field(
        120.0, description="A client that takes nothing for so long is taken to be gone."
    )
    tls_cert: Path | None = Field(
        None, description="PEM file of the door's certificate chain: it serves HTTPS."
    )
    tls_key: Path | None = Field(None, description="PEM file of the certificate's key, not encrypted.")
    worker_ca: Path | None = Field(
        None, description="PEM file of the authorities of `https://` workers, instead of this machine's."
    )
    max_connections: int = Field(
        0,
        ge=0,
        le=2**20,
        description="Clients' connections to the native door at once; 0: no bound of its own.",
    )
    shutdown_timeout_s: float = Field(30.0, ge=0, le=86_400, description="Streams may finish for so long.")
    probe_interval_s: float = Field(1.0, ge=0.01, le=3600, description="Between two probes of a worker.")
    probe_timeout_s: _Seconds = Field(2.0, description="For a worker's answer to a probe.")
    probe_failures: int = Field(
        3, ge=1, le=1000, description="Failed probes in a row that make a worker lost."
    )
    control_key: SecretStr | None = Field(
        None, description="Bearer token asked for by /v1/fleet, /v1/energy and /metrics."
    )
    energy: Literal["auto", "off"] = Field(
        "auto", description="Whether to read the energy counters that this machine offers."
    )
    energy_interval_s: float = Field(0.2, ge=0.01, le=60, description="Between two looks at them.")

    def __init__(self, **values: object) -> None:
        try:
            super().__init__(**values)  # type: ignore[arg-type]
        except ValidationError as cause:
            raise _config_error(cause) from None
        if "retention_ttl_s" in self.model_fields_set and self.retention != "pin":
            raise ConfigError("retention_ttl_s: means nothing unless retention is pin", key="retention_ttl_s")

    @classmethod
    def misspelt(cls, environment: Mapping[str, str]) -> Iterator[str]:
        """A sentence for each variable that names no setting and looks like one."""
        prefix = str(cls.model_config.get("env_prefix"))
        names = [f"{prefix}{name.upper()}" for name in cls.model_fields]
        for variable in sorted(environment):
            if not variable.upper().startswith(prefix) or variable.upper() in names:
                continue
            if meant := get_close_matches(variable.upper(), names, n=1, cutoff=0.85):
                yield f"{variable} is no setting and is ignored; did you mean {meant[0]}?"

    def workers(self) -> list[tuple[Role, WorkerAt]]:
        """Every worker named here, with its role."""
        roles: tuple[tuple[Role, tuple[WorkerAt, ...]], ...] = (
            ("prefiller", self.prefillers),
            ("decoder", self.decoders),
            ("both", self.both),
        )
        return [(role, at) for role, group in roles for at in group]

    def router(self, *, empty: bool = False) -> Router:
        """A router over these workers; with `empty`, one that they join later. Raises ConfigError."""
        router = Router(
            policy=self.policy,
            policy_options=dict(self.policy_option),
            low_watermark=self.low_watermark,
            prefill_backlog_tokens=self.prefill_backlog_tokens,
            queue_limit=self.queue_limit,
            queue_timeout_s=self.queue_timeout_s,
            idle_timeout_s=self.idle_timeout_s,
            evict_idle=self.evict_idle,
            tail_waits=self.tail_waits,
            evict_idle_below=self.evict_idle_below,
            max_conversations=self.max_conversations,
            block_size=self.block_size,
            slo_ttft_ms=self.slo_ttft_ms,
            slo_tbt_ms=self.slo_tbt_ms,
            report_stale_s=self.report_stale_s,
            retention_ttl_s=float(self.retention_ttl_s) if self.retention == "pin" else None,
            secret=self.secret_bytes(),
        )
        if not empty:
            for role, at in self.workers():
                router.join(at.worker(role))
        return router

    def dispatcher(self, router: Router) -> Dispatcher:
        """A dispatcher over `router` with the settings of one request. Raises ConfigError."""
        return Dispatcher(
            router,
            connector=self.connector,
            shape=self.connector_shape,
            retain=self.retention == "pin",
            max_body_bytes=self.max_body_bytes,
            peers=self._peers(),
            max_depth=self.max_depth,
            max_messages=self.max_messages,
            max_conversation_id_bytes=self.max_conversation_id_bytes,
            conversation_headers=self.conversation_headers,
            retries=self.retries,
            queue_timeout_s=self.queue_timeout_s,
            prefill_timeout_s=self.prefill_timeout_s,
            first_byte_timeout_s=self.first_byte_timeout_s,
            answer_timeout_s=self.answer_timeout_s,
            idle_timeout_s=self.stream_idle_timeout_s,
            connect_timeout_s=self.connect_timeout_s,
            lease_s=self.lease_s,
            forward_authorization=self.forward_authorization,
            worker_key=None if self.worker_key is None else self.worker_key.get_secret_value(),
            max_answer_bytes=self.max_answer_bytes,
            fingerprint=self.fingerprint,
        )

    def _peers(self) -> dict[str, tuple[str, str]] | None:
        named = {
            at.url: (at.bootstrap, at.engine_id)
            for role, at in self.workers()
            if role != "decoder" and at.bootstrap is not None and at.engine_id is not None
        }
        return named or None

    def secret_bytes(self) -> bytes | None:
        """The 16 bytes of `secret`; raises ConfigError unless it is 32 hexadecimal digits."""
        if self.secret is None:
            return None
        try:
            value = bytes.fromhex(self.secret.get_secret_value())
        except ValueError:
            value = b""
        if len(value) != 16:
            raise ConfigError(
                "secret: takes 32 hexadecimal digits", key="secret", accepted="32 hexadecimal digits"
            )
        return value


def _config_error(cause: ValidationError) -> ConfigError:
    """One sentence for each setting that is wrong; values that may be secret are not repeated."""
    lines, keys = [], []
    for error in cause.errors(include_url=False):
        key = str(error["loc"][0]) if error["loc"] else "settings"
        said = error["msg"].removeprefix("Value error, ")
        shown = error.get("input")
        secret = key in ("secret", "worker_key", "control_key")
        tail = f" (got {shown!r})" if not secret and isinstance(shown, str | int | float) else ""
        known = key in Settings.model_fields
        lines.append(
            f"{key}: {said}{tail}"
            if known
            else f"{key}: there is no such setting{meant(key, Settings.model_fields)}"
        )
        keys.append(key)
    return ConfigError("; ".join(lines), key=keys[0], accepted=lines[0].partition(": ")[2])
