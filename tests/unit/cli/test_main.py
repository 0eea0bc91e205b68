from __future__ import annotations

import subprocess
import sys

import pytest

from conserve.cli import commands, main


def test_help_names_every_command_and_imports_none(capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "import sys; from conserve.cli import main; status = main(['--help']); "
        "heavy = [name for name in ('fastapi', 'aiohttp', 'uvicorn', 'torch', 'pydantic_settings') if name in sys.modules]; "
        "assert not heavy, heavy; sys.exit(status)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    for name, summary in commands().items():
        assert name in ended.stdout
        assert summary in ended.stdout, "a summary that does not fit 80 columns is cut"
    assert "serve" in commands()


def test_without_an_extra_the_command_says_which(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [
        name for name in sys.modules if name.startswith(("conserve.cli.serve", "conserve.settings"))
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pydantic_settings", None)
    monkeypatch.setitem(sys.modules, "pydantic", None)
    assert main(["serve"]) == 2
    assert "pip install 'conserve-router[proxy]'" in capsys.readouterr().err


def test_an_unknown_command_is_an_error_of_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-command"]) == 2
    assert "no-such-command" in capsys.readouterr().err


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    from conserve import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"conserve {__version__}\n"


def test_every_setting_is_an_option_but_the_secret_ones(capsys: pytest.CaptureFixture[str]) -> None:
    from conserve.settings import Settings

    assert main(["serve", "--help"]) == 0
    shown = capsys.readouterr().out
    workers = {"prefillers": "prefiller", "decoders": "decoder"}
    for name in Settings.model_fields:
        option = f"--{workers.get(name, name).replace('_', '-')}"
        assert (f"{option} " in shown or f"{option} /" in shown) is (
            name not in ("secret", "worker_key", "control_key")
        ), option


def test_the_help_of_serve_is_for_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from conserve.settings import WORKER_KEYS

    assert main(["serve", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "](" not in shown, "links of Markdown"
    assert "default: None" not in shown, "Python's word"
    assert "docs/guides/fleet.md#retention" in shown
    for key in WORKER_KEYS:
        assert f" {key}" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no decoder"),
        (["--decoder", "d0:1"], "http://host:port"),
        (["--decoder", "http://d0:1", "--queue-limit", "many"], "queue_limit"),
        (["--decoder", "http://d0:1", "--log-level", "loud"], "debug, info"),
        (["--decoder", "http://d0:1", "--ready-file", "/no/such/file"], "there is no folder"),
        (
            ["--decoder", "http://127.0.0.1:1", "--host", "192.0.2.1"],
            "cannot listen at 192.0.2.1:8080: Cannot assign requested address; see",
        ),
        (["--decoder", "http://d0:1", "--host", "bad host"], "host: takes an IP address or a host's name"),
        (["--decoder", "http://d0:1", "--retention-ttl-s", "60"], "retention_ttl_s: means nothing unless"),
        (["--decoder", "http://d0:1", "--prefiller", "http://d0:1/"], "given twice"),
        (["--decoder", "http://d0:1", "--prefiller", "http://p0:1,kv_blocks=9"], "kv_blocks means nothing"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *arguments]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert len(shown.splitlines()) <= 8


def test_no_group_of_commands_cuts_what_they_do(capsys: pytest.CaptureFixture[str]) -> None:
    for group in ("bench", "sim"):
        assert main([group, "--help"]) == 0
        assert "..." not in capsys.readouterr().out.partition("Commands:")[2]


def test_a_part_of_the_paper_that_there_is_not_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sim", "paper", "--trace", "swe-agnt"]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert shown.endswith("did you mean swe-agent?\n")
