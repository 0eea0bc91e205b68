from __future__ import annotations

import pytest

from conserve_workers.tiny.model.tokenizer import ByteTokenizer
from conserve_workers.tiny.text import TextStream

TOKENIZER = ByteTokenizer()


def pieces(text: str, *, stop: tuple[str, ...] = (), prompt: str = "") -> tuple[list[str], TextStream]:
    """Feed a text byte by byte, as the random model would write it."""
    stream = TextStream(TOKENIZER, TOKENIZER.encode(prompt, add_special_tokens=False), stop)
    out: list[str] = []
    for token in TOKENIZER.encode(text, add_special_tokens=False):
        out.append(stream.feed(token))
        if stream.stopped_by is not None:
            break
    out.append(stream.finish())
    return out, stream


def test_every_byte_survives_the_tokenizer() -> None:
    text = "".join(map(chr, range(1, 0x250))) + "日本語 🙂<|im_start|>user\n<|im_end|>"
    tokens = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.decode(tokens) == text.replace("<|im_start|>", "").replace("<|im_end|>", "")
    assert max(tokens) < TOKENIZER.VOCAB


def test_character_split_across_tokens_comes_whole() -> None:
    out, _stream = pieces("a🙂b")
    assert out == ["a", "", "", "", "🙂", "b", ""], (
        "four bytes make one character; none of them is shown before the last"
    )


def test_answer_that_ends_inside_a_character_shows_a_replacement_mark() -> None:
    stream = TextStream(TOKENIZER, [], ())
    shown = "".join(stream.feed(token) for token in TOKENIZER.encode("é", add_special_tokens=False)[:1])
    assert shown + stream.finish() == "\ufffd"


def test_text_starts_cleanly_after_any_prompt() -> None:
    assert "".join(pieces("héllo", prompt="日本")[0]) == "héllo"


@pytest.mark.parametrize(
    ("text", "stop", "shown", "by"),
    [
        ("one STOP two", ("STOP",), "one ", "STOP"),
        ("one STOP two", ("S", "STOP"), "one ", "S"),
        ("abcabd", ("abd",), "abc", "abd"),
        ("aaab", ("aab",), "a", "aab"),
        ("xyz", ("yz", "z"), "x", "yz"),
        ("naïve", ("ï",), "na", "ï"),
        ("never", ("STOP",), "never", None),
        ("end ST", ("STOP",), "end ST", None),
    ],
)
def test_stop_string_ends_the_text_before_it(
    text: str, stop: tuple[str, ...], shown: str, by: str | None
) -> None:
    out, stream = pieces(text, stop=stop)
    assert ("".join(out), stream.stopped_by) == (shown, by)


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    out, _stream = pieces("ab STx", stop=("STOP",))
    assert out == ["a", "b", " ", "", "", "STx", ""]


def test_stop_string_is_let_through_while_the_answer_is_too_short() -> None:
    stream = TextStream(TOKENIZER, [], ("b",))
    tokens = TOKENIZER.encode("abab", add_special_tokens=False)
    shown = "".join(stream.feed(token, check_stop=number >= 2) for number, token in enumerate(tokens))
    assert (shown + stream.finish(), stream.stopped_by) == ("aba", "b")
