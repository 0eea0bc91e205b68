"""Command line of the engine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from conserve_workers.tiny.errors import StartError
from conserve_workers.tiny.options import Options

_BLOCK_SIZES = (8, 16, 32, 64, 128)


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the default of each option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return (
            action.help
            if action.default is None or action.default is False
            else super()._get_help_string(action)
        )


def parse_args(argv: Sequence[str] | None = None) -> Options:
    """Read the command line.

    Raises:
        StartError: a value is out of range.
        SystemExit: as argparse does, for --help and unknown options.
    """
    default = Options()
    parser = argparse.ArgumentParser(
        prog="python -m conserve_workers.tiny",
        description="A small real LLM engine with KV handoff.",
        formatter_class=_Help,
    )
    add = parser.add_argument
    add("--model", default=default.model, help="'smollm2', 'random', or a local Hugging Face folder")
    add(
        "--role",
        choices=("prefiller", "decoder", "both"),
        default=default.role,
        help="what the router uses it for; every role serves every request",
    )
    add("--host", default=default.host, help="address to listen on")
    add("--port", type=int, default=default.port, help="0: the system chooses; see the ready line")
    add("--kv-blocks", type=int, default=default.kv_blocks, help="KV blocks, one of them the null block")
    add("--block-size", type=int, default=default.block_size, help="tokens in a block")
    add("--max-num-seqs", type=int, default=default.max_num_seqs, help="requests computed at once")
    add(
        "--max-model-len",
        type=int,
        default=default.max_model_len,
        help="tokens of prompt and answer together",
    )
    add("--chunk-tokens", type=int, default=default.chunk_tokens, help="tokens computed in one step")
    add("--threads", type=int, default=default.threads, help="CPU threads of one product")
    add(
        "--lease-s",
        type=float,
        default=default.lease_s,
        help="seconds for which a prompt is kept for another worker",
    )
    add("--device", choices=("cpu", "cuda"), default=default.device, help="where the model runs")
    add("--served-model-name", help="name that clients use; default: the value of --model")
    add("--handoff-host", help="host at which other workers reach this one; default: --host")
    add("--handoff-port", type=int, default=default.handoff_port, help="0: the system chooses")
    add("--handoff-timeout-s", type=float, default=default.handoff_timeout_s, help="seconds without progress")
    add(
        "--kv-load-failure-policy",
        choices=("fail", "recompute"),
        default=default.kv_load_failure_policy,
        help="when a handoff fails: answer 500, or compute the prompt here",
    )
    add("--max-body-bytes", type=int, default=default.max_body_bytes, help="largest request body")
    add("--drain-s", type=float, default=default.drain_s, help="seconds for requests under way after SIGTERM")
    add("--ready-file", help="file that receives the ready line")
    add("--idle-exit-with-parent", action="store_true", help="exit when the parent process ends")
    add(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default=default.log_level,
        help="what the log holds",
    )
    options = Options(**vars(parser.parse_args(argv)))
    _check(options)
    return options


def _check(options: Options) -> None:
    if options.block_size not in _BLOCK_SIZES:
        raise StartError(
            f"--block-size {options.block_size}: must be one of {', '.join(map(str, _BLOCK_SIZES))}"
        )
    least = {
        "kv_blocks": 2,
        "max_num_seqs": 1,
        "max_model_len": 2,
        "chunk_tokens": 1,
        "threads": 1,
        "max_body_bytes": 1,
    }
    for name, value in least.items():
        if getattr(options, name) < value:
            raise StartError(f"--{name.replace('_', '-')} {getattr(options, name)}: must be at least {value}")
    for name in ("lease_s", "handoff_timeout_s"):
        if not getattr(options, name) > 0:
            raise StartError(f"--{name.replace('_', '-')} {getattr(options, name)}: must be positive")
    if options.ready_file is not None and not Path(options.ready_file).parent.is_dir():
        raise StartError(f"--ready-file {options.ready_file}: its folder does not exist")
