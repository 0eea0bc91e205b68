"""What the door counts besides the router's own metrics, as Prometheus text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

__all__ = ["DoorMetrics"]

_HELP: Final = {
    "conserve_door_requests_total": (
        "counter",
        "Requests answered, by route and status (499: the client left).",
    ),
    "conserve_door_client_gone_total": ("counter", "Requests whose client left, by what was under way."),
    "conserve_door_upstream_failures_total": ("counter", "Exchanges with workers that broke, by kind."),
    "conserve_door_relayed_bytes_total": ("counter", "Bytes of streams passed on to clients."),
    "conserve_dispatch_total": ("counter", "What the dispatcher did beyond the plain way, by kind."),
    "conserve_door_in_flight": ("gauge", "Requests being served, waiting ones included."),
    "conserve_door_draining": ("gauge", "1 while the door takes no new turns."),
}


class DoorMetrics:
    """Counters of one door. Event-loop only: nothing here is atomic."""

    __slots__ = ("client_gone", "relayed_bytes", "requests", "upstream_failures")

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.client_gone: Counter[str] = Counter()
        self.upstream_failures: Counter[str] = Counter()
        self.relayed_bytes = 0

    def exposition(self, *, in_flight: int, draining: bool, dispatched: Mapping[str, int]) -> str:
        """The counters as Prometheus text, with those of the dispatcher."""
        rows: dict[str, list[tuple[str, float]]] = {
            "conserve_door_requests_total": [
                (f'{{route="{route}",status="{status}"}}', count)
                for (route, status), count in sorted(self.requests.items())
            ],
            "conserve_door_client_gone_total": [
                (f'{{during="{during}"}}', count) for during, count in sorted(self.client_gone.items())
            ],
            "conserve_door_upstream_failures_total": [
                (f'{{kind="{kind}"}}', count) for kind, count in sorted(self.upstream_failures.items())
            ],
            "conserve_door_relayed_bytes_total": [("", self.relayed_bytes)],
            "conserve_dispatch_total": [
                (f'{{kind="{kind}"}}', count) for kind, count in sorted(dispatched.items())
            ],
            "conserve_door_in_flight": [("", in_flight)],
            "conserve_door_draining": [("", int(draining))],
        }
        lines: list[str] = []
        for name, (kind, text) in _HELP.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{labels} {value}" for labels, value in rows[name]]
        return "\n".join([*lines, ""])
