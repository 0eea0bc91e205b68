"""Start a fleet file's workers and serve in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from conserve.energy.nvml import Nvml, NvmlError
from conserve.energy.power import Cap, Limit, PowerError, PowerLimits, check, default_folder
from conserve.errors import ConfigError
from conserve.supervisor import SupervisorError
from conserve.supervisor.fleet_file import FleetFile
from conserve.supervisor.launch import Plan, plan
from conserve.supervisor.run import Told, serve_fleet

__all__ = ["up"]

FAILED = 1
WRONG_USE = 2


def up(
    fleet_file: Annotated[Path, typer.Argument(metavar="FLEET.toml", help="What to start.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print commands, environment and ports; start nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print the same as JSON.")] = False,
    log_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A log for each process. [default: one for each fleet file, below $XDG_STATE_HOME/conserve]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Start the workers of a fleet file, keep them running, and serve in front of them.

    SIGTERM, SIGHUP or Ctrl-C: requests under way may finish, then everything ends; a second one ends everything at once.
    Exit status: 0 ended on demand; 1 a process did not start; 2 the file is wrong.
    """
    if as_json and not dry_run:
        _end(WRONG_USE, "--json goes with --dry-run")
    if not fleet_file.is_file():
        _end(WRONG_USE, f"{fleet_file}: there is no such file")
    try:
        fleet = FleetFile.read(fleet_file)
        planned = plan(fleet)
        caps = [
            Cap(gpu, tier.power_limit_w, f"tier[{place}].power_limit_w")
            for place, tier in enumerate(fleet.tiers)
            if tier.power_limit_w is not None
            for gpu in tier.gpus
        ]
        limits = _checked(caps) if dry_run else {}
    except ConfigError as error:
        _end(WRONG_USE, f"{fleet_file}: {error}")
    for warning in planned.warnings:
        print(f"conserve up: {fleet_file}: {warning}", file=sys.stderr)
    if dry_run:
        data = _as_data(planned) | {"power_limits": [_limit_as_data(cap, limits.get(cap)) for cap in caps]}
        words = "".join(f"{_limit_as_text(cap, limits.get(cap))}\n" for cap in caps)
        print(json.dumps(data, indent=2) if as_json else words + _as_text(planned))
        return
    logs = (log_dir or _default_log_dir(fleet_file)).absolute()
    logging.basicConfig(level="WARNING", stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    # What the supervisor has to say is told line by line below.
    logging.getLogger("conserve.supervisor").setLevel(logging.ERROR)
    try:
        planned.must_be_free()
        power = PowerLimits(default_folder())
        power.restore_left_over(_tell)
        with power.applied(caps, _tell):
            asyncio.run(serve_fleet(fleet, planned, log_dir=logs, tell=_tell))
    except ConfigError as error:
        _end(WRONG_USE, f"{fleet_file}: {error}")
    except PowerError as error:
        _end(FAILED, f"{fleet_file}: {error}")
    except (SupervisorError, OSError) as error:
        _end(FAILED, f"{error}\nThe logs of all processes are in {logs}")


def _checked(caps: Sequence[Cap]) -> dict[Cap, Limit]:
    """What the GPUs say to the caps; nothing where there are none to ask. Raises ConfigError."""
    if not caps:
        return {}
    try:
        nvml = Nvml()
    except NvmlError:
        return {}
    try:
        return {limit.cap: limit for limit in check(caps, nvml)}
    except PowerError:
        return {}
    finally:
        nvml.close()


def _limit_as_data(cap: Cap, limit: Limit | None) -> dict[str, Any]:
    return {
        "gpu": cap.gpu,
        "limit_w": cap.limit_w,
        "name": limit and limit.gpu.name,
        "now_w": limit and limit.now_mw / 1000,
        "least_w": limit and limit.least_mw / 1000,
        "most_w": limit and limit.most_mw / 1000,
    }


def _limit_as_text(cap: Cap, limit: Limit | None) -> str:
    if limit is None:
        return f"# power limit of GPU {cap.gpu}: {cap.limit_w} W while the fleet runs; the GPU cannot be asked here"
    now_w, least_w, most_w = limit.now_mw / 1000, limit.least_mw / 1000, limit.most_mw / 1000
    return (
        f"# power limit of {limit.gpu}: {cap.limit_w} W while the fleet runs, "
        f"{now_w:g} W now, takes {least_w:g} to {most_w:g} W"
    )


def _tell(line: Told) -> None:
    # Whoever looked on may have left, as with the terminal that a SIGHUP is about.
    with contextlib.suppress(OSError):
        print(line, flush=True)


def _end(status: int, message: str) -> NoReturn:
    print(f"conserve up: {message}", file=sys.stderr)
    raise typer.Exit(status)


def _default_log_dir(fleet_file: Path) -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    root = Path(state) if state else Path.home() / ".local" / "state"
    # Fleets in different folders may have files of one name.
    place = hashlib.sha256(os.fsencode(fleet_file.resolve())).hexdigest()[:8]
    return root / "conserve" / f"{fleet_file.stem}-{place}"


def _as_data(planned: Plan) -> dict[str, Any]:
    return {
        "workers": [
            {
                "name": each.spec.name,
                "tier": each.tier,
                "role": each.role,
                "url": each.url,
                "ports": dict(each.ports),
                "env": dict(each.spec.env),
                "argv": list(each.spec.argv),
            }
            for each in planned.workers
        ],
        "router": {
            "url": planned.router_url,
            "env": dict(planned.router.env),
            "argv": list(planned.router.argv),
        },
        "warnings": list(planned.warnings),
    }


def _as_text(planned: Plan) -> str:
    """Lines that a shell can run as they are."""
    lines = []
    for each in planned.workers:
        ports = ", ".join(f"{use} {port}" for use, port in each.ports.items())
        lines.append(f"# {each.spec.name}: {each.role}, tier {each.tier}, ports: {ports}")
        lines.append(_as_shell(each.spec.env, each.spec.argv))
    lines.append(f"# router: {planned.router_url}")
    lines.append(_as_shell(planned.router.env, planned.router.argv))
    return "\n".join(lines)


def _as_shell(env: Mapping[str, str], argv: Sequence[str]) -> str:
    return shlex.join(["env", *(f"{key}={value}" for key, value in sorted(env.items())), *argv])
