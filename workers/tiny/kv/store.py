"""The tensors behind the blocks: one array for all layers, keys and values, that other parts read by block number.

Layout `[layer, key or value, kv head, block, token in block, head dim]`: the tokens of one head lie together, so a
gather copies whole blocks and an attention product needs no transposition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch


class KvStore:
    """Storage of `num_blocks` blocks. Not synchronised: a block is written only by the request that owns it."""

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layers = layers
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.tensor = _zeros((layers, 2, kv_heads, num_blocks, block_size, head_dim), dtype, device)
        slots = self.tensor.view(layers, 2, kv_heads, num_blocks * block_size, head_dim)
        rows = self.tensor.view(layers, 2, kv_heads, num_blocks, block_size * head_dim)
        self.slots = [(slots[layer, 0], slots[layer, 1]) for layer in range(layers)]
        """For each layer, keys and values as `[kv head, slot, head dim]`; slot = block * block_size + offset."""
        self.rows = [(rows[layer, 0], rows[layer, 1]) for layer in range(layers)]
        """For each layer, keys and values as `[kv head, block, block_size * head dim]`."""

    @property
    def shape(self) -> list[int]:
        """Shape of one block: `[layer, 2, kv head, token, head dim]`; two workers can hand over only if theirs agree."""
        return [self.layers, 2, self.kv_heads, self.block_size, self.head_dim]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers, keys and values."""
        return self.layers * 2 * self.kv_heads * self.block_size * self.head_dim * self.tensor.element_size()

    def read(self, blocks: Sequence[int]) -> torch.Tensor:
        """Copy of the blocks on the CPU: `[layer, 2, kv head, len(blocks), block_size, head dim]`, contiguous."""
        index = torch.tensor(list(blocks), dtype=torch.long, device=self.tensor.device)
        return self.tensor.index_select(3, index).cpu()

    def write(self, blocks: Sequence[int], values: torch.Tensor) -> None:
        """Fill the blocks with what `read` returned, here or in another process."""
        index = torch.tensor(list(blocks), dtype=torch.long, device=self.tensor.device)
        self.tensor.index_copy_(3, index, values.to(self.tensor.device))

    def copy_rows(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` rows of a block into another block."""
        self.tensor[:, :, :, target, :tokens].copy_(self.tensor[:, :, :, source, :tokens])


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that take memory only where they are written, on a CPU; `torch.zeros` touches every page."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(size, dtype=np.uint8)).view(dtype).view(shape)
