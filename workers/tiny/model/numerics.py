"""Matrix products whose row results do not depend on the rows beside them.

Greedy text must be the same whether a prompt is computed in one piece or in several, alone or beside others, here or
on another worker. BLAS libraries choose a kernel by the number of rows, and kernels round differently: on many CPUs
products of one to three rows take another path than larger ones. So the number of rows from which results agree to
the last bit is *measured* when the engine starts, and smaller products are padded up to it. Where no such number
exists (most GPUs), every product is cut into tiles of one fixed height instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_CANDIDATES = (1, 2, 4, 8, 16)
_HEIGHTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 31, 48, 64, 96, 150, 256)
_CPU_TILE = 16
_GPU_TILE = 64


@dataclass(frozen=True, slots=True)
class Rows:
    """How products are shaped so that a row's result depends on that row alone."""

    least: int
    """Inputs have at least this many rows, and a multiple of `tile` where that is set."""
    tile: int | None = None

    def padded(self, rows: int) -> int:
        """Rows that an input of `rows` rows is padded to."""
        rows = max(rows, self.least)
        return rows if self.tile is None else -(-rows // self.tile) * self.tile

    def linear(self, values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`values @ weight.T + bias`; `values` is padded already."""
        if self.tile is None:
            return functional.linear(values, weight, bias)
        return torch.cat([functional.linear(tile, weight, bias) for tile in torch.split(values, self.tile)])


def measure(weights: Sequence[Tensor], *, head_dim: int, key_tile: int) -> Rows:
    """Find the shape rule for these weights on this machine; takes some tens of milliseconds."""
    device = weights[0].device
    if device.type != "cpu":
        return Rows(least=_GPU_TILE, tile=_GPU_TILE)
    generator = torch.Generator().manual_seed(1)
    for least in _CANDIDATES:
        if all(_agrees(weight, least, generator) for weight in weights) and _attention_agrees(
            head_dim, key_tile, least, generator
        ):
            return Rows(least=least)
    return Rows(least=_CPU_TILE, tile=_CPU_TILE)


def _heights(least: int) -> list[int]:
    return [height for height in _HEIGHTS if height >= least]


def _agrees(weight: Tensor, least: int, generator: torch.Generator) -> bool:
    """Whether a product of any tested height gives each row the bits that the tallest one gives it."""
    heights = _heights(least)
    if weight.numel() > 8_000_000:
        heights = [height for height in heights if height <= 17]
    tallest = torch.randn(heights[-1], weight.shape[1], generator=generator, dtype=weight.dtype)
    reference = functional.linear(tallest, weight)
    for height in heights[:-1]:
        for start in {0, (heights[-1] - height) // 2}:
            part = functional.linear(tallest[start : start + height], weight)
            if not torch.equal(part, reference[start : start + height]):
                return False
    return True


def _attention_agrees(head_dim: int, key_tile: int, least: int, generator: torch.Generator) -> bool:
    """The same for the two products of attention, in the tall shape of a prefill and the batched one of a decode."""
    tiles = 5
    keys = torch.randn(tiles * key_tile, head_dim, generator=generator)
    queries = torch.randn(192, head_dim, generator=generator)
    scores = queries @ keys.t()
    weights = scores.softmax(-1).view(192, tiles, key_tile).transpose(0, 1)
    values = keys.view(tiles, key_tile, head_dim)
    mixed = torch.bmm(weights, values)
    for height in _heights(least):
        if height > 192:
            continue
        few = queries[:height].expand(tiles, height, head_dim)
        batched = torch.bmm(few, values.transpose(1, 2))
        if not torch.equal(batched, scores[:height].view(height, tiles, key_tile).transpose(0, 1)):
            return False
        if not torch.equal(torch.bmm(weights[:, :height].contiguous(), values), mixed[:, :height]):
            return False
    return True
