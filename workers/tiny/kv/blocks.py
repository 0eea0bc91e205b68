"""Accounting of KV blocks: references, prefix reuse, least-recently-used eviction.

Promises: a block with references is never evicted or handed out; a block found by `match` holds exactly the tokens
asked for, after exactly the prefix asked for, under the same salt; `free + used` is constant.
Leaves to others: the tensors (`store`), and when to match, allocate or release (`scheduler`).
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

NULL_BLOCK = 0
"""Block that pads tables and takes the writes of padding rows; never handed out."""


def root_key(salt: str) -> bytes:
    """Key of the empty prefix; prompts under different salts share no block."""
    return hashlib.blake2b(b"root\0" + salt.encode(), digest_size=16).digest()


def chain_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Key of the prefix that ends with `tokens` after the prefix `parent`."""
    return hashlib.blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Match:
    """The longest cached prefix of a prompt. Hold it with `BlockPool.hold` before anything else is allocated."""

    blocks: tuple[int, ...]
    """Full blocks that can be shared as they are."""
    keys: tuple[bytes, ...]
    """Key of the prefix up to and including each of those blocks."""
    tail_block: int | None
    """Block whose first `tail_tokens` rows continue the prefix; to be copied, not shared."""
    tail_tokens: int


@dataclass(slots=True)
class _Block:
    references: int = 0
    key: bytes | None = None
    parent: bytes | None = None
    tokens: tuple[int, ...] = ()


class BlockPool:
    """A fixed number of blocks of `block_size` tokens; block 0 is the null block and is not counted."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        if num_blocks < 2:
            raise ValueError(
                f"num_blocks is {num_blocks}; at least 2 are needed, one of them is the null block"
            )
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; it must be positive")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._blocks = [_Block() for _ in range(num_blocks)]
        self._free: OrderedDict[int, None] = OrderedDict((block, None) for block in range(1, num_blocks))
        self._by_key: dict[bytes, int] = {}
        self._children: dict[bytes, dict[int, None]] = {}
        self.evictions = 0

    @property
    def capacity(self) -> int:
        """Blocks that can be handed out in all."""
        return self.num_blocks - 1

    @property
    def free(self) -> int:
        """Blocks without references; cached ones among them are given up when they are needed."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks with at least one reference."""
        return self.capacity - self.free

    @property
    def cached(self) -> int:
        """Blocks, with or without references, whose content a later prompt can find."""
        return sum(1 for block in self._blocks if block.parent is not None)

    def references(self, block: int) -> int:
        """How many holders the block has."""
        return self._blocks[block].references

    def match(self, tokens: Sequence[int], *, salt: str, limit: int) -> Match:
        """Find the longest cached prefix of `tokens`, at most `limit` tokens long. Changes nothing."""
        blocks: list[int] = []
        keys: list[bytes] = []
        parent = root_key(salt)
        size = self.block_size
        start = 0
        while start + size <= limit:
            key = chain_key(parent, tokens[start : start + size])
            block = self._by_key.get(key)
            if block is None:
                break
            blocks.append(block)
            keys.append(key)
            parent = key
            start += size
        tail_block, tail_tokens = self._match_tail(parent, tokens[start : min(limit, start + size)])
        return Match(tuple(blocks), tuple(keys), tail_block, tail_tokens)

    def _match_tail(self, parent: bytes, wanted: Sequence[int]) -> tuple[int | None, int]:
        best: int | None = None
        best_tokens = 0
        for block in self._children.get(parent, ()):
            common = 0
            for have, want in zip(self._blocks[block].tokens, wanted, strict=False):
                if have != want:
                    break
                common += 1
            if common > best_tokens:
                best, best_tokens = block, common
        return best, best_tokens

    def hold(self, blocks: Sequence[int]) -> None:
        """Add one reference to each block."""
        for block in blocks:
            entry = self._blocks[block]
            if entry.references == 0:
                del self._free[block]
            entry.references += 1

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` blocks with one reference each, evicting the least recently used; None if they do not exist."""
        if count > len(self._free):
            return None
        taken: list[int] = []
        for _ in range(count):
            block, _none = self._free.popitem(last=False)
            if self._blocks[block].parent is not None:
                self.evictions += 1
                self._forget(block)
            self._blocks[block].references = 1
            taken.append(block)
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Take one reference from each block of a table; of those that become free, the last is evicted first."""
        for block in reversed(blocks):
            entry = self._blocks[block]
            if entry.references <= 0:
                raise RuntimeError(f"block {block} was released more often than it was held")
            entry.references -= 1
            if entry.references == 0:
                self._free[block] = None
                if entry.parent is None:
                    self._free.move_to_end(block, last=False)

    def commit(self, block: int, *, parent: bytes, tokens: Sequence[int]) -> bytes:
        """Make a block's content findable; returns the key of the prefix that ends with it.

        A full block is found by its key; a shorter one, the last of a finished request, only through its parent. When
        the same content is already cached elsewhere, that copy stays the one to be found.
        """
        size = self.block_size
        if not 0 < len(tokens) <= size:
            raise ValueError(f"a block holds 1 to {size} tokens, not {len(tokens)}")
        key = chain_key(parent, tokens)
        full = len(tokens) == size
        if self._blocks[block].parent is not None:
            if self._blocks[block].key == key:
                return key
            self._forget(block)
        if full and key in self._by_key:
            return key
        entry = self._blocks[block]
        entry.key = key if full else None
        entry.parent = parent
        entry.tokens = tuple(tokens)
        if full:
            self._by_key[key] = block
        self._children.setdefault(parent, {})[block] = None
        return key

    def clear(self) -> None:
        """Forget all cached content; references stay as they are."""
        for block in range(1, self.num_blocks):
            if self._blocks[block].parent is not None:
                self._forget(block)

    def _forget(self, block: int) -> None:
        entry = self._blocks[block]
        if entry.key is not None and self._by_key.get(entry.key) == block:
            del self._by_key[entry.key]
        if entry.parent is not None:
            siblings = self._children[entry.parent]
            del siblings[block]
            if not siblings:
                del self._children[entry.parent]
        entry.key = entry.parent = None
        entry.tokens = ()
