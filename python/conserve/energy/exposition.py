"""An account as numbers for people and programs: JSON values and Prometheus text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .account import Account, Usage
from .meter import Meter

__all__ = ["exposition", "ratios", "told"]

_HELP: Final = {
    "conserve_energy_joules_total": (
        "counter",
        "Energy that a worker used, by phase; phases add up to its share.",
    ),
    "conserve_energy_counter_joules_total": ("counter", "Energy by the meter itself, by zone."),
    "conserve_energy_counter_up": ("gauge", "1 if the zone's meter can be read, 0 if not."),
    "conserve_power_watts": ("gauge", "Mean power of a zone between the last two looks."),
    "conserve_joules_per_token": (
        "gauge",
        "Joules for each token prefilled or generated since the start, by tier.",
    ),
    "conserve_tokens_per_joule": ("gauge", "The same the other way round."),
}
_PHASES: Final = ("prefill", "decode", "idle")


def ratios(usage: Usage) -> dict[str, float | None]:
    """Joules for a token and tokens for a joule; None where one of them is 0."""
    joules, tokens = usage.total_uj / 1e6, usage.tokens
    return {
        "j_per_token": joules / tokens if tokens and joules else None,
        "tokens_per_j": tokens / joules if tokens and joules else None,
        "j_per_output_token": joules / usage.output_tokens if usage.output_tokens and joules else None,
    }


def told(account: Account, meters: Mapping[str, Meter], missing: Mapping[str, str]) -> dict[str, Any]:
    """What `/v1/energy` answers."""
    return {
        "zones": {
            key: {
                "name": meters[key].name,
                "source": meters[key].source,
                "workers": list(zone.workers),
                "energy_j": zone.energy_uj / 1e6,
                "power_w": zone.power_w,
                "idle_w": zone.idle_w,
                "error": zone.error,
            }
            for key, zone in account.zones.items()
        },
        "no_counter": dict(missing),
        "workers": {
            name: {"tier": account.tiers[name]} | _usage(usage) for name, usage in account.workers.items()
        },
        "tiers": {tier: _usage(account.of_tier(tier)) for tier in _tiers(account)},
        "fleet": _usage(account.of_fleet()),
    }


def exposition(account: Account, meters: Mapping[str, Meter]) -> str:
    """The same as Prometheus text."""
    rows: dict[str, list[tuple[str, float | None]]] = {name: [] for name in _HELP}
    for worker, usage in account.workers.items():
        for phase in _PHASES:
            labels = f'worker="{_quoted(worker)}",tier="{_quoted(account.tiers[worker])}",phase="{phase}"'
            rows["conserve_energy_joules_total"].append((labels, getattr(usage, f"{phase}_uj") / 1e6))
    for key, zone in account.zones.items():
        labels = f'zone="{key}",source="{meters[key].source}"'
        rows["conserve_energy_counter_joules_total"].append((labels, zone.energy_uj / 1e6))
        rows["conserve_energy_counter_up"].append((labels, int(zone.error is None)))
        rows["conserve_power_watts"].append((f'zone="{key}"', zone.power_w))
    for tier in _tiers(account):
        found, labels = ratios(account.of_tier(tier)), f'tier="{_quoted(tier)}"'
        rows["conserve_joules_per_token"].append((labels, found["j_per_token"]))
        rows["conserve_tokens_per_joule"].append((labels, found["tokens_per_j"]))
    lines: list[str] = []
    for name, (kind, text) in _HELP.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{{{labels}}} {value}" for labels, value in rows[name] if value is not None]
    return "\n".join([*lines, ""])


def _tiers(account: Account) -> list[str]:
    """The tiers of metered workers, each once."""
    return list(dict.fromkeys(account.tiers[name] for name in account.workers))


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "energy_j": usage.total_uj / 1e6,
        "prefill_j": usage.prefill_uj / 1e6,
        "decode_j": usage.decode_uj / 1e6,
        "idle_j": usage.idle_uj / 1e6,
        "prompt_tokens": usage.prompt_tokens,
        "output_tokens": usage.output_tokens,
        **ratios(usage),
    }


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
