"""Text to tokens and back: a Hugging Face `tokenizer.json`, or plain bytes for the random model."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from conserve_workers.tiny.errors import StartError

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Chat template for models that bring none."""


_WRITTEN = bytes([*range(0x20, 0x7F), 0x0A])
_BYTES = _WRITTEN + bytes(byte for byte in range(256) if byte not in _WRITTEN)
_TOKEN_OF = {byte: token for token, byte in enumerate(_BYTES)}


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    chat_template: str
    special: dict[str, str]
    """Named special tokens that a chat template may use, such as `bos_token`."""
    eos_tokens: frozenset[int]
    vocab: int

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokens of a text; special tokens written out in it are recognised."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of some tokens without the special ones; an incomplete character becomes U+FFFD."""
        ...


class ByteTokenizer:
    """One token for each byte; first those that the random model writes, then the other bytes, then ChatML's marks."""

    _MARKS = ("<|im_start|>", "<|im_end|>")
    WRITABLE = len(_WRITTEN)
    """Tokens below this are printable ASCII or a line feed."""
    END = 257
    """Token of `<|im_end|>`."""
    VOCAB = 258

    chat_template = CHATML

    def __init__(self) -> None:
        self.special: dict[str, str] = {"bos_token": "", "eos_token": self._MARKS[1]}
        self.eos_tokens = frozenset((self.END,))
        self.vocab = self.VOCAB

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:  # noqa: ARG002 - it adds none
        """Tokens of a text; ChatML's marks are recognised."""
        tokens: list[int] = []
        for piece in re.split(r"(<\|im_start\|>|<\|im_end\|>)", text):
            if piece in self._MARKS:
                tokens.append(256 + self._MARKS.index(piece))
            else:
                tokens += [_TOKEN_OF[byte] for byte in piece.encode("utf-8", "replace")]
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of some tokens without ChatML's marks; an incomplete character becomes U+FFFD."""
        return bytes(_BYTES[token] for token in tokens if token < 256).decode("utf-8", "replace")


class FolderTokenizer:
    """The tokenizer of a Hugging Face folder."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer as Backend

        path = folder / "tokenizer.json"
        try:
            self._backend: Any = Backend.from_file(str(path))
        except Exception as cause:  # the backend raises plain Exception
            raise StartError(f"cannot read {path}: {cause}") from cause
        config_path = folder / "tokenizer_config.json"
        config: dict[str, Any] = json.loads(config_path.read_text("utf-8")) if config_path.is_file() else {}
        template_path = folder / "chat_template.jinja"
        template = (
            template_path.read_text("utf-8") if template_path.is_file() else config.get("chat_template")
        )
        self.chat_template = template if isinstance(template, str) else CHATML
        self.special = {
            name: text
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            if (text := _token_text(config.get(name))) is not None
        }
        end = self._backend.token_to_id(self.special.get("eos_token", ""))
        self.eos_tokens = frozenset() if end is None else frozenset((int(end),))
        self.vocab = int(self._backend.get_vocab_size())

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokens of a text; special tokens written out in it are recognised."""
        clean = text.encode("utf-8", "replace").decode("utf-8")
        return list(self._backend.encode(clean, add_special_tokens=add_special_tokens).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of some tokens without the special ones; an incomplete character becomes U+FFFD."""
        return str(self._backend.decode(list(tokens), skip_special_tokens=True))


def _token_text(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
