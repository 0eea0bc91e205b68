from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conserve_workers.tiny.kv.blocks import BlockPool, root_key

SIZE = 4


def fill(pool: BlockPool, tokens: list[int], *, salt: str = "") -> list[int]:
    """Hold blocks for a prompt and make them findable, the last one in part."""
    blocks = pool.allocate(-(-len(tokens) // SIZE))
    assert blocks is not None
    parent = root_key(salt)
    for number, block in enumerate(blocks):
        parent = pool.commit(block, parent=parent, tokens=tokens[number * SIZE : (number + 1) * SIZE])
    return blocks


def found(pool: BlockPool, tokens: list[int], *, salt: str = "") -> int:
    match = pool.match(tokens, salt=salt, limit=len(tokens))
    return len(match.blocks) * SIZE + match.tail_tokens


def test_null_block_is_never_handed_out() -> None:
    pool = BlockPool(num_blocks=5, block_size=SIZE)
    assert pool.allocate(4) == [1, 2, 3, 4]
    assert pool.allocate(1) is None


def test_allocation_takes_all_or_nothing() -> None:
    pool = BlockPool(num_blocks=5, block_size=SIZE)
    assert pool.allocate(5) is None
    assert pool.free == 4, "a refused allocation takes nothing"


def test_released_prefix_is_found_again_and_shared() -> None:
    pool = BlockPool(num_blocks=9, block_size=SIZE)
    tokens = list(range(10))
    blocks = fill(pool, tokens)
    pool.release(blocks)
    match = pool.match([*tokens, 99, 98], salt="", limit=11)
    assert match.blocks == tuple(blocks[:2])
    assert (match.tail_block, match.tail_tokens) == (blocks[2], 2), (
        "the last, partial block is found through its parent"
    )
    pool.hold(match.blocks)
    pool.hold(match.blocks)
    assert [pool.references(block) for block in match.blocks] == [2, 2]


def test_match_stays_below_its_limit() -> None:
    pool = BlockPool(num_blocks=9, block_size=SIZE)
    pool.release(fill(pool, list(range(8))))
    match = pool.match(list(range(8)), salt="", limit=7)
    assert len(match.blocks) * SIZE + match.tail_tokens == 7, (
        "the last token is left to compute: 4 in a block, 3 of the next"
    )


def test_prompt_that_leaves_a_cached_block_midway_reuses_its_front() -> None:
    pool = BlockPool(num_blocks=9, block_size=SIZE)
    pool.release(fill(pool, [1, 2, 3, 4, 5, 6, 7, 8]))
    assert found(pool, [1, 2, 3, 4, 5, 6, 70, 80]) == 6


@pytest.mark.parametrize("salt", ["a", "b"])
def test_salts_do_not_share(salt: str) -> None:
    pool = BlockPool(num_blocks=9, block_size=SIZE)
    pool.release(fill(pool, [1, 2, 3, 4], salt="other"))
    assert found(pool, [1, 2, 3, 4], salt=salt) == 0


def test_same_block_after_another_prefix_is_not_found() -> None:
    pool = BlockPool(num_blocks=9, block_size=SIZE)
    pool.release(fill(pool, [1, 2, 3, 4, 5, 6, 7, 8]))
    assert found(pool, [9, 9, 9, 9, 5, 6, 7, 8]) == 0


def test_tail_is_evicted_before_its_prefix_and_the_older_prompt_before_the_newer() -> None:
    pool = BlockPool(num_blocks=5, block_size=SIZE)
    old, new = list(range(8)), list(range(50, 58))
    pool.release(fill(pool, old))
    pool.release(fill(pool, new))
    pool.allocate(1)
    assert (found(pool, old), found(pool, new)) == (4, 8)
    pool.allocate(1)
    assert (found(pool, old), found(pool, new)) == (0, 8)
    pool.allocate(1)
    assert found(pool, new) == 4
    assert pool.evictions == 3


def test_use_makes_a_prefix_young() -> None:
    pool = BlockPool(num_blocks=4, block_size=SIZE)
    first, second = [1] * SIZE, [2] * SIZE
    pool.release(fill(pool, first))
    pool.release(fill(pool, second))
    used = pool.match(first, salt="", limit=SIZE).blocks
    pool.hold(used)
    pool.release(used)
    pool.allocate(2)  # one was never used, the other is the least recently used
    assert (found(pool, first), found(pool, second)) == (4, 0)


def test_block_without_content_goes_before_cached_ones() -> None:
    pool = BlockPool(num_blocks=3, block_size=SIZE)
    pool.release(fill(pool, [1, 2, 3, 4]))
    plain = pool.allocate(1)
    assert plain is not None
    pool.release(plain)
    pool.allocate(1)
    assert found(pool, [1, 2, 3, 4]) == 4


def test_held_block_survives_any_demand() -> None:
    pool = BlockPool(num_blocks=4, block_size=SIZE)
    held = fill(pool, [1, 2, 3, 4])
    rest = pool.allocate(2)
    assert rest is not None
    assert pool.allocate(1) is None
    assert pool.references(held[0]) == 1
    assert found(pool, [1, 2, 3, 4]) == 4


def test_content_cached_twice_is_found_once() -> None:
    pool = BlockPool(num_blocks=9, block_size=SIZE)
    first = fill(pool, [1, 2, 3, 4])
    second = fill(pool, [1, 2, 3, 4])
    assert pool.match([1, 2, 3, 4], salt="", limit=4).blocks == (first[0],)
    pool.release(second)
    pool.release(first)
    assert pool.free == 8


def test_release_without_hold_is_an_error() -> None:
    pool = BlockPool(num_blocks=3, block_size=SIZE)
    with pytest.raises(RuntimeError, match="more often"):
        pool.release([1])


class PoolMachine(RuleBasedStateMachine):
    """Against a naive model: what each holder holds, and what each block was last said to contain."""

    @initialize(blocks=st.integers(2, 12))
    def start(self, blocks: int) -> None:
        self.pool = BlockPool(num_blocks=blocks, block_size=SIZE)
        self.tables: list[list[int]] = []
        self.content: dict[int, tuple[int, ...]] = {}
        """For each block the prompt up to and including it, if it was committed and not handed out since."""

    # Few token values, so that prompts share prefixes often.
    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20))
    def serve(self, tokens: list[int]) -> None:
        match = self.pool.match(tokens, salt="", limit=len(tokens) - 1)
        for number, block in enumerate(match.blocks):
            assert self.content[block] == tuple(tokens[: (number + 1) * SIZE])
        if match.tail_block is not None:
            start = len(match.blocks) * SIZE
            end = start + match.tail_tokens
            assert self.content[match.tail_block][:end] == tuple(tokens[:end])
        self.pool.hold(match.blocks)
        fresh = self.pool.allocate(-(-len(tokens) // SIZE) - len(match.blocks))
        if fresh is None:
            self.pool.release(match.blocks)
            return
        for block in fresh:
            self.content.pop(block, None)
        table = [*match.blocks, *fresh]
        parent = match.keys[-1] if match.keys else root_key("")
        for number in range(len(match.blocks), len(table)):
            part = tokens[number * SIZE : (number + 1) * SIZE]
            parent = self.pool.commit(table[number], parent=parent, tokens=part)
            self.content[table[number]] = tuple(tokens[: (number + 1) * SIZE])
        self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table)

    @rule()
    def forget(self) -> None:
        self.pool.clear()
        assert self.pool.cached == 0

    @invariant()
    def every_block_is_free_or_held_and_counted_once(self) -> None:
        held: dict[int, int] = {}
        for table in self.tables:
            for block in table:
                held[block] = held.get(block, 0) + 1
        assert 0 not in held
        assert self.pool.used == len(held)
        assert self.pool.used + self.pool.free == self.pool.capacity
        assert all(self.pool.references(block) == count for block, count in held.items())


PoolMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestPool = PoolMachine.TestCase
