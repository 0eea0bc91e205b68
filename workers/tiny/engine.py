"""The engine: one thread that takes requests, computes steps and reports what came out.

Promises: every submitted request ends with exactly one output that has a finish reason, unless it was aborted by its
client; blocks are given back when a request ends, is aborted, or its lease is over.
Leaves to others: HTTP (`server`), which tokens come next (`scheduler`), the products (`model`).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from conserve_workers.tiny.counters import Counters
from conserve_workers.tiny.handoff.fetcher import Fetcher
from conserve_workers.tiny.handoff.leases import LeaseTable
from conserve_workers.tiny.handoff.params import describe
from conserve_workers.tiny.handoff.sender import Sender
from conserve_workers.tiny.inbox import Abort, Fetched, Message, Refused, Sent, Stop, Submit, TellIdle
from conserve_workers.tiny.kv.blocks import BlockPool
from conserve_workers.tiny.kv.store import KvStore
from conserve_workers.tiny.model.attention import Span
from conserve_workers.tiny.model.llama import Interrupted
from conserve_workers.tiny.model.load import Loaded
from conserve_workers.tiny.options import Options
from conserve_workers.tiny.request import FinishReason, Output, Request, Sampling
from conserve_workers.tiny.sampling import make_generator, sample
from conserve_workers.tiny.scheduler import Job, Scheduler, Step, Work
from conserve_workers.tiny.text import TextStream

logger = logging.getLogger(__name__)

Sink = Callable[[list[Output]], None]


@dataclass(slots=True)
class _Live:
    """A request under way and what its answer needs."""

    job: Job
    text: TextStream
    generator: torch.Generator | None
    aborted: bool = False
    told: int = 0
    """Generated tokens that outputs have told so far."""
    stop_reason: str | int | None = None


class Engine:
    """Computes requests on its own thread; `sink` is called from there, once for each step."""

    def __init__(self, loaded: Loaded, options: Options, sink: Sink) -> None:
        config = loaded.config
        self._loaded = loaded
        self._options = options
        self._sink = sink
        self.engine_id = uuid.uuid4().hex
        self.counters = Counters()
        self.pool = BlockPool(num_blocks=options.kv_blocks, block_size=options.block_size)
        self.store = KvStore(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            num_blocks=options.kv_blocks,
            block_size=options.block_size,
            dtype=torch.float32,
            device=loaded.model.device,
        )
        self.max_model_len = min(loaded.max_model_len, self.pool.capacity * options.block_size)
        """Tokens of prompt and answer together that fit the model and the KV cache."""
        self._scheduler = Scheduler(
            self.pool, max_num_seqs=options.max_num_seqs, chunk_tokens=options.chunk_tokens
        )
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._live: dict[str, _Live] = {}
        self._outputs: list[Output] = []
        self._leases = LeaseTable(lease_s=options.lease_s)
        self._sender = Sender(
            engine_id=self.engine_id,
            store=self.store,
            leases=self._leases,
            host=options.host,
            port=options.handoff_port,
            timeout_s=options.handoff_timeout_s,
            on_sent=lambda blocks, sent: self._inbox.put(Sent(blocks, sent)),
            on_refused=lambda: self._inbox.put(Refused()),
        )
        self._fetcher = Fetcher(
            store=self.store,
            timeout_s=options.handoff_timeout_s,
            on_end=lambda request_id, received, error: self._inbox.put(Fetched(request_id, received, error)),
        )
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._aborting: set[str] = set()
        """Requests whose abort is in the inbox."""
        self._stopping = False
        self._ended = False
        self._idle_waiters: list[threading.Event] = []
        self.failure: str | None = None
        """Why the thread died, if it did."""
        self._count()

    @property
    def handoff_port(self) -> int:
        """Port at which other workers fetch blocks."""
        return self._sender.port

    @property
    def exact(self) -> bool:
        """Whether a result depends on its own tokens alone, to the last bit; false where that takes fixed tiles."""
        return self._loaded.model.rows.tile is None

    @property
    def alive(self) -> bool:
        """Whether requests are being worked on."""
        return self._thread.is_alive() and self.failure is None

    def start(self) -> None:
        """Start working and accepting handoff connections."""
        self._sender.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop; requests under way end with reason `abort`."""
        self._inbox.put(Stop())
        self._thread.join(timeout=5)
        self._sender.close()
        self._fetcher.close()

    def submit(self, request: Request) -> None:
        """Queue a request; its outputs come through the sink."""
        self._inbox.put(Submit(request))
        if self._ended:
            self._refuse_rest()

    def abort(self, request_id: str) -> None:
        """Forget a request; no further output of it is sent. An unknown id is none of our business."""
        self._aborting.add(request_id)
        self._inbox.put(Abort(request_id))

    def wait_idle(self, *, timeout_s: float) -> bool:
        """Block until nothing is under way and no blocks wait to be fetched; false if that takes longer."""
        event = threading.Event()
        self._inbox.put(TellIdle(event))
        return event.wait(timeout_s) if self.alive else False

    def _run(self) -> None:
        torch.set_num_threads(self._options.threads)
        try:
            while not self._stopping:
                self._take_messages(wait=not self._scheduler.busy)
                self._expire()
                worked = self._work()
                self._flush()
                if not worked and self._scheduler.busy and not self._stopping:
                    # Everything waits for blocks that a fetch or a lease holds.
                    self._take_messages(wait=True)
        except Exception as error:
            logger.exception("the engine died")
            self.failure = f"the engine died: {error!r}"
        self._ended = True
        for live in self._live.values():
            self._end(live.job.request.id, live.job.output_tokens)
        self._live.clear()
        self._flush()
        self._refuse_rest()

    def _end(self, request_id: str, output_tokens: int) -> None:
        self._outputs.append(
            Output(
                request_id,
                finish_reason="error" if self.failure else "abort",
                output_tokens=output_tokens,
                error=self.failure or "the worker is shutting down",
            )
        )

    def _refuse_rest(self) -> None:
        """End what was submitted after the thread's last look, so that nobody waits for an answer."""
        with suppress(queue.Empty):
            while True:
                message = self._inbox.get_nowait()
                if isinstance(message, Submit):
                    self._end(message.request.id, 0)
        self._flush()

    def _take_messages(self, *, wait: bool) -> None:
        """Handle what has arrived; with `wait`, until something arrives or a lease is over."""
        if wait and self._inbox.empty():
            self._count()
            deadline_s = self._leases.next_deadline_s()
            timeout_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            try:
                self._handle(self._inbox.get(timeout=timeout_s))
            except queue.Empty:
                return
        while not self._inbox.empty():
            self._handle(self._inbox.get())

    def _handle(self, message: Message) -> None:
        match message:
            case Submit(request):
                self._live[request.id] = _Live(
                    self._scheduler.submit(request),
                    TextStream(self._loaded.tokenizer, request.prompt, request.sampling.stop),
                    make_generator(request.sampling),
                )
            case Abort(request_id):
                self._on_abort(request_id)
            case Fetched(request_id, received, error):
                self._on_fetched(request_id, received, error)
            case Sent(blocks, sent):
                self.pool.release(blocks)
                self.counters.handoffs_sent += 1
                self.counters.bytes_sent += sent
            case Refused():
                self.counters.handoffs_refused += 1
            case TellIdle(event):
                self._idle_waiters.append(event)
            case Stop():
                self._stopping = True
        self._count()

    def _on_abort(self, request_id: str) -> None:
        self._aborting.discard(request_id)
        live = self._live.get(request_id)
        if live is None:
            return
        if request_id in self._scheduler.fetching:
            # Its blocks are being written; they are given back when the fetch has ended.
            live.aborted = True
            self._fetcher.cancel(request_id)
            return
        self._scheduler.finish(live.job)
        self._forget(live, "abort")

    def _on_fetched(self, request_id: str, received: int, error: str | None) -> None:
        live = self._live[request_id]
        job = live.job
        self.counters.bytes_received += received
        if live.aborted:
            self._scheduler.not_fetched(job, requeue=False)
            self._forget(live, "abort")
        elif error is None:
            self.counters.handoffs_received += 1
            tokens = len(job.request.prompt) - job.local_hit if received else 0
            self._scheduler.fetched(job, tokens=tokens)
        else:
            self.counters.handoffs_failed += 1
            logger.warning("handoff of request %s failed: %s", request_id, error)
            requeue = self._options.kv_load_failure_policy == "recompute"
            self._scheduler.not_fetched(job, requeue=requeue)
            if not requeue:
                self._outputs.append(Output(request_id, finish_reason="error", error=error))
                self._forget(live, "error")

    def _expire(self) -> None:
        for blocks in self._leases.expire(now_s=time.monotonic()):
            self.pool.release(blocks)
            self.counters.handoffs_expired += 1

    def _work(self) -> bool:
        """Do one step; returns whether there was one."""
        step = self._scheduler.step()
        for copy in step.copies:
            self.store.copy_rows(copy.source, copy.target, copy.tokens)
        self._start_fetches(step)
        if not step.work:
            return bool(step.fetches)
        tokens: list[int] = []
        spans: list[Span] = []
        wanted: list[int] = []
        for work in step.work:
            spans.append(Span(len(tokens), work.count, work.start, work.job.blocks))
            tokens += work.job.tokens[work.start : work.start + work.count]
            if work.last:
                wanted.append(len(tokens) - 1)
        prefilling = frozenset(work.job.request.id for work in step.work if work.count > 1)
        try:
            logits = self._loaded.model.forward(
                tokens,
                spans,
                self.store,
                wanted=wanted,
                # A chunk of a long prompt takes seconds on a slow machine; a client that left should not hold it.
                unwanted=lambda: not prefilling.isdisjoint(self._aborting),
            )
        except Interrupted:
            return True
        ending = [work for work in step.work if work.last]
        chosen = sample(logits, [self._choice(work) for work in ending]) if ending else []
        for work in step.work:
            self._scheduler.done(work)
        for work, token in zip(ending, chosen, strict=True):
            self._on_token(self._live[work.job.request.id], token)
        self.counters.steps += 1
        self._count()
        return True

    def _start_fetches(self, step: Step) -> None:
        for fetch in step.fetches:
            request = fetch.job.request
            remote = request.remote
            if remote is None:
                raise RuntimeError(f"request {request.id} has nothing to fetch")
            needed = -(-(remote.tokens - 1) // self._options.block_size)
            blocks = fetch.job.blocks[fetch.first : needed]
            self._fetcher.start(request.id, remote, first=fetch.first if blocks else 0, blocks=blocks)

    def _choice(self, work: Work) -> tuple[Sampling, torch.Generator | None, frozenset[int]]:
        """How to choose the token that follows, and the tokens it must not be because the answer is still too short."""
        settings = work.job.request.sampling
        banned: frozenset[int] = frozenset()
        if work.job.output_tokens < settings.min_tokens:
            banned = self._loaded.eos_tokens | settings.stop_tokens
        return settings, self._live[work.job.request.id].generator, banned

    def _on_token(self, live: _Live, token: int) -> None:
        job = live.job
        settings = job.request.sampling
        job.tokens.append(token)
        self.counters.generation_tokens += 1
        if not job.started:
            job.started = True
            self.counters.count_prompt(job)
        text = ""
        reason: FinishReason | None = None
        if token in settings.stop_tokens:
            reason, live.stop_reason = "stop", token
        elif token in self._loaded.eos_tokens and not settings.ignore_eos:
            reason = "stop"
        else:
            text = live.text.feed(token, check_stop=job.output_tokens >= settings.min_tokens)
            if live.text.stopped_by is not None:
                reason, live.stop_reason = "stop", live.text.stopped_by
            elif job.output_tokens >= settings.max_tokens or len(job.tokens) >= self.max_model_len:
                reason = "length"
        if reason is not None:
            self._finish(live, reason, text + live.text.finish())
        elif text:
            self._outputs.append(self._output(live, text))

    def _finish(self, live: _Live, reason: FinishReason, text: str) -> None:
        job = live.job
        request = job.request
        params = None
        held = self._scheduler.finish(job, keep=request.hand_off)
        if request.hand_off:
            prompt = len(request.prompt)
            covering = -(-prompt // self._options.block_size)
            self.pool.release(held[covering:])
            kept = held[:covering]
            self._leases.grant(request.id, kept, tokens=prompt, now_s=time.monotonic())
            self.counters.handoffs_kept += 1
            params = describe(
                engine_id=self.engine_id,
                request_id=request.id,
                host=self._options.handoff_address,
                port=self._sender.port,
                blocks=kept,
                tokens=prompt,
            )
        self._outputs.append(
            replace(self._output(live, text), finish_reason=reason, kv_transfer_params=params)
        )
        self._forget(live, reason)

    def _output(self, live: _Live, text: str) -> Output:
        job = live.job
        told, live.told = live.told, job.output_tokens
        return Output(
            job.request.id,
            text,
            tuple(job.tokens[len(job.request.prompt) + told :]),
            stop_reason=live.stop_reason,
            output_tokens=job.output_tokens,
            cached_tokens=job.local_hit + job.fetched_tokens,
        )

    def _forget(self, live: _Live, reason: FinishReason) -> None:
        del self._live[live.job.request.id]
        self.counters.finished[reason] += 1

    def _count(self) -> None:
        leases = len(self._leases)
        self.counters.observe(self._scheduler, leases=leases)
        if self._idle_waiters and not self._live and not leases:
            for event in self._idle_waiters:
                event.set()
            self._idle_waiters.clear()

    def _flush(self) -> None:
        if self._outputs:
            outputs, self._outputs = self._outputs, []
            self._sink(outputs)
