"""A fleet file becomes commands, environments and ports."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from conserve.errors import ConfigError
from conserve.settings import Settings
from conserve.supervisor import launch
from conserve.supervisor.fleet_file import FleetFile
from conserve.supervisor.launch import Plan, plan
from tests.support.certificates import make_certificate
from tests.unit.supervisor.test_fleet_file import GOOD

ROOT = Path(__file__).parents[3]
TINY = """
model = "random"
first_port = 0
first_handoff_port = 0
[[tier]]
role = "prefiller"
engine = "tiny"
[[tier]]
role = "decoder"
engine = "tiny"
count = 2
kv_blocks = 64
[router]
port = 0
"""


def planned(text: str) -> Plan:
    return plan(FleetFile.parse(text))


def after(argv: tuple[str, ...], option: str) -> str:
    return argv[argv.index(option) + 1]


def test_vllm_on_gpus_gets_its_devices_ports_and_role() -> None:
    made = planned(GOOD)
    p0, d0, d1 = made.workers
    assert [each.spec.name for each in made.workers] == ["p0", "d0", "d1"]
    assert [each.url for each in made.workers] == [f"http://127.0.0.1:{port}" for port in (8100, 8101, 8102)]
    assert [each.spec.env["CUDA_VISIBLE_DEVICES"] for each in made.workers] == ["0,1", "2,3", "4,5"]
    # Two ranks for each worker: a connector may take as many ports from its first.
    assert [each.spec.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] for each in made.workers] == ["5600", "5602", "5604"]
    assert d1.spec.env["NCCL_DEBUG"] == "WARN"
    assert p0.spec.argv[:3] == ("vllm", "serve", "m")
    assert after(p0.spec.argv, "--tensor-parallel-size") == "2"
    assert after(p0.spec.argv, "--max-num-batched-tokens") == "16384"
    assert after(d0.spec.argv, "--max-num-batched-tokens") == "1024"
    assert after(d0.spec.argv, "--block-size") == "32"
    assert d0.spec.argv[-2:] == ("--max-num-seqs", "64"), "the file's own flags come last"
    roles = [json.loads(after(each.spec.argv, "--kv-transfer-config"))["kv_role"] for each in made.workers]
    assert roles == ["kv_producer", "kv_consumer", "kv_consumer"]
    assert "UCX_TLS" not in p0.spec.env, "on GPUs the transport is UCX's choice"


def test_router_gets_the_workers_and_its_settings() -> None:
    router = planned(GOOD).router
    assert after(router.argv, "--port") == "9000"
    assert after(router.argv, "--prefiller") == "http://127.0.0.1:8100,name=p0,tier=prefiller0,gpus=0+1"
    assert router.env["CONSERVE_LOW_WATERMARK"] == "0.7"
    assert router.env["CONSERVE_BLOCK_SIZE"] == "32"
    seen = router.environment({"CONSERVE_DECODERS": "http://other", "CONSERVE_CONTROL_KEY": "k"})
    assert "CONSERVE_DECODERS" not in seen, "the file says which workers there are"
    assert seen["CONSERVE_CONTROL_KEY"] == "k", "secrets come from the environment only"


def test_a_router_with_a_certificate_is_at_https(tmp_path: Path) -> None:
    own = make_certificate(tmp_path)
    made = planned(f'{TINY}tls_cert = "{own.chain}"\ntls_key = "{own.key}"\n')
    assert made.router_url.startswith("https://127.0.0.1:")
    assert made.router.env["CONSERVE_TLS_CERT"] == str(own.chain)


def test_without_a_connector_nothing_is_handed_over() -> None:
    made = planned('connector = "none"\n' + GOOD)
    assert all("--kv-transfer-config" not in each.spec.argv for each in made.workers)
    assert all(set(each.ports) == {"http"} for each in made.workers)


def transfer(argv: tuple[str, ...]) -> dict[str, object]:
    config: dict[str, object] = json.loads(after(argv, "--kv-transfer-config"))
    return config


def test_mooncake_tells_the_router_what_its_prefillers_are_called() -> None:
    made = planned('connector = "mooncake"\n' + GOOD)
    p0, d0, _d1 = made.workers
    assert transfer(p0.spec.argv)["kv_connector"] == "MooncakeConnector"
    assert transfer(p0.spec.argv)["engine_id"] == "p0-5600"
    assert p0.spec.env["VLLM_MOONCAKE_BOOTSTRAP_PORT"] == "5600"
    assert "mooncake_protocol" not in str(transfer(p0.spec.argv)), "on GPUs the transport is its own choice"
    assert d0.spec.env["VLLM_HOST_IP"] == "127.0.0.1"
    said = after(made.router.argv, "--prefiller")
    assert said.endswith(",bootstrap=http://127.0.0.1:5600,engine_id=p0-5600")
    assert "bootstrap" not in after(made.router.argv, "--decoder")


def test_files_need_a_folder_and_no_port() -> None:
    made = planned('connector = "example"\nhandoff_folder = "/kv"\n' + GOOD)
    for each in made.workers:
        assert transfer(each.spec.argv)["kv_connector_extra_config"] == {"shared_storage_path": "/kv"}
        assert set(each.ports) == {"http"}


DECLARED = """
[connector.my]
prefill = { pull = true, id = "{transfer_id}" }
decode = { id = "{transfer_id}", at = "{bootstrap_addr}" }
env = { MY_PORT = "{handoff_port}" }
[connector.my.flags]
prefiller = ["--kv-transfer-config", '{"kv_connector":"Mine","me":"{engine_id}"}']
decoder = ["--kv-transfer-config", '{"kv_connector":"Mine","at":"{host}:{handoff_port}"}']
"""


def test_a_connector_of_ones_own_reaches_workers_and_router() -> None:
    made = planned(GOOD + DECLARED)
    p0, d0, _d1 = made.workers
    assert transfer(p0.spec.argv) == {"kv_connector": "Mine", "me": "p0-5600"}
    assert transfer(d0.spec.argv) == {"kv_connector": "Mine", "at": "127.0.0.1:5602"}
    assert d0.spec.argv[-2:] == ("--max-num-seqs", "64"), "the tier's flags come after the connector's"
    assert p0.spec.env["MY_PORT"] == "5600"
    assert "--connector" not in made.router.argv
    shape = made.router.env["CONSERVE_CONNECTOR_SHAPE"]
    prefill, decode, retain = Settings(connector_shape=shape).connector_shape or ("", "", "")
    assert retain is None
    assert json.loads(prefill) == {"pull": True, "id": "{transfer_id}"}
    assert json.loads(decode or "") == {"id": "{transfer_id}", "at": "{bootstrap_addr}"}
    assert "bootstrap=http://127.0.0.1:5600" in after(made.router.argv, "--prefiller")


def test_retention_reaches_engines_and_router() -> None:
    made = planned('retention = "pin"\nretention_ttl_s = 240\n' + GOOD)
    p0, d0, _d1 = made.workers
    # A decoder renews each 240 / 6 = 40 s what it waits for, by two thirds of the prefiller's lease.
    assert transfer(p0.spec.argv)["kv_connector_extra_config"] == {"kv_lease_duration": 80}
    assert transfer(d0.spec.argv)["kv_connector_extra_config"] == {
        "bidirectional_kv_xfer": True,
        "decoder_kv_blocks_ttl": 240,
        "kv_lease_duration": 240,
    }
    assert made.router.env["CONSERVE_RETENTION"] == "pin"
    assert made.router.env["CONSERVE_RETENTION_TTL_S"] == "240"
    without = planned(GOOD)
    assert "kv_connector_extra_config" not in transfer(without.workers[1].spec.argv)
    assert without.router.env["CONSERVE_RETENTION"] == "cache"


def test_retention_of_ones_own_connector_reaches_the_router() -> None:
    own = DECLARED.replace("[connector.my]", "[connector.my]\nretain = { keep = true }")
    made = planned('retention = "pin"\n' + GOOD + own)
    shape = Settings(connector_shape=made.router.env["CONSERVE_CONNECTOR_SHAPE"]).connector_shape
    assert shape is not None
    assert json.loads(shape[2] or "") == {"keep": True}


def test_events_get_ports_when_asked_for() -> None:
    made = planned("first_events_port = 5700\n" + GOOD)
    config = json.loads(after(made.workers[2].spec.argv, "--kv-events-config"))
    assert config["endpoint"] == "tcp://*:5702", "at any other address vLLM does not listen"
    replay = made.workers[2].ports["replay"]
    assert config["replay_endpoint"] == f"tcp://*:{replay}"
    told = f",kv_events=tcp://127.0.0.1:5702,kv_replay=tcp://127.0.0.1:{replay}"
    assert [word for word in made.router.argv if word.endswith(told)]


def test_ports_that_the_system_chooses_differ() -> None:
    made = planned(TINY)
    ports = [port for each in made.workers for port in each.ports.values()]
    assert len({*ports, int(made.router_url.rpartition(":")[2])}) == 7
    assert after(made.workers[1].spec.argv, "--kv-blocks") == "64"


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        (GOOD.replace("9000", "8101"), "first_port", "port 8101 of d0 is router's already (router.port)"),
        (
            "first_handoff_port = 8099\n" + GOOD,
            "first_handoff_port",
            "port 8100 of p0 is p0's already (first_port)",
        ),
        ("first_port = 65534\n" + GOOD, "first_port", "d1 would get port 65536"),
        (GOOD + "low_watermrk = 1", "router.low_watermrk", "no such setting; did you mean low_watermark?"),
        (GOOD.replace("0.7", "1.7"), "router.low_watermark", "less than or equal to 1"),
        (GOOD + 'retention = "pin"', "router.retention", "decided by the rest of the file"),
        (GOOD + 'decoders = "http://x"', "router.decoders", "decided by the rest of the file"),
        (
            GOOD + 'conversation_headers = ["X-Id"]',
            "router.conversation_headers",
            "header names in lower case",
        ),
        (
            GOOD + 'conversation_headers = ["x\\u0000"]',
            "router.conversation_headers",
            "takes text without NUL",
        ),
        (GOOD + 'control_key = "a\\u0000b"', "router.control_key", "takes text without NUL"),
        (
            GOOD + 'policy_option = ["roles=off", "roles=auto"]',
            "router.policy_option",
            "takes each option once, not 'roles' 2 times",
        ),
    ],
)
def test_clash_is_named(text: str, key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(text)
    assert caught.value.key == key
    assert said in str(caught.value)


def test_port_that_is_taken_is_found_before_anything_starts() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        made = planned(TINY.replace("first_port = 0", f"first_port = {port}", 1))
        with pytest.raises(
            ConfigError, match=f"first_port: port {port} of p0 cannot be had: address already in use"
        ):
            made.must_be_free()


def test_example_files_are_whole() -> None:
    demo = plan(FleetFile.read(ROOT / "workers" / "vllm" / "cpu-demo.toml"))
    assert [(each.spec.name, each.tier) for each in demo.workers] == [
        ("p0", "prefill"),
        ("d0", "decode"),
        ("d1", "decode"),
    ]
    assert all(each.spec.env["VLLM_TARGET_DEVICE"] == "cpu" for each in demo.workers)
    guide, own = re.findall(
        r"^```toml\n(.*?)^```$", (ROOT / "docs/guides/fleet.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert [each.spec.name for each in planned(guide).workers] == ["p0", "d0", "d1", "d2"]
    assert planned(GOOD + own).workers[0].spec.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"


def test_worker_that_vllm_cannot_be_told_of_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_vllm_fields", lambda _fleet, _each: {"colour": "blue"})
    with pytest.raises(ConfigError, match=r"vLLM's command cannot be made: .*colour"):
        planned(GOOD)
