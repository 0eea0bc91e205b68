"""Matrix products whose row results do not depend on the rows beside them.

Greedy text must be the same whether a prompt is computed in one piece or in several, alone or beside others, here or
on another worker. Libraries choose a kernel by the number of rows, and kernels round differently: on many CPUs products
of one to three rows take another path than larger ones. So the number of rows from which results agree to the last bit
is *measured* when the engine starts, and smaller products are padded up to it. Where no such number exists (most
GPUs), every product is cut into tiles of one fixed height instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from conserve_workers.tiny.model.matrix import Matrix

_CANDIDATES = (1, 2, 4, 8, 16)
_HEIGHTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 31, 48, 64, 96, 150, 256)
_LARGE = 8_000_000
_CPU_TILE = 16
_GPU_TILE = 64


@dataclass(frozen=True, slots=True)
class Rows:
    """How products are shaped so that a row's result depends on that row alone."""

    least: int
    """Inputs have at least this many rows, and a multiple of `tile` where that is set."""
    least_attention: int
    """The same for the queries of attention."""
    tile: int | None = None

    def padded(self, rows: int) -> int:
        """Rows that an input of `rows` rows is padded to."""
        rows = max(rows, self.least)
        return rows if self.tile is None else -(-rows // self.tile) * self.tile

    def product(self, values: Tensor, matrix: Matrix) -> Tensor:
        """The matrix's product with `values`, which is padded already."""
        if self.tile is None:
            return matrix(values)
        return torch.cat([matrix(tile) for tile in torch.split(values, self.tile)])


def measure(matrices: Sequence[Matrix], *, head_dim: int, key_tile: int) -> Rows:
    """Find the shape rule for these matrices on this machine; takes some tens of milliseconds."""
    if matrices[0].device.type != "cpu":
        return Rows(least=_GPU_TILE, least_attention=_CANDIDATES[-1], tile=_GPU_TILE)
    generator = torch.Generator().manual_seed(1)
    least = _first(lambda height: all(_agrees(matrix, height, generator) for matrix in matrices))
    least_attention = _first(lambda height: _attention_agrees(head_dim, key_tile, height, generator))
    if least is None or least_attention is None:
        return Rows(least=_CPU_TILE, least_attention=_CANDIDATES[-1], tile=_CPU_TILE)
    return Rows(least=least, least_attention=least_attention)


def _first(agrees: Callable[[int], bool]) -> int | None:
    return next((height for height in _CANDIDATES if agrees(height)), None)


def _agrees(matrix: Matrix, least: int, generator: torch.Generator) -> bool:
    """Whether a product of any tested height gives each row the bits that the tallest one gives it."""
    most = 17 if matrix.inputs * matrix.outputs > _LARGE else _HEIGHTS[-1]
    heights = [height for height in _HEIGHTS if least <= height <= most]
    tallest = torch.randn(heights[-1], matrix.inputs, generator=generator)
    reference = matrix(tallest)
    for height in heights[:-1]:
        for start in {0, (heights[-1] - height) // 2}:
            part = matrix(tallest[start : start + height])
            if not torch.equal(part, reference[start : start + height]):
                return False
    return True


def _attention_agrees(head_dim: int, key_tile: int, least: int, generator: torch.Generator) -> bool:
    """The same for the two products of attention, in the tall shape of a prefill and the batched one of a decode."""
    tiles, most = 5, 192
    keys = torch.randn(tiles * key_tile, head_dim, generator=generator)
    queries = torch.randn(most, head_dim, generator=generator)
    scores = queries @ keys.t()
    weights = scores.softmax(-1).view(most, tiles, key_tile).transpose(0, 1)
    values = keys.view(tiles, key_tile, head_dim)
    mixed = torch.bmm(weights, values)
    for height in [height for height in _HEIGHTS if least <= height <= most]:
        few = queries[:height].expand(tiles, height, head_dim)
        batched = torch.bmm(few, values.transpose(1, 2))
        if not torch.equal(batched, scores[:height].view(height, tiles, key_tile).transpose(0, 1)):
            return False
        if not torch.equal(torch.bmm(weights[:, :height].contiguous(), values), mixed[:, :height]):
            return False
    return True
