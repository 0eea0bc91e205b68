"""Which tokens are computed in the next step, and which blocks they use.

Promises: requests are admitted in order of arrival; a step computes at most `chunk_tokens` tokens, decodes before
prefills; when blocks run out the request admitted last gives up its blocks and starts again later, so the one that
ran longest always finishes; blocks of a finished request stay findable until they are needed.
Leaves to others: the tensors (`engine` does the copies, fetches and products that a step lists).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from conserve_workers.tiny.kv.blocks import BlockPool, root_key
from conserve_workers.tiny.request import Request


@dataclass(slots=True, eq=False)
class Job:
    """A request in the engine: its tokens so far and the blocks that hold their keys and values."""

    request: Request
    tokens: list[int]
    blocks: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    """Key of each block that is full and findable."""
    computed: int = 0
    """Leading tokens whose keys and values are in the blocks."""
    local_hit: int = 0
    fetched_tokens: int = 0
    started: bool = False
    """The first token was generated and the prompt counted."""
    wants_remote: bool = False

    @property
    def output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - len(self.request.prompt)


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens `start .. start + count` of one job."""

    job: Job
    start: int
    count: int

    @property
    def last(self) -> bool:
        """Whether the job's next token follows from this."""
        return self.start + self.count == len(self.job.tokens)


