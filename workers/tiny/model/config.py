"""Shape of a Llama-like causal model, read from a Hugging Face `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conserve_workers.tiny.errors import StartError

SUPPORTED_TYPES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the forward pass needs to know; sizes in elements."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    output_vocab: int
    """Rows of the output matrix; smaller than `vocab` when some tokens can be read but never written."""
    max_positions: int
    rope_theta: float
    norm_eps: float
    tied: bool
    head_norm: bool
    """Queries and keys are normalised head by head before the rotation (Qwen3)."""
    eos_tokens: tuple[int, ...]

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token in float32."""
        return self.layers * 2 * self.kv_heads * self.head_dim * 4


def read_config(folder: Path) -> ModelConfig:
    """Read `config.json` (and `generation_config.json`, for the tokens that end a text).

    Raises:
        StartError: the file is missing, or the model is of a kind that this engine does not compute exactly.
    """
    path = folder / "config.json"
    try:
        raw: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as cause:
        raise StartError(f"cannot read {path}: {cause}; --model wants a Hugging Face model folder") from cause
    kind = raw.get("model_type")
    if kind not in SUPPORTED_TYPES:
        raise StartError(f"{path} describes a {kind!r} model; supported are {', '.join(SUPPORTED_TYPES)}")
    if raw.get("hidden_act", "silu") != "silu":
        raise StartError(f"{path}: hidden_act is {raw['hidden_act']!r}; only 'silu' is supported")
    if raw.get("use_sliding_window") or (kind == "mistral" and raw.get("sliding_window")):
        raise StartError(f"{path}: sliding-window attention is not supported")
    heads = int(raw["num_attention_heads"])
    eos = _eos_tokens(raw)
    generation = folder / "generation_config.json"
    if generation.is_file():
        eos = eos | _eos_tokens(json.loads(generation.read_text("utf-8")))
    return ModelConfig(
        layers=int(raw["num_hidden_layers"]),
        hidden=int(raw["hidden_size"]),
        intermediate=int(raw["intermediate_size"]),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // heads),
        vocab=int(raw["vocab_size"]),
        output_vocab=int(raw["vocab_size"]),
        max_positions=int(raw.get("max_position_embeddings", 2048)),
        rope_theta=_rope_theta(raw, path),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        tied=bool(raw.get("tie_word_embeddings", False)),
        head_norm=kind == "qwen3",
        eos_tokens=tuple(sorted(eos)),
    )


def _eos_tokens(raw: Mapping[str, Any]) -> frozenset[int]:
    value = raw.get("eos_token_id")
    if value is None:
        return frozenset()
    return frozenset(value) if isinstance(value, list) else frozenset((int(value),))


def _rope_theta(raw: Mapping[str, Any], path: Path) -> float:
    """Base of the rotation; recent folders keep it in `rope_parameters`, older ones beside `rope_scaling`."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise StartError(f"{path}: rope type {kind!r} is not supported, only 'default'")
    return float(rope.get("rope_theta", raw.get("rope_theta", 10_000.0)))
