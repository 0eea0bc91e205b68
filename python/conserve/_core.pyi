"""The compiled core of ConServe. Import its names from `conserve`; this module is where they are built.

Units: `_s` is seconds (float, on the router's own clock), `_tokens` tokens, `_blocks` KV blocks of `block_size` tokens.
All classes may be used from several threads at once, with and without the GIL.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias, TypedDict, final

from conserve.policies import PolicyName

__all__ = [
    "DEFAULT_POLICY",
    "Advice",
    "Call",
    "Collect",
    "ConversationView",
    "Decoder",
    "Dispatch",
    "Dispatcher",
    "Finish",
    "Listen",
    "ManualClock",
    "NativeDoor",
    "Prefiller",
    "Relay",
    "Reply",
    "Route",
    "Router",
    "SimResult",
    "SimWorkload",
    "Snapshot",
    "Stream",
    "Swept",
    "Turn",
    "TurnContext",
    "Upstream",
    "Wait",
    "Worker",
    "WorkerView",
    "__version__",
    "policies",
    "simulate",
]

__version__: Final[str]
DEFAULT_POLICY: Final[PolicyName]

_Headers: TypeAlias = list[tuple[bytes, bytes]]
_Prefillers: TypeAlias = Literal["needed", "used", "unused"]
_Role: TypeAlias = Literal["prefiller", "decoder", "both"]
_FailReason: TypeAlias = Literal[
    "client_gone",
    "prefill_failed",
    "decoder_lost",
    "decoder_error",
    "timeout",
    "rejected",
    "no_socket",
    "dropped",
]
_LostReason: TypeAlias = Literal["refused", "silent", "restarted", "asked"]

# ---------------------------------------------------------------------------------------------------- the fleet

@final
class Prefiller:
    """A worker that prefills the first turn of conversations: it computes the KV of a long prompt and hands it over.

    `prefill_backlog_tokens` is its own admission limit (default: the router's): while more input tokens than that are
    queued at it, it is given no new conversation. `tier` is a free label, such as the class of GPU.

    >>> Prefiller("http://p0:8000", name="p0")
    Prefiller('http://p0:8000', name='p0')
    """

    __match_args__: Final = ("url",)
    def __new__(
        cls,
        url: str,
        *,
        name: str | None = None,
        tier: str | None = None,
        max_model_len: int | None = None,
        prefill_backlog_tokens: int | None = None,
    ) -> Self: ...
    @property
    def url(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def tier(self) -> str | None: ...
    @property
    def max_model_len(self) -> int | None: ...
    @property
    def prefill_backlog_tokens(self) -> int | None: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Decoder:
    """A worker that keeps conversations: their KV stays with it and every later turn runs on it.

    `kv_blocks` is the size of its KV cache in blocks of `block_size` tokens (default: the router's). A decoder whose
    `kv_blocks` is not known takes no conversation until `Router.observe` reports it.

    >>> Decoder("http://d0:8000", kv_blocks=40_000)
    Decoder('http://d0:8000', kv_blocks=40000)
    """

    __match_args__: Final = ("url",)
    def __new__(
        cls,
        url: str,
        *,
        kv_blocks: int | None = None,
        block_size: int | None = None,
        name: str | None = None,
        tier: str | None = None,
        max_model_len: int | None = None,
    ) -> Self: ...
    @property
    def url(self) -> str: ...
    @property
    def kv_blocks(self) -> int | None: ...
    @property
    def block_size(self) -> int | None: ...
    @property
    def name(self) -> str | None: ...
    @property
    def tier(self) -> str | None: ...
    @property
    def max_model_len(self) -> int | None: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Worker:
    """A worker that is prefiller and decoder at once. It may prefill its own conversations without a handoff.

    >>> Worker("http://w0:8000", kv_blocks=40_000)
    Worker('http://w0:8000', kv_blocks=40000)
    """

    __match_args__: Final = ("url",)
    def __new__(
        cls,
        url: str,
        *,
        kv_blocks: int | None = None,
        block_size: int | None = None,
        name: str | None = None,
        tier: str | None = None,
        max_model_len: int | None = None,
        prefill_backlog_tokens: int | None = None,
    ) -> Self: ...
    @property
    def url(self) -> str: ...
    @property
    def kv_blocks(self) -> int | None: ...
    @property
    def block_size(self) -> int | None: ...
    @property
    def name(self) -> str | None: ...
    @property
    def tier(self) -> str | None: ...
    @property
    def max_model_len(self) -> int | None: ...
    @property
    def prefill_backlog_tokens(self) -> int | None: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

# --------------------------------------------------------------------------------------------------- the router

@final
class ManualClock:
    """A clock that moves when told, for tests and simulations. Safe to share between threads.

    >>> clock = ManualClock()
    >>> clock.advance(1.5)
    >>> clock.now_s
    1.5
    """

    def __new__(cls, now_s: float = 0.0) -> Self: ...
    @property
    def now_s(self) -> float:
        """Seconds since the clock's origin."""
    def advance(self, seconds: float) -> None:
        """Move on by `seconds` (>= 0, else ValueError). Call `Router.tick` to expire what waits in line."""

@final
class Router:
    """Decides where each turn of each conversation runs, and whether there is room for it.

    The first turn of a conversation is placed: a prefiller (least queued tokens for its speed) and a decoder (most
    free KV blocks). Later turns run there while their KV does. Nothing is predicted: placement and admission read only
    what was observed: prompt sizes, queued tokens, speeds, booked blocks, and what lies where.

    Options:
        policy: the placement rule; "strict" is the paper's, one pin and one handoff for each conversation; see the guide
            "policies".
        policy_options: what that rule takes beside, such as `{"rule": "min"}` for "ampd"; `policies` lists all.
        low_watermark: new conversations are admitted while a decoder's booked blocks stay under this share of its
            capacity (0 < x <= 1); turns of conversations already pinned may use the rest.
        prefill_backlog_tokens: a prefiller with this many queued input tokens gets no new conversation.
        queue_limit: places in the waiting line; beyond it turns are shed with `Overloaded`.
        queue_timeout_s: longest wait in line where a turn names none.
        idle_timeout_s: `sweep` frees conversations not used for this long; None keeps them until `close`.
        evict_idle: who finds no room takes that of the least recently used idle conversations of a decoder.
        tail_waits: a later turn waits until its growth fits the books; if not, it runs and the engine evicts for it.
        evict_idle_below: evict_idle rests while more than this share of the computed prompt tokens is computed again and turns run there.
        max_conversations: bound on the conversations remembered.
        block_size: tokens in one KV block, where a decoder does not say.
        slo_ttft_ms: a turn whose first token comes later is no goodput; None: any time will do.
        slo_tbt_ms: the same for the mean gap between its tokens.
        report_stale_s: what a worker told of its load is not used when it is older.
        retention_ttl_s: decoders keep what a finished turn left for so long, whatever becomes of its conversation, and the books
            follow; None: they may evict it at any time.
        clock: time for tests; by default the machine's monotonic clock.
        secret: 16 bytes that key the hash of tenants and conversation ids; random by default.

    Raises ConfigError, naming the option and the accepted range.

    >>> router = Router([Prefiller("http://p0:8000")], [Decoder("http://d0:8000", kv_blocks=40_000)])
    >>> with router.turn("task-42", prompt_tokens=3_912) as turn:
    ...     where = turn.route  # send the prompt to where.prefiller, then where.decoder
    ...     turn.finish(output_tokens=128)
    >>> where.decoder, where.handoff, where.turn
    ('http://d0:8000', True, 1)
    """

    def __new__(
        cls,
        prefillers: Sequence[Prefiller] = (),
        decoders: Sequence[Decoder | Worker] = (),
        *,
        policy: PolicyName = "follow-kv",
        policy_options: Mapping[str, str | float] | None = None,
        low_watermark: float = 0.8,
        prefill_backlog_tokens: int = 65_536,
        queue_limit: int = 1024,
        queue_timeout_s: float = 30.0,
        idle_timeout_s: float | None = 3600.0,
        evict_idle: bool = True,
        tail_waits: bool = False,
        evict_idle_below: float = 0.1,
        max_conversations: int = 4_000_000,
        block_size: int = 16,
        slo_ttft_ms: float | None = None,
        slo_tbt_ms: float | None = None,
        report_stale_s: float = 10.0,
        retention_ttl_s: float | None = None,
        clock: ManualClock | None = None,
        secret: bytes | None = None,
    ) -> Self: ...
    def turn(
        self,
        conversation: str,
        /,
        *,
        prompt_tokens: int,
        tenant: str | None = None,
        timeout_s: float | None = None,
    ) -> TurnContext:
        """The next turn of `conversation`, to be entered with `with` or `async with`.

        `prompt_tokens` is the whole prompt of the turn, history included; an estimate will do, because
        `Turn.prefilled` and `Turn.finish` correct it. `tenant` keeps equal ids of different callers apart.

        `with` answers now; with `timeout_s` the thread waits in line for at most so long. `async with` waits in line
        for `timeout_s`, by default the router's `queue_timeout_s`; 0 answers now. Cancelling the wait leaves the line.

        Entering raises Overloaded (no room now, line full, or waited too long), PromptTooLong (fits no decoder),
        Draining or NoWorkers. Nothing stays booked then.
        """
    def close(self, conversation: str, /, *, tenant: str | None = None) -> bool:
        """Forget the conversation and free its blocks; False if it was not known.

        A turn in flight keeps its own part until it is settled. The same id later is a new conversation.
        """
    def relocate(self, conversation: str, /, *, tenant: str | None = None) -> bool:
        """Unpin the conversation, so that its next turn is placed afresh; False if it was not pinned."""
    def sweep(self) -> Swept:
        """Free conversations that were idle longer than `idle_timeout_s`, and say how many and how much."""
    def tick(self) -> None:
        """Expire what waited in line too long and let in what fits. Doors call this a few times a second."""
    def check(self) -> None:
        """Raise AssertionError unless the books balance; for tests, at a moment when no call is under way.

        Booked blocks of each decoder = blocks of the conversations pinned to it + bookings of turns in flight.
        """
    def join(self, worker: Prefiller | Decoder | Worker, /) -> int:
        """Add a worker; its id, which is never used again. Raises ConfigError if it cannot join."""
    def drain(self, worker: int | str, /) -> None:
        """No new conversations for this worker; those pinned to it move at their next turn. KeyError if unknown.

        Here and below, `worker` is an id or a name; a name means the worker of that name that joined last.
        """
    def undrain(self, worker: int | str, /) -> None:
        """Take back `drain`."""
    def lose(self, worker: int | str, /, *, reason: _LostReason = "asked") -> None:
        """The worker is gone with its KV: its conversations are unpinned and relocate at their next turn."""
    def suspect(self, worker: int | str, suspected: bool, /) -> None:
        """While suspected (it did not answer in time, say), a worker gets no new conversations."""
    def observe(
        self,
        worker: int | str,
        /,
        *,
        kv_blocks: int | None = None,
        block_size: int | None = None,
        kv_usage: float | None = None,
        running: int | None = None,
        waiting: int | None = None,
        max_model_len: int | None = None,
    ) -> None:
        """Take in what a worker said about itself. `kv_usage` is the share of its KV cache in use, 0 to 1."""
    def observe_metrics(self, worker: int | str, text: bytes, /) -> None:
        """Like `observe`, from a worker's Prometheus page (vLLM's metric names)."""
    def observe_events(self, worker: int | str, number: int, batch: bytes, /) -> int | None:
        """Take in one batch of a worker's KV events (vLLM's `EventBatch` in MessagePack), which it numbers from 0.

        Gives None, or the number from which on batches are missing: this one is not counted then; bring those first, or
        say `give_up_events`. KeyError for an unknown worker, ValueError for what is no batch.
        """
    def give_up_events(self, worker: int | str, number: int, /) -> None:
        """Batches of KV events before `number` are lost: what the worker's cache holds is unknown until it is emptied.

        KeyError for an unknown worker.
        """
    def charge(self, worker: int, /, *, prefill_uj: int = 0, decode_uj: int = 0) -> tuple[int, int]:
        """Charge the turns that prefill and those that decode at a worker now for energy it used, each an equal part.

        Gives the microjoules that nobody was charged, of both, to be charged later. KeyError for an unknown worker.
        """
    def conversation(self, conversation: str, /, *, tenant: str | None = None) -> ConversationView | None:
        """What is known about a conversation, or None."""
    def snapshot(self) -> Snapshot:
        """The fleet and the line as they are now. Cheap enough to poll."""
    def metrics(self) -> str:
        """The same, with counters and histograms since the start, as Prometheus text."""
    @property
    def now_s(self) -> float:
        """The router's clock, seconds since its origin."""

@final
class TurnContext:
    """What `Router.turn` returns: enter it once with `with` or `async with` to get the `Turn`.

    Leaving settles the turn. An exception fails it: `asyncio.CancelledError` as "client_gone", TimeoutError and
    WorkerTimeout as "timeout", other WorkerErrors by their phase as "prefill_failed" or "decoder_error", all else as
    "dropped". Without one, what was not finished is finished with the tokens known so far.
    """

    def __enter__(self) -> Turn: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def __aenter__(self) -> Awaitable[Turn]: ...
    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Awaitable[None]: ...

@final
class Turn:
    """One turn that was let in: where it runs, and the bookings it holds until it is settled.

    Settled exactly once, by `finish`, `fail`, the end of the `with` block or the garbage collector (a failure).
    Any method but `route` and `settled` raises RuntimeError afterwards.
    """

    @property
    def route(self) -> Route:
        """Where the turn runs. `reprefill` changes it."""
    @property
    def settled(self) -> bool: ...
    def prefilled(self, prompt_tokens: int, /) -> None:
        """The prefill is done and the prompt had exactly so many tokens: correct the booking, unload the prefiller."""
    def handed_over(self) -> None:
        """The decoder has the KV: the conversation is pinned, its other turns may go on. `finish` implies it."""
    def reprefill(self, *, avoid: Sequence[int | str] = ()) -> Route:
        """The prefiller failed: the route with the next one (not one of `avoid`) and the same decoder.

        With no prefiller left, `prefiller` is None and the decoder is to prefill by itself.
        """
    def first_token(self) -> None:
        """The first token of the answer is here (time to first token)."""
    def effective(self) -> None:
        """The turn ended with an answer for the user, not with a tool call: its first token sets the TTFET."""
    def finish(
        self,
        *,
        output_tokens: int | None = None,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> None:
        """The turn is done; what the worker's `usage` says corrects the booking."""
    def fail(self, reason: _FailReason = "dropped") -> None:
        """The turn did not work out: what it booked is given back."""

@final
class Route:
    """Where a turn runs, and why.

    With `handoff`, on a first turn or one that is placed again, send the prompt to `prefiller` and hand its KV to
    `decoder`; otherwise send the turn straight to `decoder`.
    """

    @property
    def prefiller(self) -> str | None:
        """URL, None if there is no handoff."""
    @property
    def prefiller_name(self) -> str | None: ...
    @property
    def prefiller_id(self) -> int | None: ...
    @property
    def decoder(self) -> str:
        """URL."""
    @property
    def decoder_name(self) -> str: ...
    @property
    def decoder_id(self) -> int: ...
    @property
    def handoff(self) -> bool: ...
    @property
    def turn(self) -> int:
        """1 for the first."""
    @property
    def kind(self) -> Literal["first", "pinned", "relocated"]: ...
    @property
    def reason(self) -> str:
        """One line with the numbers compared."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Swept:
    """What `Router.sweep` freed."""

    __match_args__: Final = ("conversations", "blocks")
    @property
    def conversations(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class ConversationView:
    """A conversation at one moment. Times are on the router's clock."""

    @property
    def key(self) -> str:
        """Its key, 32 hexadecimal digits: tenant and id under the router's secret."""
    @property
    def phase(self) -> Literal["placing", "pinned", "unpinned", "closed"]: ...
    @property
    def decoder(self) -> str | None:
        """URL of the decoder it is pinned to."""
    @property
    def decoder_name(self) -> str | None: ...
    @property
    def decoder_id(self) -> int | None: ...
    @property
    def turn(self) -> int:
        """Turns begun so far."""
    @property
    def in_flight(self) -> int: ...
    @property
    def blocks(self) -> int:
        """KV blocks booked for it."""
    @property
    def first_seen_s(self) -> float: ...
    @property
    def last_used_s(self) -> float: ...
    @property
    def ttfet_s(self) -> float | None:
        """Time from its first request to the first token of its first user-visible answer; None until known."""
    @property
    def energy_j(self) -> float:
        """Energy that its turns used, as far as it was measured and their work has ended."""
    @property
    def tokens(self) -> int:
        """Prompt tokens computed and tokens generated for it."""

@final
class WorkerView:
    """A worker at one moment."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def role(self) -> _Role: ...
    @property
    def helps(self) -> bool:
        """It does both, but holds conversations only when no other has room, and computes prompts for the others."""
    @property
    def tier(self) -> str | None: ...
    @property
    def health(self) -> Literal["ready", "suspect", "lost"]: ...
    @property
    def draining(self) -> bool: ...
    @property
    def kv_blocks(self) -> int | None:
        """Capacity; None for a prefiller and while it is unknown."""
    @property
    def block_size(self) -> int:
        """Tokens in a block."""
    @property
    def max_model_len(self) -> int | None:
        """Longest prompt plus answer it takes."""
    @property
    def booked_blocks(self) -> int:
        """KV blocks booked: those of conversations pinned to it and those of turns in flight."""
    @property
    def reserved_blocks(self) -> int:
        """Of these, the blocks of turns in flight."""
    @property
    def retained_blocks(self) -> int:
        """Of these, the blocks that no conversation holds and the engine keeps until their time is up."""
    @property
    def running(self) -> int:
        """Turns in flight."""
    @property
    def conversations(self) -> int:
        """Conversations pinned to it or on their way."""
    @property
    def queued_tokens(self) -> int:
        """Input tokens given to it as a prefiller and not done yet."""
    @property
    def tokens_per_s(self) -> float | None:
        """Prefill speed observed; None before any."""
    @property
    def kv_usage(self) -> float | None:
        """What it last said about itself: the share of its KV cache in use, 0 to 1."""
    @property
    def reported_running(self) -> int | None:
        """What it last said about itself: requests that run."""
    @property
    def reported_waiting(self) -> int | None:
        """What it last said about itself: requests that wait."""
    @property
    def report_age_s(self) -> float | None:
        """Since it last told its load; None if it never did."""
    @property
    def report_stale(self) -> bool:
        """That is too long ago, and what it told is left out."""
    @property
    def resident_blocks(self) -> int | None:
        """Blocks in its prefix cache, from its KV events."""
    @property
    def resident_idle_blocks(self) -> int | None:
        """Of these, in use by no running request."""
    @property
    def idle_evicted_blocks(self) -> int:
        """Blocks of idle conversations pinned to it that it evicted."""
    @property
    def joined_s(self) -> float:
        """When it joined."""
    @property
    def prefilling(self) -> int:
        """Turns whose prompt is computed there now."""
    @property
    def decoding(self) -> int:
        """Turns whose answer is generated there now."""
    @property
    def prefill_s(self) -> float:
        """Turn-seconds of prefill: two turns for a second are two."""
    @property
    def decode_s(self) -> float:
        """Turn-seconds of decode."""
    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens computed."""
    @property
    def output_tokens(self) -> int:
        """Tokens generated."""

@final
class Advice:
    """How many workers should only compute prompts, and the measured terms that it follows from."""

    @property
    def prefillers(self) -> int:
        """So many should."""
    @property
    def prefillers_now(self) -> int:
        """So many do."""
    @property
    def workers(self) -> int: ...
    @property
    def gap_ms(self) -> float:
        """Gap between two tokens as advised."""
    @property
    def gap_now_ms(self) -> float | None:
        """With what there is; None if that cannot carry the load."""
    @property
    def gaps_ms(self) -> list[float | None]:
        """For each number of prefillers from 0 on; None where the load would not be carried."""
    @property
    def step_ms(self) -> float:
        """A decode step without turns."""
    @property
    def step_ms_per_turn(self) -> float:
        """More for each turn in it."""
    @property
    def prompt_workers(self) -> float:
        """Workers' time that prompts take."""
    @property
    def movable_workers(self) -> float:
        """Of it, what prefillers could take."""
    @property
    def tokens_per_s(self) -> float:
        """Tokens generated."""
    @property
    def held_workers(self) -> float:
        """Workers' worth of KV that conversations hold."""
    @property
    def text(self) -> str:
        """All of it in words."""

@final
class Snapshot:
    """The router at one moment."""

    @property
    def workers(self) -> list[WorkerView]:
        """The live ones in the order in which they joined, then the latest lost ones."""
    @property
    def conversations(self) -> int: ...
    @property
    def waiting(self) -> int:
        """Turns in line for a decoder."""
    @property
    def waiting_tail(self) -> int:
        """Other turns that wait: for room on their decoder, or for their conversation to be handed over."""
    @property
    def recomputed_share(self) -> float | None:
        """Share of the prompt tokens computed in the last two minutes that an earlier turn had computed."""
    @property
    def advice(self) -> Advice | None:
        """How many workers should only compute prompts; None until enough was measured."""
    @property
    def prefillers(self) -> int:
        """Workers that only compute prompts: prefillers, and those that the policy holds back for it."""
    @property
    def roles(self) -> Literal["advise", "auto"]:
        """Who changes that: the operator, who is advised, or the router."""
    @property
    def policy(self) -> str: ...
    @property
    def counters(self) -> dict[str, int]:
        """Totals since the start, by event."""

# ----------------------------------------------------------------------------------------------- the dispatcher

@final
class Dispatcher:
    """What to send to whom for one OpenAI request, when to retry, what to tell the client: no sockets, no waiting.

    Doors drive it: they move bytes between the client, the workers and a `Dispatch`. All requests of an app share one
    dispatcher. Conversations are the router's: the same id and tenant mean the same conversation to both.

    Options:
        connector: how KV is handed over: "nixl", "mooncake", "example" or "none".
        shape: a way of one's own instead: what is added to the prefill request and to the decode request, as JSON objects in
            which "{transfer_id}", "{bootstrap_addr}" and "{engine_id}" are filled in. Empty: nothing is added. None for
            the second: what the prefiller's answer says. The third is added for `retain`.
        retain: mark decode requests without a handoff so that the engine keeps their KV when they are done; only connectors that
            say how (nixl) take it.
        peers: for "mooncake": for each prefiller's URL, the address of its bootstrap server and its engine id.
        max_body_bytes: larger requests are refused with 413. max_answer_bytes: larger answers of workers are an error.
        max_depth: deepest nesting of a request body. max_messages: most messages in one that names no conversation.
        conversation_headers: request headers that may name the conversation, first match wins.
        retries: most times that one request is sent again after a worker failed.
        queue_timeout_s: longest wait in line; by default the router's.
        prefill_timeout_s: longest prefill. answer_timeout_s: longest answer that is not streamed.
        first_byte_timeout_s: longest silence before a stream begins; idle_timeout_s: and between two pieces of it.
        connect_timeout_s: longest connection attempt.
        lease_s: age at which handoff parameters are not sent any more; below the engine's own lease.
        forward_authorization: pass the client's Authorization header on to workers. worker_key: send this one instead.
        fingerprint: recognise conversations that nobody named by their message history.

    Raises ConfigError, naming the option and the accepted range.
    """

    def __new__(
        cls,
        router: Router,
        *,
        connector: Literal["nixl", "mooncake", "example", "none"] = "nixl",
        shape: tuple[str, str | None, str | None] | None = None,
        retain: bool = False,
        peers: Mapping[str, tuple[str, str]] | None = None,
        max_body_bytes: int = 33_554_432,
        max_answer_bytes: int = 67_108_864,
        max_depth: int = 512,
        max_messages: int = 65_536,
        max_conversation_id_bytes: int = 256,
        conversation_headers: Sequence[str] = ("x-conversation-id", "x-session-id"),
        retries: int = 2,
        queue_timeout_s: float | None = None,
        prefill_timeout_s: float = 120.0,
        first_byte_timeout_s: float = 120.0,
        answer_timeout_s: float = 600.0,
        idle_timeout_s: float = 60.0,
        connect_timeout_s: float = 2.0,
        lease_s: float = 25.0,
        forward_authorization: bool = False,
        worker_key: str | None = None,
        fingerprint: bool = True,
    ) -> Self: ...
    def open(self, path: str, headers: _Headers, body: bytes, /) -> Dispatch:
        """A request that came to `path` (`/v1/chat/completions` or `/v1/completions`); ValueError for others.

        Header names are in lower case, as ASGI has them. Nothing is decided before `Dispatch.start`.
        """
    def conversation(self, conversation: str, headers: _Headers, /) -> ConversationView | None:
        """The conversation of the caller that sent `headers`, by the id it uses or by its key (`ConversationView.key`)."""
    def key_of(self, conversation: str, headers: _Headers, /) -> str:
        """The key of what the caller that sent `headers` calls `conversation`, in the log too, whether there is such a conversation now or not."""
    def close_conversation(self, conversation: str, headers: _Headers, /) -> bool:
        """Like `Router.close`, for the caller that sent `headers`."""
    def set_models(self, models: Sequence[str], /) -> None:
        """Refuse requests for other models with 404; an empty list lets every name pass, as at the start."""
    @property
    def counters(self) -> dict[str, int]:
        """What was done beyond the plain way (retries, refusals, cut streams), counted since the start."""

@final
class Dispatch:
    """One client request as a state machine: each call says what happened and returns what to do next.

        action = dispatch.start()
        Wait        await dispatch.wait(loop), then admitted()
        Call        send it, read the whole answer, then answered(); or failed()
        Stream      send it, read the head, then head(); or failed()
        Listen      read the next piece (the client is told nothing yet), then heard(), with b"" at the end; or failed()
        Relay       begin the client's answer with this head and `first`; then chunk() for each piece until end() or failed()
        Collect     read the body up to `limit` bytes, then answered(); or failed()
        Reply       answer the client; done
        Finish      write `data` (maybe empty) to the client and end; done

    `client_gone` may be called at any moment; so may dropping the object, which fails the turn.
    One thread at a time: a call that overlaps another raises RuntimeError.
    """

    def start(self) -> _Action: ...
    def wait(self, loop: asyncio.AbstractEventLoop, /) -> asyncio.Future[None]:
        """A future of `loop` that is done when `admitted` is to be called: a place was granted, or time is up."""
    def admitted(self) -> _Action: ...
    def answered(self, status: int, headers: _Headers, body: bytes, /) -> _Action: ...
    def head(self, status: int, headers: _Headers, /) -> _Action: ...
    def heard(self, data: bytes, /) -> _Action:
        """A piece of the stream that is listened to; `b""` at its end."""
    def chunk(self, data: bytes, /) -> bytes:
        """What to write to the client for a piece of the worker's stream; may be empty, may be `data` itself."""
    def end(self) -> bytes:
        """The worker's stream has ended: what is still to be written. Settles the turn."""
    def failed(self, kind: _Failure, /) -> _Action: ...
    @property
    def conversation(self) -> str | None:
        """The key of the conversation as its caller is told it, once `start` has read the request."""
    @property
    def reason(self) -> str | None:
        """Why the turn runs where it runs, once its answer has begun."""
    @property
    def over(self) -> bool:
        """Whether nothing will follow."""
    def client_gone(self) -> None:
        """The client went away: the turn is settled; the driver aborts what it has under way upstream."""

@final
class Upstream:
    """One POST to a worker."""

    @property
    def worker(self) -> int: ...
    @property
    def worker_name(self) -> str: ...
    @property
    def url(self) -> str:
        """The full URL."""
    @property
    def headers(self) -> _Headers: ...
    @property
    def body(self) -> bytes: ...
    @property
    def connect_timeout_s(self) -> float: ...
    @property
    def first_byte_timeout_s(self) -> float: ...
    @property
    def idle_timeout_s(self) -> float: ...
    @property
    def max_answer_bytes(self) -> int:
        """The largest answer to a `Call`."""
    @property
    def phase(self) -> Literal["prefill", "decode"]: ...

@final
class Wait:
    """Wait for a place in line."""

    __match_args__: Final = ("timeout_s",)
    @property
    def timeout_s(self) -> float: ...

@final
class Call:
    """Send a request and read the whole answer."""

    __match_args__: Final = ("upstream",)
    @property
    def upstream(self) -> Upstream: ...

@final
class Stream:
    """Send a request and read the head of the answer."""

    __match_args__: Final = ("upstream",)
    @property
    def upstream(self) -> Upstream: ...

@final
class Listen:
    """Read the next piece of the stream and pass it to `heard`; the client is told nothing yet."""

@final
class Relay:
    """Begin the client's answer with this head and `first`; the rest of the worker's stream follows."""

    __match_args__: Final = ("status", "headers", "first")
    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> _Headers: ...
    @property
    def first(self) -> bytes: ...

@final
class Collect:
    """Read the body of the answer that just began, at most `limit` bytes, and pass it to `answered`."""

    __match_args__: Final = ("limit",)
    @property
    def limit(self) -> int: ...

@final
class Reply:
    """Answer the client."""

    __match_args__: Final = ("status", "headers", "body")
    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> _Headers: ...
    @property
    def body(self) -> bytes: ...

@final
class Finish:
    """Write the last bytes of a stream and end it."""

    __match_args__: Final = ("data",)
    @property
    def data(self) -> bytes: ...

@final
class NativeDoor:
    """Serves turns over HTTP in threads of its own, without Python; passes every other request on to a Unix socket.

    It listens from the moment it is made and drives the same dispatcher as any other door. The router must run on the
    machine's clock. Raises ConfigError, or OSError if the address cannot be had.

    Options:
        host, port: where to listen; port 0 takes a free one.
        control: path of the Unix socket on which the control plane serves HTTP.
        tls: files of a certificate chain and its key, both PEM: it speaks TLS.
        worker_ca: PEM file of whom to trust behind `https://` workers; None trusts whom this machine does.
        max_connections: connections of clients at once; 0 for no bound. Those above it wait to be accepted.
        threads: threads that move bytes; 0 takes one for each processor core.
        body_timeout_s: longest time for a request's head to arrive, and then for its body.
        client_stall_timeout_s: a client that takes nothing for so long is taken to be gone.
        keep_alive_s: longest idle time of a client's connection between two requests.
        verbose: whether `lines` tells more than warnings.
    """

    def __new__(
        cls,
        dispatcher: Dispatcher,
        *,
        host: str,
        port: int,
        control: str,
        tls: tuple[str | PathLike[str], str | PathLike[str]] | None = None,
        worker_ca: str | PathLike[str] | None = None,
        max_connections: int = 0,
        threads: int = 0,
        body_timeout_s: float = 60.0,
        client_stall_timeout_s: float = 120.0,
        keep_alive_s: float = 75.0,
        verbose: bool = True,
    ) -> Self: ...
    @property
    def host(self) -> str:
        """The address it listens on."""
    @property
    def port(self) -> int:
        """The port it listens on."""
    def start(self) -> None:
        """Begin to serve. Once only; later calls do nothing."""
    def refuse(self) -> None:
        """Refuse new turns with 503 from now on; returns at once."""
    def drain(self, deadline_s: float, /) -> int:
        """Refuse new turns, wait at most `deadline_s` for those under way, then end them with an error.

        Returns how many had to be ended. Blocks, without the GIL.
        """
    def stop(self) -> None:
        """Close everything; what is under way is ended with an error. Blocks for two seconds at most, without the GIL."""
    @property
    def in_flight(self) -> int:
        """Requests being served, waiting ones included."""
    @property
    def requests(self) -> dict[tuple[str, int], int]:
        """Requests answered, by path and status (499: the client left)."""
    @property
    def client_gone(self) -> dict[str, int]:
        """Requests whose client left, by what was under way."""
    @property
    def upstream_failures(self) -> dict[_Failure, int]:
        """Exchanges with workers that broke, by kind."""
    @property
    def relayed_bytes(self) -> int:
        """Bytes of streams taken from workers."""
    def lines(
        self, timeout_s: float, /
    ) -> (
        list[tuple[Literal["info", "warning"], str] | tuple[str, int, _Headers, bytes | None, str | None]]
        | None
    ):
        """The next lines for the log, maybe none within `timeout_s`; None once stopped and all were given.

        A line is (level, text), or (path, status, headers, body, reason) for a turn that was answered, where the body is
        None for a stream and the reason is `Dispatch.reason`. Blocks, without the GIL; for one thread at a time.
        """

# ------------------------------------------------------------------------------------------------ the simulator

@final
class SimWorkload:
    """Conversations with their turns, in columns. Checked once; may be used in several runs at once.

    `arrival_s`, `turns` (how many), `prefix_id` and `prefix_tokens` have one entry for each conversation, the others one
    for each turn, conversation after conversation. `append` counts the new tokens of the prompt, at least one; `reuse` those
    of the earlier context that the prompt begins with (-1: all of it; less: the rest is void). `gap_s` is the tool time
    before a turn. `visible` turns answer the user (default: each last turn). `flip` turns are declared mispredicted. Bad
    entries raise ValueError with column, place and range.
    """

    def __new__(
        cls,
        *,
        arrival_s: Sequence[float],
        turns: Sequence[int],
        append: Sequence[int],
        output: Sequence[int],
        gap_s: Sequence[float],
        visible: Sequence[bool] | None = None,
        reuse: Sequence[int] | None = None,
        flip: Sequence[bool] | None = None,
        prefix_id: Sequence[int] | None = None,
        prefix_tokens: Sequence[int] | None = None,
    ) -> Self: ...
    @property
    def conversations(self) -> int:
        """How many there are."""
    @property
    def turns(self) -> int:
        """Turns of all conversations."""
    def __len__(self) -> int: ...

class _TurnColumns(TypedDict):
    """One entry for each turn, in order of completion; turns that never completed come last."""

    conversation: list[int]
    turn: list[int]
    prefiller: list[int]
    decoder: list[int]
    moved: list[bool]
    visible: list[bool]
    ready_s: list[float]
    admitted_s: list[float]
    prefill_start_s: list[float]
    prefill_end_s: list[float]
    transfer_end_s: list[float]
    first_token_s: list[float]
    last_token_s: list[float]
    gap_mean_s: list[float]
    gap_p95_s: list[float]
    gap_max_s: list[float]
    line_s: list[float]
    engine_queue_s: list[float]
    handoff_wait_s: list[float]
    slept_s: list[float]
    compute_s: list[float]
    transfer_s: list[float]
    prompt_tokens: list[int]
    output_tokens: list[int]
    cached_tokens: list[int]
    prefilled_tokens: list[int]
    recomputed_tokens: list[int]
    transferred_tokens: list[int]
    preemptions: list[int]

class _ConversationColumns(TypedDict):
    """One entry for each conversation, in the order of the workload."""

    arrival_s: list[float]
    admitted_s: list[float]
    done_s: list[float]
    ttfet_s: list[float]
    ttfet_tool_s: list[float]
    ttfet_network_s: list[float]
    ttfet_slept_s: list[float]
    ttfet_line_s: list[float]
    ttfet_engine_queue_s: list[float]
    ttfet_compute_s: list[float]
    ttfet_handoff_wait_s: list[float]
    ttfet_transfer_s: list[float]
    ttfet_decoder_queue_s: list[float]
    ttfet_decode_s: list[float]
    tool_s: list[float]
    turns_done: list[int]
    handoffs: list[int]
    moves: list[int]
    status: list[str]

class _EngineColumns(TypedDict):
    """One entry for each engine, in the order of the scenario: joules `_j` and seconds `_s` by phase, and counts."""

    name: list[str]
    role: list[str]
    prefill_j: list[float]
    mixed_j: list[float]
    decode_j: list[float]
    idle_j: list[float]
    parked_j: list[float]
    prefill_s: list[float]
    mixed_s: list[float]
    decode_s: list[float]
    idle_s: list[float]
    parked_s: list[float]
    window_joules: list[float]
    steps: list[int]
    prefill_tokens: list[int]
    generated_tokens: list[int]
    recomputed_tokens: list[int]
    evicted_tokens: list[int]
    loaded_tokens: list[int]
    preemptions: list[int]
    queue_peak: list[int]
    kv_blocks: list[int]

class _Counters(TypedDict):
    """Counts of the whole run."""

    events: int
    handoffs: int
    fetches: int
    moves: int
    abandoned_handoffs: int
    placed_local: int
    placed_handoff: int
    placed_afresh: int
    placed_moved: int
    waits_room: int
    waits_thrash: int
    waits_growth: int
    flips: int
    transferred_bytes: float
    link_busy_s: float

class _Diagnosis(TypedDict):
    """How a run ended; `stuck` says who waits for what, if nobody could go on."""

    outcome: Literal["finished", "deadlocked", "horizon"]
    finished: int
    refused: int
    unfinished: int
    unstable: bool
    backlog_slope_per_s: float
    backlog_mean: float
    stuck: list[str]

@final
class SimResult:
    """What one run left behind.

    Times are seconds of virtual time, NaN where a thing did not happen. Engines are numbered as in the scenario; -1: none.
    """

    def turns(self) -> _TurnColumns:
        """The turns, by column. Where the time to the first token went is in `line_s` to `transfer_s`; a gap is between tokens."""
    def conversations(self) -> _ConversationColumns:
        """The conversations, by column.

        `ttfet_s` counts from arrival to the first token of the first visible turn, tool time included, which is `tool_s`.
        What it was spent on is in `ttfet_tool_s` to `ttfet_decode_s`, which add up to it: tools; the way from the client;
        asleep for a flip's work; the router's line; the queue of the engine that computes a prompt (or the backlog that a
        flip sleeps for); computing, from a prompt's first chunk to its end, others' work beside it included, and again after
        a preemption; waits for room on the decoder and a free link; the link; KV on the decoder and in no step yet; steps
        that gave tokens.
        `status` is "finished", "unfinished", or the code of the router's refusal.
        """
    def engines(self) -> _EngineColumns:
        """The engines, by column. `window_joules` is NaN without an energy window."""
    def counters(self) -> _Counters:
        """Counts of the whole run."""
    def diagnosis(self) -> _Diagnosis:
        """What to know before believing the numbers.

        `unstable`: the backlog grew while conversations arrived, or the run did not finish; percentiles are transients.
        """
    @property
    def events(self) -> list[tuple[float, str]]:
        """What happened, seconds and words, if the scenario asked for events."""
    @property
    def policy(self) -> str:
        """The policy that the router ran."""
    @property
    def end_s(self) -> float:
        """When the run ended."""

def policies() -> list[tuple[PolicyName, _Prefillers, dict[str, str]]]:
    """Each policy: its name, what it makes of workers that only compute prompts, its options with what they take."""

def simulate(scenario: str, workload: SimWorkload, *, seed: int) -> SimResult:
    """Runs a scenario, a JSON document, over a workload; deterministic. Lets go of the GIL.

    Raises ConfigError with the path of the first key that is unknown, of the wrong type or out of range.
    """

_Action: TypeAlias = Wait | Call | Stream | Listen | Relay | Collect | Reply | Finish
_Failure: TypeAlias = Literal[
    "connect",
    "unreachable",
    "no_socket",
    "reset",
    "connect_timeout",
    "first_byte_timeout",
    "idle_timeout",
    "too_large",
    "protocol",
]
