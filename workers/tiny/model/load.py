"""From `--model` to something that computes and something that reads and writes text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from conserve_workers.tiny.errors import StartError
from conserve_workers.tiny.model.config import ModelConfig, read_config
from conserve_workers.tiny.model.llama import LlamaModel
from conserve_workers.tiny.model.random import random_config, random_tensors
from conserve_workers.tiny.model.smollm2 import smollm2_folder
from conserve_workers.tiny.model.tokenizer import ByteTokenizer, FolderTokenizer, Tokenizer
from conserve_workers.tiny.model.weights import build, read_tensors


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to compute."""

    model: LlamaModel
    config: ModelConfig
    tokenizer: Tokenizer
    eos_tokens: frozenset[int]
    max_model_len: int
    """Tokens of prompt and answer together; what was asked for, or less if the model or the KV cache is smaller."""


def load(name: str, *, device: str, max_model_len: int) -> Loaded:
    """Load `smollm2`, `random` or a local Hugging Face folder.

    Raises:
        StartError: the model cannot be found, read or computed, or the device does not exist.
    """
    target = _device(device)
    tokenizer: Tokenizer
    if name == "random":
        config = random_config()
        tensors = random_tensors(config)
        tokenizer = ByteTokenizer()
    else:
        folder = smollm2_folder() if name == "smollm2" else Path(name)
        if not folder.is_dir():
            raise StartError(f"--model {name}: neither 'smollm2', nor 'random', nor a local folder")
        config = read_config(folder)
        tensors = read_tensors(folder)
        tokenizer = FolderTokenizer(folder)
    limit = min(max_model_len, config.max_positions)
    weights = build(config, tensors, dtype=torch.float32, device=target)
    return Loaded(
        model=LlamaModel(config, weights, max_positions=limit),
        config=config,
        tokenizer=tokenizer,
        eos_tokens=frozenset(config.eos_tokens) | tokenizer.eos_tokens,
        max_model_len=limit,
    )


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise StartError("--device cuda: torch sees no GPU; use --device cpu")
    return torch.device(name)
