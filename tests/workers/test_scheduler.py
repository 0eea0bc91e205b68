from __future__ import annotations

import itertools

from conserve_workers.tiny.kv.blocks import BlockPool
from conserve_workers.tiny.request import RemotePrefill, Request, Sampling
from conserve_workers.tiny.scheduler import Job, Scheduler, Step

SIZE = 4
_ids = itertools.count()


def make(blocks: int = 64, *, max_num_seqs: int = 8, chunk_tokens: int = 16) -> Scheduler:
    pool = BlockPool(num_blocks=blocks + 1, block_size=SIZE)
    return Scheduler(pool, max_num_seqs=max_num_seqs, chunk_tokens=chunk_tokens)


def request(tokens: int, *, first: int | None = None, remote: bool = False) -> Request:
    number = next(_ids)
    start = 1000 * number if first is None else first
    source = RemotePrefill("e", "r", "h", 1, tokens, 1) if remote else None
    return Request(str(number), tuple(range(start, start + tokens)), Sampling(), remote=source)


def compute(scheduler: Scheduler, step: Step) -> list[tuple[str, int, int]]:
    """Pretend to compute a step; a job whose tokens are all computed gets one more token."""
    for work in step.work:
        scheduler.done(work)
        if work.last:
            work.job.tokens.append(7)
    return [(work.job.request.id, work.start, work.count) for work in step.work]


def test_long_prompt_is_computed_in_chunks() -> None:
    scheduler = make(chunk_tokens=16)
    job = scheduler.submit(request(40))
    counts = [compute(scheduler, scheduler.step())[0][2] for _ in range(3)]
    assert counts == [16, 16, 8]
    assert job.output_tokens == 1


def test_decode_goes_before_a_long_prompt_and_shares_its_step() -> None:
    scheduler = make(chunk_tokens=16)
    short = scheduler.submit(request(3))
    compute(scheduler, scheduler.step())
    long = scheduler.submit(request(40))
    step = compute(scheduler, scheduler.step())
    assert step == [(short.request.id, 3, 1), (long.request.id, 0, 15)], (
        "16 tokens in a step, one of them the decode"
    )


def test_requests_are_admitted_in_order_up_to_the_limit() -> None:
    scheduler = make(max_num_seqs=2)
    jobs = [scheduler.submit(request(2)) for _ in range(3)]
    assert [row[0] for row in compute(scheduler, scheduler.step())] == [job.request.id for job in jobs[:2]]
    scheduler.finish(jobs[0])
    assert jobs[2].request.id in [row[0] for row in compute(scheduler, scheduler.step())]


def test_big_request_at_the_head_is_not_overtaken() -> None:
    scheduler = make(blocks=4)
    running = scheduler.submit(request(8))
    compute(scheduler, scheduler.step())
    big, small = scheduler.submit(request(12)), scheduler.submit(request(1))
    scheduler.step()
    assert list(scheduler.waiting) == [big, small], (
        "3 blocks are wanted and 2 free; the small one stays behind"
    )
    scheduler.finish(running)
    scheduler.step()
    assert scheduler.running == [big, small]


def test_second_turn_computes_only_what_is_new() -> None:
    scheduler = make()
    prompt = request(10, first=0)
    job = scheduler.submit(prompt)
    compute(scheduler, scheduler.step())
    scheduler.finish(job)  # 10 tokens have keys and values; the generated one has not
    turn = Request("turn", (*range(10), 7, 500, 501), Sampling())
    scheduler.submit(turn)
    step = scheduler.step()
    assert compute(scheduler, step) == [("turn", 10, 3)]
    assert [copy.tokens for copy in step.copies] == [2], (
        "8 tokens in shared blocks, 2 copied from the partial one"
    )


def test_whole_prompt_resident_still_computes_its_last_token() -> None:
    scheduler = make()
    job = scheduler.submit(request(8, first=0))
    compute(scheduler, scheduler.step())
    scheduler.finish(job)
    scheduler.submit(Request("again", tuple(range(8)), Sampling()))
    assert compute(scheduler, scheduler.step()) == [("again", 7, 1)]


def test_request_admitted_last_gives_up_its_blocks_and_finishes_later() -> None:
    scheduler = make(blocks=4)  # 16 tokens
    first, second = scheduler.submit(request(7)), scheduler.submit(request(7))
    for _ in range(3):
        compute(scheduler, scheduler.step())
    assert scheduler.preemptions == 1
    assert (scheduler.running, list(scheduler.waiting)) == ([first], [second])
    assert second.output_tokens == 2, "what it has generated is kept"
    scheduler.finish(first)
    step = scheduler.step()
    assert scheduler.running == [second]
    compute(scheduler, step)
    assert second.output_tokens == 3


def test_every_request_ends_under_constant_shortage() -> None:
    scheduler = make(blocks=6, chunk_tokens=8)
    jobs = [scheduler.submit(request(5)) for _ in range(6)]
    done: list[Job] = []
    for _ in range(1000):
        compute(scheduler, scheduler.step())
        for job in jobs:
            if job.output_tokens >= 15 and job not in done:
                scheduler.finish(job)
                done.append(job)
        if len(done) == len(jobs):
            break
    assert len(done) == 6
    assert scheduler.preemptions > 0, "6 requests of 20 tokens on 24 tokens of room"
    assert scheduler.pool.used == 0


def test_remote_request_waits_for_its_blocks_and_computes_one_token() -> None:
    scheduler = make()
    job = scheduler.submit(request(10, remote=True))
    step = scheduler.step()
    assert [(fetch.job, fetch.first) for fetch in step.fetches] == [(job, 0)]
    assert step.work == []
    scheduler.fetched(job, tokens=10)
    assert compute(scheduler, scheduler.step()) == [(job.request.id, 9, 1)]


def test_remote_request_fetches_only_what_is_not_resident() -> None:
    scheduler = make()
    local = scheduler.submit(request(9, first=0))
    compute(scheduler, scheduler.step())
    scheduler.finish(local)
    remote = RemotePrefill("e", "r", "h", 1, 12, 3)
    scheduler.submit(Request("remote", tuple(range(12)), Sampling(), remote=remote))
    assert [fetch.first for fetch in scheduler.step().fetches] == [2]


def test_failed_fetch_gives_blocks_back_or_computes_here() -> None:
    scheduler = make()
    lost, kept = scheduler.submit(request(10, remote=True)), scheduler.submit(request(10, remote=True))
    scheduler.step()
    scheduler.not_fetched(lost, requeue=False)
    scheduler.not_fetched(kept, requeue=True)
    assert scheduler.pool.used == 0
    assert compute(scheduler, scheduler.step()) == [(kept.request.id, 0, 10)]


def test_kept_blocks_stay_held_after_the_end() -> None:
    scheduler = make()
    job = scheduler.submit(request(10))
    compute(scheduler, scheduler.step())
    blocks = scheduler.finish(job, keep=True)
    assert len(blocks) == 3
    assert scheduler.pool.used == 3
    scheduler.pool.release(blocks)
    assert scheduler.pool.used == 0
