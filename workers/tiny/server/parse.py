"""A request's JSON to what the engine is asked; whatever would change the answer and is not supported is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conserve_workers.tiny.errors import RequestError
from conserve_workers.tiny.request import Sampling

_MOST_STOPS = 16


@dataclass(frozen=True, slots=True)
class Reply:
    """How the client wants its answer."""

    stream: bool
    include_usage: bool
    token_ids: bool = False
    """Name the tokens of prompt and answer too, as vLLM does for `return_token_ids`."""


def body(raw: bytes) -> dict[str, Any]:
    """The request body as an object.

    Raises:
        RequestError: it is not UTF-8, not JSON, too deep, or not an object.
    """
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as cause:
        raise RequestError(f"the body is not UTF-8: {cause.reason} at byte {cause.start}") from cause
    except RecursionError as cause:
        raise RequestError("the body is nested too deeply") from cause
    except ValueError as cause:
        raise RequestError(f"the body is not JSON: {cause}") from cause
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object")
    return value


def check_model(fields: Mapping[str, Any], served: str) -> None:
    """Refuse a request for another model.

    Raises:
        RequestError: 404 as OpenAI answers it, or 400 when the field is missing.
    """
    name = fields.get("model")
    if not isinstance(name, str):
        raise RequestError("model must be a string", param="model")
    if name != served:
        raise RequestError(
            f"the model {name!r} does not exist; this worker serves {served!r}",
            param="model",
            code="model_not_found",
            status=404,
        )


def refuse_unsupported(fields: Mapping[str, Any], *, chat: bool) -> None:
    """Refuse what would change the answer.

    Raises:
        RequestError: 400 with the field's name.
    """
    neutral: dict[str, tuple[Any, ...]] = {
        "n": (None, 1),
        "best_of": (None, 1),
        "logprobs": (None, False),
        "top_logprobs": (None, 0),
        "prompt_logprobs": (None, 0),
        "echo": (None, False),
        "suffix": (None, ""),
        "presence_penalty": (None, 0),
        "frequency_penalty": (None, 0),
        "repetition_penalty": (None, 1),
        "logit_bias": (None, {}),
        "use_beam_search": (None, False),
        "modalities": (None, ["text"]),
        "audio": (None,),
        "prompt_embeds": (None,),
        "guided_json": (None,),
        "guided_regex": (None,),
        "guided_choice": (None,),
        "guided_grammar": (None,),
        "structured_outputs": (None,),
        "functions": (None, []),
    }
    if chat:
        neutral |= {"tool_choice": (None, "none", "auto"), "response_format": (None, {"type": "text"})}
        neutral |= {"continue_final_message": (None, False), "add_generation_prompt": (None, True)}
    for name, values in neutral.items():
        value = fields.get(name)
        same = any(
            value == neutral_value and isinstance(value, bool) == isinstance(neutral_value, bool)
            for neutral_value in values
        )
        if not same:
            shown = json.dumps(value)
            shown = shown if len(shown) <= 60 else shown[:57] + "..."
            raise RequestError(
                f"{name}={shown} is not supported by this engine", param=name, code="unsupported_parameter"
            )


def sampling(fields: Mapping[str, Any], *, default_max_tokens: int, chat: bool) -> Sampling:
    """Read the settings of the answer.

    Raises:
        RequestError: a value has the wrong type or is out of range.
    """
    most = _integer(fields, "max_tokens", least=1)
    if chat:
        newer = _integer(fields, "max_completion_tokens", least=1)
        most = newer if newer is not None else most
    max_tokens = default_max_tokens if most is None else most
    min_tokens = _integer(fields, "min_tokens", least=0) or 0
    if min_tokens > max_tokens:
        raise RequestError(
            f"min_tokens is {min_tokens}, more than max_tokens, {max_tokens}", param="min_tokens"
        )
    temperature = _number(fields, "temperature", 0.0, 2.0, default=1.0)
    top_k = _integer(fields, "top_k", least=-1) or 0
    return Sampling(
        temperature=temperature,
        top_p=_number(fields, "top_p", 0.0, 1.0, default=1.0, above=True),
        top_k=max(top_k, 0),
        min_p=_number(fields, "min_p", 0.0, 1.0, default=0.0),
        seed=_integer(fields, "seed", least=-(1 << 63)),
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=_stops(fields.get("stop")),
        stop_tokens=_stop_tokens(fields.get("stop_token_ids")),
        ignore_eos=_flag(fields, "ignore_eos"),
    )


def reply(fields: Mapping[str, Any]) -> Reply:
    """Read how to answer.

    Raises:
        RequestError: `stream` or `stream_options` has the wrong type.
    """
    options = fields.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise RequestError("stream_options must be an object", param="stream_options")
    stream = _flag(fields, "stream")
    if options is not None and not stream:
        raise RequestError("stream_options is only allowed together with stream=true", param="stream_options")
    return Reply(
        stream=stream,
        include_usage=_flag(options or {}, "include_usage"),
        token_ids=_flag(fields, "return_token_ids"),
    )


def salt(fields: Mapping[str, Any]) -> str:
    """`cache_salt`: requests share cached blocks only under the same one.

    Raises:
        RequestError: it is not a string of whole characters.
    """
    value = fields.get("cache_salt")
    if value is None:
        return ""
    if not isinstance(value, str) or not _is_whole(value):
        raise RequestError("cache_salt must be a string of whole characters", param="cache_salt")
    return value


def _is_whole(text: str) -> bool:
    """Whether no half of a surrogate pair is in it: JSON can spell one, and nothing can encode it."""
    return not any("\ud800" <= sign <= "\udfff" for sign in text)


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false", param=name)
    return value


def _integer(fields: Mapping[str, Any], name: str, *, least: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 63:
        raise RequestError(f"{name} must be an integer of at least {least}", param=name)
    return value


def _number(
    fields: Mapping[str, Any], name: str, least: float, most: float, *, default: float, above: bool = False
) -> float:
    value = fields.get(name)
    if value is None:
        return default
    # Compared first: an integer may be too large for a float. NaN compares as false.
    fits = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
    if not fits or (above and value == least):
        raise RequestError(f"{name} must be a number from {least:g} to {most:g}", param=name)
    return float(value)


def _stops(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if (
        not isinstance(texts, list)
        or len(texts) > _MOST_STOPS
        or not all(isinstance(text, str) for text in texts)
    ):
        raise RequestError(f"stop must be a string or a list of at most {_MOST_STOPS} strings", param="stop")
    if not all(texts):
        raise RequestError("stop must not contain an empty string", param="stop")
    return tuple(texts)


def _stop_tokens(value: object) -> frozenset[int]:
    if value is None:
        return frozenset()
    if not isinstance(value, list) or not all(
        isinstance(token, int) and not isinstance(token, bool) for token in value
    ):
        raise RequestError("stop_token_ids must be a list of integers", param="stop_token_ids")
    return frozenset(value)
