"""Forward pass of Llama, Mistral, Qwen2 and Qwen3 models over a paged KV store.

Promises: the result for a token depends on the tokens before it and on nothing else, to the last bit (see `numerics`
and `attention` for how).
Leaves to others: which tokens, at which positions, in which blocks (`scheduler`), and what to do with logits
(`sampling`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from conserve_workers.tiny.kv.store import KvStore
from conserve_workers.tiny.model.attention import KEY_TILE, Span, attend, plan
from conserve_workers.tiny.model.config import ModelConfig
from conserve_workers.tiny.model.matrix import Matrix
from conserve_workers.tiny.model.numerics import Rows, measure


@dataclass(frozen=True, slots=True)
class Layer:
    """One block's matrices; projections that share an input are stored as one."""

    norm: Tensor
    qkv: Matrix
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Matrix
    mlp_norm: Tensor
    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True, slots=True)
class Weights:
    """All matrices of a model, on one device in one type."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Matrix


class Interrupted(Exception):  # noqa: N818 - nothing went wrong
    """A forward pass was given up because nobody wants its result any more."""


class LlamaModel:
    """Computes logits, and keys and values as it goes."""

    def __init__(self, config: ModelConfig, weights: Weights, *, max_positions: int) -> None:
        self.config = config
        self.weights = weights
        self.device = weights.embedding.device
        self.dtype = weights.embedding.dtype
        self._cos, self._sin = _rotation(config, max_positions, self.device, self.dtype)
        first = weights.layers[0]
        self.rows: Rows = measure(
            (first.qkv, first.output, first.gate_up, first.down, weights.head),
            head_dim=config.head_dim,
            key_tile=KEY_TILE,
        )

    @torch.inference_mode()
    def forward(
        self,
        tokens: Sequence[int],
        spans: Sequence[Span],
        store: KvStore,
        *,
        wanted: Sequence[int],
        unwanted: Callable[[], bool] | None = None,
    ) -> Tensor:
        """Compute the tokens of `spans`, write their keys and values, and return logits `[len(wanted), output vocab]`.

        `tokens` lists the new tokens of all spans in row order; `wanted` are the rows to compute logits for.

        Raises:
            Interrupted: `unwanted`, asked before each layer, said so. The same pass can be made again later.
        """
        config, rows = self.config, self.rows
        height = rows.padded(len(tokens))
        padding = height - len(tokens)
        positions: list[int] = []
        slots: list[int] = []
        for span in spans:
            for position in range(span.start, span.start + span.count):
                positions.append(position)
                slots.append(
                    span.blocks[position // store.block_size] * store.block_size + position % store.block_size
                )
        device = self.device
        place = torch.tensor(positions + [0] * padding, device=device)
        slot = torch.tensor(slots + [0] * padding, device=device)
        hidden = functional.embedding(
            torch.tensor([*tokens, *([0] * padding)], device=device), self.weights.embedding
        )
        cos, sin = self._cos[place].unsqueeze(1), self._sin[place].unsqueeze(1)
        attention = plan(spans, block_size=store.block_size, device=device)
        group = config.heads // config.kv_heads
        mixed = torch.zeros(
            (height, config.kv_heads, group, config.head_dim), device=device, dtype=self.dtype
        )
        scale = config.head_dim**-0.5
        for number, layer in enumerate(self.weights.layers):
            if unwanted is not None and unwanted():
                raise Interrupted
            normed = functional.rms_norm(hidden, (config.hidden,), layer.norm, config.norm_eps)
            projected = rows.product(normed, layer.qkv).view(height, -1, config.head_dim)
            queries, keys, values = torch.split(
                projected, [config.heads, config.kv_heads, config.kv_heads], dim=1
            )
            if layer.query_norm is not None and layer.key_norm is not None:
                queries = functional.rms_norm(queries, (config.head_dim,), layer.query_norm, config.norm_eps)
                keys = functional.rms_norm(keys, (config.head_dim,), layer.key_norm, config.norm_eps)
            queries = _rotate(queries, cos, sin).mul_(scale)
            key_slots, value_slots = store.slots[number]
            key_slots.index_copy_(1, slot, _rotate(keys, cos, sin).transpose(0, 1))
            value_slots.index_copy_(1, slot, values.transpose(0, 1))
            attend(
                queries.view(height, config.kv_heads, group, config.head_dim),
                *store.rows[number],
                attention,
                mixed,
                least_rows=rows.least_attention,
            )
            hidden = hidden + rows.product(mixed.view(height, -1), layer.output)
            normed = functional.rms_norm(hidden, (config.hidden,), layer.mlp_norm, config.norm_eps)
            gate, up = rows.product(normed, layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + rows.product(functional.silu(gate).mul_(up), layer.down)
        last = hidden[
            torch.tensor([*wanted, *([0] * (rows.padded(len(wanted)) - len(wanted)))], device=device)
        ]
        last = functional.rms_norm(last, (config.hidden,), self.weights.norm, config.norm_eps)
        return rows.product(last, self.weights.head)[: len(wanted)]


def _rotation(
    config: ModelConfig, max_positions: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    angles = torch.arange(max_positions).float().unsqueeze(1) * frequencies.unsqueeze(0)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def _rotate(values: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = values.chunk(2, dim=-1)
    return values * cos + torch.cat((-second, first), dim=-1) * sin
