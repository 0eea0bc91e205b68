"""The forward pass: equal to `transformers`, and independent of how the work is cut, to the last bit."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from conserve_workers.tiny.errors import StartError
from conserve_workers.tiny.kv.store import KvStore
from conserve_workers.tiny.model.attention import Span
from conserve_workers.tiny.model.config import read_config
from conserve_workers.tiny.model.llama import LlamaModel
from conserve_workers.tiny.model.random import random_config, random_tensors
from conserve_workers.tiny.model.weights import build, read_tensors

BLOCK = 16
CPU = torch.device("cpu")
SHAPE: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class Runner:
    """Feeds one or more sequences to a model in the pieces that a test chooses."""

    def __init__(self, model: LlamaModel, *, sequences: int = 1, blocks: int = 64) -> None:
        self.model = model
        config = model.config
        self.store = KvStore(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            num_blocks=1 + sequences * blocks,
            block_size=BLOCK,
            dtype=torch.float32,
            device=CPU,
        )
        order = list(range(1, 1 + sequences * blocks))
        random.Random(7).shuffle(order)
        self.tables = [order[number * blocks : (number + 1) * blocks] for number in range(sequences)]
        self.lengths = [0] * sequences

    def step(self, *parts: tuple[int, Sequence[int]]) -> torch.Tensor:
        """Compute some tokens of some sequences at once; logits after each part."""
        tokens: list[int] = []
        spans, wanted = [], []
        for number, new in parts:
            spans.append(Span(len(tokens), len(new), self.lengths[number], self.tables[number]))
            tokens += new
            wanted.append(len(tokens) - 1)
            self.lengths[number] += len(new)
        return self.model.forward(tokens, spans, self.store, wanted=wanted)

    def keys_and_values(self, number: int) -> torch.Tensor:
        count = self.lengths[number]
        return self.store.read(self.tables[number]).flatten(3, 4)[:, :, :, :count]


@pytest.fixture(scope="module")
def small() -> LlamaModel:
    torch.set_num_threads(1)
    config = random_config()
    weights = build(config, random_tensors(config), dtype=torch.float32, device=CPU)
    return LlamaModel(config, weights, max_positions=1024)


def prompt(count: int, seed: int = 1, vocab: int = 199) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(vocab) for _ in range(count)]


@pytest.mark.parametrize(
    "cuts", [(1,) * 40, (7, 1, 130, 2, 64, 3), (256, 256), (150, 149), (63, 65, 1, 1, 128)]
)
def test_cutting_the_work_changes_no_bit(small: LlamaModel, cuts: tuple[int, ...]) -> None:
    tokens = prompt(sum(cuts))
    whole, cut = Runner(small), Runner(small)
    expected = whole.step((0, tokens))
    done = 0
    got = expected
    for count in cuts:
        got = cut.step((0, tokens[done : done + count]))
        done += count
    assert torch.equal(got, expected)
    assert torch.equal(cut.keys_and_values(0), whole.keys_and_values(0))


def test_company_changes_no_bit(small: LlamaModel) -> None:
    lengths = (5, 40, 127, 128, 129, 300, 301, 16)
    prompts = [prompt(length, seed) for seed, length in enumerate(lengths)]
    together = Runner(small, sequences=len(prompts))
    together.step(*[(number, tokens[:-1]) for number, tokens in enumerate(prompts)])
    batched = together.step(*[(number, tokens[-1:]) for number, tokens in enumerate(prompts)])
    for number, tokens in enumerate(prompts):
        alone = Runner(small)
        assert torch.equal(alone.step((0, tokens))[0], batched[number]), f"sequence of {len(tokens)} tokens"


def test_early_token_matters_late(small: LlamaModel) -> None:
    tokens = prompt(300)
    first, second = Runner(small), Runner(small)
    logits = first.step((0, tokens))
    changed = second.step((0, [tokens[0] ^ 1, *tokens[1:]]))
    assert not torch.equal(logits, changed), "or tests that compare texts could not see lost keys and values"


def _save(folder: Path, kind: str) -> Any:
    transformers: Any = pytest.importorskip("transformers")

    torch.manual_seed(5)
    extra: dict[str, Any] = {"tie_word_embeddings": kind == "llama"}
    if kind == "qwen3":
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SHAPE, **extra, head_dim=32))
    elif kind == "qwen2":
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SHAPE, **extra))
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.5)
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, **extra, rope_theta=50_000.0))
    model.eval().save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_greedy_text_equals_that_of_transformers(tmp_path: Path, kind: str) -> None:
    reference = _save(tmp_path, kind)
    config = read_config(tmp_path)
    model = LlamaModel(
        config, build(config, read_tensors(tmp_path), dtype=torch.float32, device=CPU), max_positions=1024
    )
    texts = set()
    for seed, length in enumerate((3, 33, 130, 290)):
        tokens = prompt(length, seed)
        expected = reference.generate(
            torch.tensor([tokens]), attention_mask=torch.ones(1, length), do_sample=False, max_new_tokens=24
        )[0, length:].tolist()
        runner = Runner(model)
        logits = runner.step((0, tokens))
        got = []
        for _ in range(24):
            got.append(int(logits[0].argmax()))
            logits = runner.step((0, got[-1:]))
        assert got == expected, f"prompt of {length} tokens"
        texts.add(tuple(got))
    assert len(texts) == 4, "four prompts, four texts; else the comparison shows little"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "'gpt2'"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "'yarn'"),
    ],
)
def test_model_that_would_be_computed_wrongly_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    good = {"model_type": "llama", **SHAPE}
    (tmp_path / "config.json").write_text(json.dumps({**good, **change}))
    with pytest.raises(StartError, match=message):
        read_config(tmp_path)


def test_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"config\.json"):
        read_config(tmp_path)
