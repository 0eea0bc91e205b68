"""Where the native door's CPU time goes, as a table: read from bench/results/door-instructions.json."""

from __future__ import annotations

from typing import Any

from readme_numbers import result

FILE = "door-instructions.json"
HEADS = {"1KB": "turn, 1 KB", "64KB": "turn, 64 KB", "512KB": "turn, 512 KB", "paced": "chunk of a stream"}
GROUPS = {
    "JSON scan": "JSON scan: every byte of a body or event is read once",
    "UTF-8 check": "UTF-8 check",
    "HTTP": "HTTP (hyper, http, httparse)",
    "tokio": "tokio",
    "routing core": "routing core: conversation, placement, accounts",
    "door": "the door's own code",
    "buffers": "`bytes`",
    "copies": "copies and comparisons of memory",
    "allocator": "allocator",
    "else": "else: the standard library, the C library",
}


def spending() -> str:
    """The table and what it was made with."""
    told = result(FILE)
    cases: dict[str, dict[str, Any]] = told["cases"]

    def row(name: str, cells: list[str]) -> str:
        return f"| {name} | {' | '.join(cells)} |"

    lines = [
        (
            f"`{told['command'].partition(' --json')[0]}`, commit `{told['commit']}`, [{FILE}](results/{FILE}); "
            f"{told['machine']['cpu']}, {told['machine']['cores']} cores{built(told['profile'])}{company(cases)}."
        ),
        "",
        row("native door", [HEADS[case] for case in cases]),
        row("---", ["---"] * len(cases)).replace(" ", ""),
        row("CPU in the kernel, µs", [f"{case['kernel_us']:,.0f}" for case in cases.values()]),
        row("CPU of its own, µs", [f"{case['own_us']:,.0f}" for case in cases.values()]),
        row(
            "instructions of its own, thousand",
            [f"{case['instructions'] / 1000:,.0f}" for case in cases.values()],
        ),
    ]
    for group, name in GROUPS.items():
        shares = [case["shares"].get(group, 0.0) for case in cases.values()]
        lines.append(row(f"… {name}", [f"{share:.0%}" for share in shares]))
    return "\n".join(lines)


def company(cases: dict[str, dict[str, Any]]) -> str:
    """How busy the machine was, which makes times longer and instructions no more."""
    loads = [case["load_average"] for case in cases.values() if "load_average" in case]
    return f"; load average at most {max(loads):.1f}" if loads else ""


def built(profile: dict[str, str]) -> str:
    """What of the build differed from the product's."""
    return (
        f"; built with {', '.join(f'`{name}={value}`' for name, value in profile.items())}" if profile else ""
    )
