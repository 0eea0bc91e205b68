"""The official client, unchanged but for its base URL."""

from __future__ import annotations

from typing import Any

import pytest
from openai import APIError, APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError, RateLimitError

from conserve_workers.mock import Fault

from .conftest import StartCluster


async def test_an_agents_turns_streamed_and_not(cluster: StartCluster) -> None:
    async with (
        cluster() as c,
        AsyncOpenAI(base_url=f"{c.url}/v1", api_key="sk-agent", max_retries=0) as client,
    ):
        messages: list[Any] = [{"role": "user", "content": "list the files " * 20}]
        for turn in range(4):
            if turn % 2:
                made = await client.chat.completions.create(model="mock", messages=messages, max_tokens=5)
                text = made.choices[0].message.content or ""
                assert made.usage is not None
                assert made.usage.completion_tokens == 5
            else:
                stream = await client.chat.completions.create(
                    model="mock",
                    messages=messages,
                    max_tokens=5,
                    stream=True,
                    stream_options={"include_usage": True},
                )
                chunks = [chunk async for chunk in stream]
                text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
                assert chunks[-1].usage is not None
                assert chunks[-1].usage.completion_tokens == 5
            assert len(text.split()) == 5
            messages += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": f"output {turn}"},
            ]
        assert len(c.prefillers[0].legs("prefill")) == 1
        assert sum(len(mock.legs("decode")) > 0 for mock in c.decoders) == 1


async def test_models_and_completions(cluster: StartCluster) -> None:
    async with (
        cluster() as c,
        AsyncOpenAI(base_url=f"{c.url}/v1", api_key="sk-agent", max_retries=0) as client,
    ):
        assert [model.id async for model in client.models.list()] == ["mock"]
        made = await client.completions.create(model="mock", prompt="once upon", max_tokens=3)
        assert len(made.choices[0].text.split()) == 3


async def test_errors_become_the_clients_exceptions(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1) as c:
        async with AsyncOpenAI(base_url=f"{c.url}/v1", api_key="sk-agent", max_retries=0) as client:

            async def ask(**options: object) -> object:
                asked = {"model": "mock", "messages": [{"role": "user", "content": "hi"}]} | options
                return await client.chat.completions.create(**asked)  # type: ignore[call-overload]

            with pytest.raises(NotFoundError) as unknown:
                await ask(model="gpt-17")
            assert unknown.value.code == "model_not_found"
            with pytest.raises(BadRequestError) as empty:
                await ask(messages=[])
            assert empty.value.param == "messages"
            c.decoders[0].arm(Fault(status=429, headers={"retry-after": "3"}))
            with pytest.raises(RateLimitError) as busy:
                await ask()
            assert busy.value.response.headers["retry-after"] == "3"
            c.decoders[0].faults.clear()
            c.decoders[0].arm(Fault(leg="decode", reset_at=900, times=1))
            stream = await ask(stream=True, max_tokens=50)
            with pytest.raises(APIError, match="d0") as broken:
                async for _ in stream:  # type: ignore[attr-defined]
                    pass
            assert not isinstance(broken.value, APIStatusError)
