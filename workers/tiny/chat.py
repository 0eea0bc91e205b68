"""Messages of a chat request to the text that the model continues."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError
from jinja2.exceptions import TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from conserve_workers.tiny.errors import RequestError, StartError
from conserve_workers.tiny.model.tokenizer import Tokenizer

_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))


class ChatTemplate:
    """The model's chat template, compiled once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
        try:
            self._template = environment.from_string(tokenizer.chat_template)
        except TemplateSyntaxError as cause:
            raise StartError(f"the model's chat template is not valid: {cause}") from cause
        self._special = dict(tokenizer.special)
        self.reads_tools = "tools" in tokenizer.chat_template
        """Whether the template shows the model a request's tools."""
        self._reads_tool_calls = "tool_calls" in tokenizer.chat_template

    def render(self, messages: object, *, tools: object = None, options: dict[str, Any] | None = None) -> str:
        """The prompt, ending where the assistant's answer begins.

        Raises:
            RequestError: the messages are not what the API describes, contain something other than text, or the
                template refuses them.
        """
        if not isinstance(messages, list) or not messages:
            raise RequestError("messages must be a non-empty list", param="messages")
        plain = [self._plain(number, message) for number, message in enumerate(messages)]
        values = {**self._special, **(options or {}), "messages": plain, "add_generation_prompt": True}
        if self.reads_tools and tools:
            values["tools"] = tools
        try:
            return str(self._template.render(values))
        except (TemplateError, TypeError, ValueError) as cause:
            raise RequestError(
                f"the model's chat template refuses the messages: {cause}", param="messages"
            ) from cause

    def _plain(self, number: int, message: object) -> dict[str, Any]:
        at = f"messages[{number}]"
        if not isinstance(message, dict):
            raise RequestError(f"{at} must be an object", param=at)
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise RequestError(f"{at}.role must be one of {', '.join(sorted(_ROLES))}", param=f"{at}.role")
        content = _text(message.get("content"), at)
        calls = message.get("tool_calls")
        if calls and not self._reads_tool_calls:
            # The template would drop the calls, and with them what the tool answers refer to.
            content = "\n".join([*([content] if content else []), *_calls_as_text(calls, at)])
        return {**message, "content": content}


def _text(content: object, at: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{at}.content must be a string or a list of parts", param=f"{at}.content")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
            raise RequestError(
                f"{at}.content has a part of type {kind!r}; this engine reads text only",
                param=f"{at}.content",
                code="unsupported_content",
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _calls_as_text(calls: object, at: str) -> Sequence[str]:
    if not isinstance(calls, list):
        raise RequestError(f"{at}.tool_calls must be a list", param=f"{at}.tool_calls")
    texts = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise RequestError(f"{at}.tool_calls has an entry without a function", param=f"{at}.tool_calls")
        shown = {"name": function.get("name"), "arguments": function.get("arguments")}
        texts.append(f"<tool_call>\n{json.dumps(shown, ensure_ascii=False)}\n</tool_call>")
    return texts


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **_ignored: object) -> str:
    """Jinja's own filter escapes for HTML, which a prompt must not be."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> None:
    raise TemplateError(message)
