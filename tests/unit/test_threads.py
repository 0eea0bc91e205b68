"""Many threads on one router: pins hold, the books balance."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict

from conserve import Decoder, Overloaded, Prefiller, Router

THREADS = 8
TURNS = 1_500
CONVERSATIONS = 64


def test_pins_hold_and_books_balance_under_eight_threads() -> None:
    router = Router(
        [Prefiller("http://p0:8000"), Prefiller("http://p1:8000")],
        [Decoder(f"http://d{i}:8000", kv_blocks=2_000) for i in range(4)],
    )
    seen: list[defaultdict[int, set[str]]] = [defaultdict(set) for _ in range(THREADS)]
    outcomes: list[Counter[str]] = [Counter() for _ in range(THREADS)]
    errors: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def work(thread: int) -> None:
        rng = random.Random(thread)
        start.wait()
        try:
            for n in range(TURNS):
                conversation = rng.randrange(CONVERSATIONS)
                try:
                    with router.turn(f"task-{conversation}", prompt_tokens=rng.randrange(1, 1_000)) as turn:
                        turn.handed_over()
                        seen[thread][conversation].add(turn.route.decoder)
                        match n % 4:
                            case 0:
                                turn.fail("client_gone")
                            case 1:
                                turn.finish()
                            case 2:
                                turn.finish(output_tokens=rng.randrange(100))
                            case _:
                                pass
                        outcomes[thread]["begun"] += 1
                except Overloaded:
                    outcomes[thread]["overloaded"] += 1
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not errors
    total = sum(outcomes, Counter())
    assert total["begun"] + total["overloaded"] == THREADS * TURNS
    assert total["begun"] > THREADS * TURNS / 2, total
    for conversation in range(CONVERSATIONS):
        decoders = set().union(*(by_thread[conversation] for by_thread in seen))
        assert len(decoders) <= 1, f"task-{conversation} ran on {decoders}"
    router.check()
    for conversation in range(CONVERSATIONS):
        router.close(f"task-{conversation}")
    assert [w.booked_blocks for w in router.snapshot().workers if w.role == "decoder"] == [0, 0, 0, 0]
    router.check()