@dataclass(frozen=True, slots=True)
class Fetch:
    """Blocks of a job to fill from another worker, beginning with the prompt's block number `first`."""

    job: Job
    first: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Rows of a cached block to copy into a new one, before anything else of the step."""

    source: int
    target: int
    tokens: int


@dataclass(slots=True)
class Step:
    """What to do now, in this order: copies, fetches (in the background), work."""

    copies: list[Copy] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)


class Scheduler:
    """Waiting and running requests over one pool of blocks. One thread only."""

    def __init__(self, pool: BlockPool, *, max_num_seqs: int, chunk_tokens: int) -> None:
        if chunk_tokens < 1 or max_num_seqs < 1:
            raise ValueError("chunk_tokens and max_num_seqs must be positive")
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.chunk_tokens = max(chunk_tokens, max_num_seqs)
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.fetching: dict[str, Job] = {}
        self.preemptions = 0
        self.queried_tokens = 0
        self.hit_tokens = 0

    @property
    def busy(self) -> bool:
        """Whether a step could do something now; fetches end by themselves."""
        return bool(self.running or self.waiting)

    def submit(self, request: Request) -> Job:
        """Put a request at the end of the line."""
        job = Job(request, list(request.prompt), wants_remote=request.remote is not None)
        self.waiting.append(job)
        return job

    def step(self) -> Step:
        """Admit what fits and choose the next tokens."""
        step = Step()
        self._admit(step)
        budget = self.chunk_tokens
        planned: dict[int, Work] = {}
        # Decodes first: a long prompt must not stall the answers that are under way.
        for job in [*self._decoding(), *self._prefilling()]:
            count = min(len(job.tokens) - job.computed, budget)
            if count == 0 or job not in self.running:
                continue
            if not self._grow(job, job.computed + count, planned):
                continue
            planned[id(job)] = Work(job, job.computed, count)
            budget -= count
        step.work = list(planned.values())
        return step

    def done(self, work: Work) -> None:
        """The tokens were computed: make the blocks that became full findable."""
        job = work.job
        job.computed = work.start + work.count
        self._commit_full(job)

    def fetched(self, job: Job, *, tokens: int) -> None:
        """The prompt's blocks arrived; its last token is computed here, because the first answer token follows from it."""
        del self.fetching[job.request.id]
        job.wants_remote = False
        job.fetched_tokens = tokens
        job.computed = len(job.request.prompt) - 1
        self._commit_full(job)
        self.running.append(job)

    def not_fetched(self, job: Job, *, requeue: bool) -> None:
        """The blocks did not arrive: give ours back, and compute the prompt here if `requeue`."""
        del self.fetching[job.request.id]
        self._drop_blocks(job)
        if requeue:
            job.wants_remote = False
            self.waiting.appendleft(job)

    def finish(self, job: Job, *, keep: bool = False) -> list[int]:
        """Take a waiting or running job out. With `keep`, its blocks stay held and are returned."""
        if job in self.running:
            self.running.remove(job)
        elif job in self.waiting:
            self.waiting.remove(job)
        self._commit_tail(job)
        if keep:
            blocks, job.blocks = job.blocks, []
            return blocks
        self._drop_blocks(job)
        return []

    def _decoding(self) -> list[Job]:
        return [job for job in self.running if len(job.tokens) - job.computed == 1]

    def _prefilling(self) -> list[Job]:
        return [job for job in self.running if len(job.tokens) - job.computed > 1]

    def _admit(self, step: Step) -> None:
        while self.waiting and len(self.running) + len(self.fetching) < self.max_num_seqs:
            job = self.waiting[0]
            if not self._place(job, step):
                return
            self.waiting.popleft()
            if job.wants_remote:
                self.fetching[job.request.id] = job
            else:
                self.running.append(job)

    def _place(self, job: Job, step: Step) -> bool:
        """Give a job the cached blocks of its prefix, and new ones for the rest; all of them or none."""
        pool, tokens = self.pool, job.tokens
        match = pool.match(tokens, salt=job.request.salt, limit=len(tokens) - 1)
        pool.hold(match.blocks)
        wanted = -(-len(tokens) // pool.block_size) - len(match.blocks)
        fresh = pool.allocate(wanted)
        if fresh is None:
            pool.release(match.blocks)
            return False
        job.blocks = [*match.blocks, *fresh]
        job.keys = list(match.keys)
        resident = len(match.blocks) * pool.block_size
        if match.tail_block is not None and not job.wants_remote:
            step.copies.append(Copy(match.tail_block, fresh[0], match.tail_tokens))
            resident += match.tail_tokens
        if not job.started:
            self.queried_tokens += len(tokens)
            self.hit_tokens += resident
            job.local_hit = resident
        job.computed = resident
        if job.wants_remote:
            step.fetches.append(Fetch(job, len(match.blocks)))
        return True

    def _grow(self, job: Job, tokens: int, planned: dict[int, Work]) -> bool:
        """Hold enough blocks for `tokens` tokens, taking them from the youngest if need be."""
        missing = -(-tokens // self.pool.block_size) - len(job.blocks)
        if missing <= 0:
            return True
        while (fresh := self.pool.allocate(missing)) is None:
            victim = self.running[-1]
            self._preempt(victim)
            planned.pop(id(victim), None)
            if victim is job:
                return False
        job.blocks += fresh
        return True

    def _preempt(self, victim: Job) -> None:
        self.running.remove(victim)
        self._drop_blocks(victim)
        if not victim.started:
            victim.fetched_tokens = 0
        self.waiting.appendleft(victim)
        self.preemptions += 1

    def _commit_full(self, job: Job) -> None:
        size = self.pool.block_size
        while (len(job.keys) + 1) * size <= job.computed:
            at = len(job.keys)
            parent = job.keys[-1] if job.keys else root_key(job.request.salt)
            tokens: Sequence[int] = job.tokens[at * size : (at + 1) * size]
            job.keys.append(self.pool.commit(job.blocks[at], parent=parent, tokens=tokens))

    def _commit_tail(self, job: Job) -> None:
        size = self.pool.block_size
        start = len(job.keys) * size
        tail = job.tokens[start : job.computed]
        if tail and job.blocks:
            parent = job.keys[-1] if job.keys else root_key(job.request.salt)
            self.pool.commit(job.blocks[len(job.keys)], parent=parent, tokens=tail)

    def _drop_blocks(self, job: Job) -> None:
        self.pool.release(job.blocks)
        job.blocks = []
        job.keys = []
        job.computed = 0
