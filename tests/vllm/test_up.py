"""`conserve up workers/vllm/cpu-demo.toml` as the guide says, with SmolLM2: an OpenAI client, curl, and many conversations."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.vllm.servers import PYTHON, SMOLLM2, Forge, start_talkers
from tests.workers.harness import Worker

pytestmark = pytest.mark.skipif(not SMOLLM2, reason="needs SmolLM2 in a folder: make vllm-test")
DEMO = Path(__file__).parents[2] / "workers" / "vllm" / "cpu-demo.toml"
START_S = 240.0
FETCHED = "vllm:prompt_tokens_by_source_total{external_kv_transfer}"
COMPUTED = "vllm:prompt_tokens_by_source_total{local_compute}"
CHAT = "/v1/chat/completions"
BLOCK_SIZE = 32
CONVERSATIONS, TURNS = 12, 5
MAX_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Up:
    """A running `conserve up`, and the instance that its texts are compared with."""

    url: str
    workers: dict[str, Worker]
    plain: Worker

    def fleet(self) -> Any:
        """The router's own account."""
        return Worker(self.url, "demo", self.plain.process, {}).get("/v1/fleet?check=true").body


@pytest.fixture(scope="module")
def up(empty_forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The demo's file with the model's folder, vLLM's place and ports of the system's choice put in."""
    folder = tmp_path_factory.mktemp("up")
    text = DEMO.read_text()
    for wanted, given in (
        (r'model = "\./smollm2".*', f'model = "{SMOLLM2}"\nfirst_port = 0\nfirst_handoff_port = 0'),
        (r"port = 8080", "port = 0"),
        (r'preset = "cpu"', f'preset = "cpu"\ncommand = ["{Path(PYTHON).parent / "vllm"}"]'),
    ):
        text, count = re.subn(wanted, given, text)
        assert count, wanted
    (folder / "cpu-demo.toml").write_text(text)
    command = [sys.executable, "-P", "-m", "conserve.cli", "up", "cpu-demo.toml", "--log-dir", "logs"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder
    ) as process:
        assert process.stdout is not None
        watchdog = threading.Timer(START_S, process.kill)
        watchdog.start()
        try:
            if "talker" not in empty_forge.workers:
                start_talkers(empty_forge, {"talker": "both"})
            said = ""
            for line in process.stdout:
                said += line
                if serves := re.search(r"conserve serves (http://\S+)/v1", line):
                    break
            else:
                raise AssertionError(said)
            watchdog.cancel()
            made = Up(serves[1], {}, empty_forge["talker"])
            for row in made.fleet()["workers"]:
                made.workers[row["name"]] = Worker(row["url"], "demo", empty_forge["talker"].process, {})
            yield made
            process.terminate()
            rest = process.stdout.read()
            assert process.wait(timeout=60) == 0, rest
            assert "every process has ended" in rest
        finally:
            watchdog.cancel()
            process.kill()


def test_an_openai_client_talks_to_it(up: Up) -> None:
    client = OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": "Name a river in Europe."}]
    whole = client.chat.completions.create(
        model="demo", messages=messages, temperature=0, max_tokens=MAX_TOKENS
    )
    stream = client.chat.completions.create(
        model="demo", messages=messages, temperature=0, max_tokens=MAX_TOKENS, stream=True
    )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    alone = up.plain.chat(messages, max_tokens=MAX_TOKENS).body["choices"][0]["message"]["content"]
    assert whole.choices[0].message.content == streamed == alone
    assert len(alone) > 10


def test_curl_streams_from_it(up: Up) -> None:
    body = {
        "model": "demo",
        "stream": True,
        "temperature": 0,
        "max_tokens": 16,
        "messages": [{"role": "user", "content": "Count to five."}],
    }
    command = [
        "curl",
        "-sN",
        f"{up.url}{CHAT}",
        "-H",
        "content-type: application/json",
        "-d",
        json.dumps(body),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    lines = [line for line in done.stdout.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    alone = up.plain.chat(body["messages"], max_tokens=16).body["choices"][0]["message"]["content"]  # type: ignore[arg-type]
    assert text == alone


def test_many_conversations_at_once_are_handed_over_once_each_and_compute_nothing_twice(up: Up) -> None:
    def converse(number: int) -> list[tuple[list[dict[str, str]], Any]]:
        subject = f"{number + 3} boats on a river that carry {number * 17 + 5} stones each"
        told: list[tuple[list[dict[str, str]], Any]] = []
        messages = [
            {"role": "user", "content": f"Read this first: {subject}. " * 8 + "How many boats are there?"}
        ]
        client = OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0)
        for turn in range(TURNS):
            answer = client.chat.completions.create(
                model="demo",
                messages=messages,  # type: ignore[arg-type]
                temperature=0,
                max_tokens=MAX_TOKENS,
                extra_headers={"x-conversation-id": f"boats-{number}"},
            )
            told.append((list(messages), answer))
            messages.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
            messages.append({"role": "user", "content": f"And what about the stones of boat {turn + 1}?"})
        return told

    handoffs = up.fleet()["counters"]["handoffs"]
    before = {name: worker.metrics() for name, worker in up.workers.items()}
    with ThreadPoolExecutor(CONVERSATIONS) as pool:
        conversations = list(pool.map(converse, range(CONVERSATIONS)))
    after = {name: worker.metrics() for name, worker in up.workers.items()}

    def rose(name: str, sample: str) -> float:
        return after[name][sample] - before[name][sample]

    fleet = up.fleet()
    assert fleet["check"] == "ok"
    assert fleet["counters"]["handoffs"] - handoffs == CONVERSATIONS, "one each"
    assert fleet["counters"]["relocated"] == 0
    prompts = [[answer.usage.prompt_tokens for _messages, answer in told] for told in conversations]
    outputs = [[answer.usage.completion_tokens for _messages, answer in told] for told in conversations]
    firsts = sum(each[0] for each in prompts)
    fetched = rose("d0", FETCHED) + rose("d1", FETCHED)
    computed = rose("d0", COMPUTED) + rose("d1", COMPUTED)
    # All first prompts look alike at their beginning, and a decoder does not fetch what it has.
    assert firsts - CONVERSATIONS * 2 * BLOCK_SIZE <= fetched <= firsts
    # A turn computes what is new, and of what was there only the block that was not full yet.
    new = sum(each[-1] - each[0] for each in prompts)
    partial = CONVERSATIONS * (TURNS - 1) * (BLOCK_SIZE - 1)
    assert computed <= new + partial, f"{computed - new - partial} tokens were computed again"

    def alone(told: tuple[list[dict[str, str]], Any]) -> str:
        text: str = up.plain.chat(told[0], max_tokens=MAX_TOKENS).body["choices"][0]["message"]["content"]
        return text

    every = [each for told in conversations for each in told]
    with ThreadPoolExecutor(8) as pool:
        assert [answer.choices[0].message.content for _messages, answer in every] == list(
            pool.map(alone, every)
        )
    print(
        f"{CONVERSATIONS} conversations x {TURNS} turns: {firsts} prompt tokens prefilled and {fetched:.0f} fetched, "
        f"{new} new, {computed:.0f} computed on decoders, {sum(map(sum, outputs))} generated"
    )
