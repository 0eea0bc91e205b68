"""A tiny model with seeded random weights and a byte tokenizer: needs no package, starts at once, and is fast.

It writes printable ASCII only, one byte per token, and never ends a text by itself, so what it wrote reads back as the
same tokens and a test decides how long an answer is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conserve_workers.tiny.model.config import ModelConfig
from conserve_workers.tiny.model.tokenizer import ByteTokenizer

_SEED = 20_26
_STD = 0.08


def random_config() -> ModelConfig:
    """Three layers, 128 wide; 1,536 bytes of keys and values per token."""
    return ModelConfig(
        layers=3,
        hidden=128,
        intermediate=256,
        heads=4,
        kv_heads=2,
        head_dim=32,
        vocab=ByteTokenizer.VOCAB,
        output_vocab=ByteTokenizer.WRITABLE,
        max_positions=32_768,
        rope_theta=10_000.0,
        norm_eps=1e-5,
        tied=False,
        head_norm=False,
        eos_tokens=(ByteTokenizer.END,),
    )


def random_tensors(config: ModelConfig) -> dict[str, Tensor]:
    """The same weights in every process, under the names of a Hugging Face Llama."""
    generator = torch.Generator().manual_seed(_SEED)

    def draw(rows: int, columns: int, std: float = _STD) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * std

    width = config.heads * config.head_dim
    kv_width = config.kv_heads * config.head_dim
    tensors = {"model.embed_tokens.weight": draw(config.vocab, config.hidden)}
    for number in range(config.layers):
        at = f"model.layers.{number}."
        tensors |= {
            at + "input_layernorm.weight": torch.ones(config.hidden),
            at + "post_attention_layernorm.weight": torch.ones(config.hidden),
            at + "self_attn.q_proj.weight": draw(width, config.hidden, 3 * _STD),
            at + "self_attn.k_proj.weight": draw(kv_width, config.hidden, 3 * _STD),
            at + "self_attn.v_proj.weight": draw(kv_width, config.hidden, 3 * _STD),
            at + "self_attn.o_proj.weight": draw(config.hidden, width, 3 * _STD),
            at + "mlp.gate_proj.weight": draw(config.intermediate, config.hidden),
            at + "mlp.up_proj.weight": draw(config.intermediate, config.hidden),
            at + "mlp.down_proj.weight": draw(
                config.hidden, config.intermediate, 1 / math.sqrt(config.intermediate)
            ),
        }
    tensors["model.norm.weight"] = torch.ones(config.hidden)
    tensors["lm_head.weight"] = draw(config.vocab, config.hidden)
    return tensors
