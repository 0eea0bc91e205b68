"""Read a Hugging Face folder's safetensors into the forward pass's matrices."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from conserve_workers.tiny.errors import StartError
from conserve_workers.tiny.model.config import ModelConfig
from conserve_workers.tiny.model.llama import Layer, Weights
from conserve_workers.tiny.model.matrix import Matrix


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of `model.safetensors`, or of the parts that its index names; mapped, not copied.

    Raises:
        StartError: the folder has no safetensors, or one of them is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    tensors: dict[str, Tensor] = {}
    for name in names:
        try:
            tensors.update(load_file(folder / name))
        except (OSError, SafetensorError) as cause:
            raise StartError(f"cannot read {folder / name}: {cause}") from cause
    return tensors


def build(
    config: ModelConfig, tensors: dict[str, Tensor], *, dtype: torch.dtype, device: torch.device
) -> Weights:
    """Join the projections that share an input and move everything to `device`.

    Raises:
        StartError: a tensor is missing.
    """

    def take(name: str) -> Tensor:
        tensor = tensors.get(name)
        if tensor is None:
            raise StartError(
                f"the model has no tensor {name!r}; is it a complete {config.layers}-layer model?"
            )
        return tensor.to(dtype=dtype)

    def join(*names: str) -> Tensor:
        return torch.cat([take(name) for name in names]).to(device)

    layers = []
    for number in range(config.layers):
        at = f"model.layers.{number}."
        attention = at + "self_attn."
        projections = [attention + name for name in ("q_proj", "k_proj", "v_proj")]
        biases = [name + ".bias" for name in projections]
        norms = [attention + "q_norm.weight", attention + "k_norm.weight"]
        layers.append(
            Layer(
                norm=take(at + "input_layernorm.weight").to(device),
                qkv=Matrix(
                    join(*[name + ".weight" for name in projections]),
                    join(*biases) if biases[0] in tensors else None,
                ),
                query_norm=take(norms[0]).to(device) if config.head_norm else None,
                key_norm=take(norms[1]).to(device) if config.head_norm else None,
                output=Matrix(take(attention + "o_proj.weight").to(device)),
                mlp_norm=take(at + "post_attention_layernorm.weight").to(device),
                gate_up=Matrix(join(at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight")),
                down=Matrix(take(at + "mlp.down_proj.weight").to(device)),
            )
        )
    embedding = take("model.embed_tokens.weight").to(device)
    head = embedding if config.tied else take("lm_head.weight").to(device)
    return Weights(
        embedding, tuple(layers), take("model.norm.weight").to(device), Matrix(head[: config.output_vocab])
    )
