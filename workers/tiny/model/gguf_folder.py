"""Turn a Llama model in a GGUF file into a Hugging Face folder: float32 safetensors, tokenizer, chat template.

Read with the package `gguf` rather than through `transformers`: that way needs `accelerate`, takes seconds more, and
loses the rule that this tokenizer splits digits one by one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conserve_workers.tiny.errors import StartError

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader
    from numpy.typing import NDArray

_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3


def convert(source: Path, folder: Path) -> None:
    """Write `folder` from the GGUF file `source`.

    Raises:
        StartError: a package is missing, or the file holds another architecture or tokenizer.
    """
    try:
        from gguf import GGUFReader
    except ImportError as cause:
        raise StartError(
            "reading a GGUF file needs the package gguf; pip install 'conserve-router[engine]'"
        ) from cause
    reader = GGUFReader(source)
    fields: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
    wanted = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
    for name, value in wanted.items():
        if fields.get(name) != value:
            raise StartError(f"{source}: {name} is {fields.get(name)!r}; only {value!r} is supported")
    folder.mkdir(parents=True, exist_ok=True)
    names = _write_tensors(reader, fields, folder)
    _write_tokenizer(fields, folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": round(fields["llama.attention.layer_norm_rms_epsilon"], 9),
        "rope_theta": fields["llama.rope.freq_base"],
        "rope_parameters": {"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        "tie_word_embeddings": "lm_head.weight" not in names,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2), "utf-8")


def _write_tensors(reader: GGUFReader, fields: dict[str, Any], folder: Path) -> frozenset[str]:
    import numpy as np
    from gguf import dequantize
    from safetensors.numpy import save_file

    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    tensors: dict[str, Any] = {}
    for tensor in reader.tensors:
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if parts[2] in heads:
                values = _unpermuted(values, heads[parts[2]])
            name = f"model.layers.{parts[1]}.{_NAMES[parts[2]]}.weight"
        else:
            name = {
                "token_embd": "model.embed_tokens.weight",
                "output_norm": "model.norm.weight",
                "output": "lm_head.weight",
            }[parts[0]]
        tensors[name] = values
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return frozenset(tensors)


def _unpermuted(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undo GGUF's interleaving of the two halves that the rotation pairs."""
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns).copy()


def _write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    texts: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={text: token for token, text in enumerate(texts)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False)
            for text, kind in zip(texts, kinds, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"], "utf-8")
    special = {
        "bos_token": texts[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": texts[fields["tokenizer.ggml.eos_token_id"]],
        "unk_token": texts[fields["tokenizer.ggml.unknown_token_id"]],
        "pad_token": texts[fields["tokenizer.ggml.padding_token_id"]],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(special, indent=2), "utf-8")
