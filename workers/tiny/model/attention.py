"""Causal attention over paged keys and values, in an order of operations that depends only on absolute positions.

Keys are cut into tiles of `KEY_TILE` tokens at fixed positions. The maximum over all tiles is exact in any order, each
tile's sums have one shape, and tiles are added from the first to the last; a tile that a query cannot see adds zeros.
So a query gets the same bits whether it came in a chunk of a prefill or alone in a decode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from conserve_workers.tiny.kv.blocks import NULL_BLOCK

KEY_TILE = 128
"""Tokens in a tile; a multiple of every supported block size, and of the width of vector registers."""
_QUERY_BLOCK = 64
_TILES_AT_ONCE = 32
"""Tiles of all requests that one batched product covers; far larger temporary arrays cost more than they save."""
_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive new tokens of one request: rows `row .. row + count` of the batch, at positions `start ..`."""

    row: int
    count: int
    start: int
    blocks: Sequence[int]
    """The request's block table; it covers `start + count` tokens."""


@dataclass(frozen=True, slots=True)
class _Prefill:
    span: Span
    index: Tensor
    """Block numbers, padded to whole tiles."""
    masks: tuple[Tensor, ...]
    """For each block of queries, what it must not see of the keys up to its last tile: zeros and -inf."""


@dataclass(frozen=True, slots=True)
class _Decodes:
    rows: Tensor
    index: Tensor
    tiles: int
    mask: Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Indices and masks of one step, shared by all layers."""

    prefills: tuple[_Prefill, ...]
    decodes: tuple[_Decodes, ...]


def plan(spans: Sequence[Span], *, block_size: int, device: torch.device) -> AttentionPlan:
    """Prepare one step: long spans one by one, single tokens in groups of similar length."""
    prefills = tuple(_plan_prefill(span, block_size, device) for span in spans if span.count > 1)
    groups: dict[int, list[Span]] = {}
    for span in spans:
        if span.count == 1:
            groups.setdefault(_rounded(-(-(span.start + 1) // KEY_TILE)), []).append(span)
    decodes = tuple(
        _plan_decodes(group[first : first + size], tiles, block_size, device)
        for tiles, group in sorted(groups.items())
        for size in (max(1, _TILES_AT_ONCE // tiles),)
        for first in range(0, len(group), size)
    )
    return AttentionPlan(prefills, decodes)


def _rounded(tiles: int) -> int:
    """Tiles rounded up to a number with two leading bits, so that lengths nearby share a group."""
    step = max(1, 1 << max(0, tiles.bit_length() - 2))
    return -(-tiles // step) * step


def _padded_table(blocks: Sequence[int], tiles: int, block_size: int) -> list[int]:
    wanted = tiles * (KEY_TILE // block_size)
    return [*blocks[:wanted], *([NULL_BLOCK] * (wanted - len(blocks)))]


def _plan_prefill(span: Span, block_size: int, device: torch.device) -> _Prefill:
    tiles = -(-(span.start + span.count) // KEY_TILE)
    index = torch.tensor(_padded_table(span.blocks, tiles, block_size), dtype=torch.long, device=device)
    masks = []
    for first in range(0, span.count, _QUERY_BLOCK):
        positions = torch.arange(
            span.start + first, span.start + min(first + _QUERY_BLOCK, span.count), device=device
        )
        masks.append(_mask(positions, *_masked_range(span, first)))
    return _Prefill(span, index, tuple(masks))


def _masked_range(span: Span, first: int) -> tuple[int, int]:
    """Tiles `[a, b)` that a block of queries sees in part; before `a` it sees all, from `b` on nothing."""
    last = min(first + _QUERY_BLOCK, span.count) - 1
    return (span.start + first + 1) // KEY_TILE, (span.start + last) // KEY_TILE + 1


def _mask(positions: Tensor, first_tile: int, end_tile: int) -> Tensor:
    keys = torch.arange(first_tile * KEY_TILE, end_tile * KEY_TILE, device=positions.device)
    hidden = keys.unsqueeze(0) > positions.unsqueeze(1)
    return torch.zeros(hidden.shape, device=positions.device).masked_fill_(hidden, _NEVER)


def _plan_decodes(group: Sequence[Span], tiles: int, block_size: int, device: torch.device) -> _Decodes:
    table: list[int] = []
    for span in group:
        table += _padded_table(span.blocks, tiles, block_size)
    positions = torch.tensor([span.start for span in group], device=device)
    mask = _mask(positions, 0, tiles).view(1, len(group), tiles, 1, KEY_TILE)
    return _Decodes(
        rows=torch.tensor([span.row for span in group], device=device),
        index=torch.tensor(table, dtype=torch.long, device=device),
        tiles=tiles,
        mask=mask,
    )


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, out: Tensor, *, least_rows: int
) -> None:
    """Fill `out[row]` for every row of the plan.

    `queries` and `out` are `[row, kv head, queries per kv head, head dim]`, queries already scaled; `keys` and `values`
    are the layer's rows of the store.
    """
    for prefill in plan.prefills:
        _attend_prefill(queries, keys, values, prefill, out, least_rows)
    for decodes in plan.decodes:
        _attend_decodes(queries, keys, values, decodes, out, least_rows)


def _attend_prefill(
    queries: Tensor, keys: Tensor, values: Tensor, prefill: _Prefill, out: Tensor, least_rows: int
) -> None:
    span = prefill.span
    heads, group, dim = queries.shape[1:]
    wide_keys = keys.index_select(1, prefill.index).view(heads, -1, dim)
    wide_values = values.index_select(1, prefill.index).view(heads, -1, KEY_TILE, dim)
    for number, first in enumerate(range(0, span.count, _QUERY_BLOCK)):
        count = min(_QUERY_BLOCK, span.count - first)
        rows = slice(span.row + first, span.row + first + count)
        masked, tiles = _masked_range(span, first)
        for head in range(heads):
            block = queries[rows, head].reshape(count * group, dim)
            height = block.shape[0]
            if height < least_rows:
                block = torch.cat((block, block.new_zeros(least_rows - height, dim)))
            scores = block @ wide_keys[head, : tiles * KEY_TILE].t()
            scores[:height, masked * KEY_TILE :].view(count, group, -1).add_(
                prefill.masks[number].unsqueeze(1)
            )
            scores.sub_(scores.amax(-1, keepdim=True)).exp_()
            weights = scores.view(-1, tiles, KEY_TILE).transpose(0, 1)
            sums = weights.sum(-1)
            mixed = torch.bmm(weights, wide_values[head, :tiles])
            total, mixture = sums[0], mixed[0]
            for tile in range(1, tiles):
                total.add_(sums[tile])
                mixture.add_(mixed[tile])
            out[rows, head] = mixture.div_(total.unsqueeze(-1))[:height].view(count, group, dim)


def _attend_decodes(
    queries: Tensor, keys: Tensor, values: Tensor, decodes: _Decodes, out: Tensor, least_rows: int
) -> None:
    heads, group, dim = queries.shape[1:]
    count, tiles = decodes.rows.shape[0], decodes.tiles
    batch = heads * count * tiles
    tiled_keys = keys.index_select(1, decodes.index).view(batch, KEY_TILE, dim)
    tiled_values = values.index_select(1, decodes.index).view(batch, KEY_TILE, dim)
    block = queries[decodes.rows].transpose(0, 1)
    height = max(group, least_rows)
    if group < height:
        block = torch.cat((block, block.new_zeros(heads, count, height - group, dim)), dim=2)
    block = block.unsqueeze(2).expand(heads, count, tiles, height, dim).reshape(batch, height, dim)
    scores = torch.bmm(block, tiled_keys.transpose(1, 2)).view(heads, count, tiles, height, KEY_TILE)
    scores.add_(decodes.mask)
    scores.sub_(scores.amax((2, 4), keepdim=True)).exp_()
    sums = scores.sum(-1)
    mixed = torch.bmm(scores.view(batch, height, KEY_TILE), tiled_values).view(
        heads, count, tiles, height, dim
    )
    total, mixture = sums[:, :, 0], mixed[:, :, 0]
    for tile in range(1, tiles):
        total.add_(sums[:, :, tile])
        mixture.add_(mixed[:, :, tile])
    mixture.div_(total.unsqueeze(-1))
    out[decodes.rows] = mixture[:, :, :group].transpose(0, 1)
