"""What the last side by side run says against the project's aims, and its chart: read from bench/results/peers.json."""

from __future__ import annotations

from html import escape
from typing import Any

from readme_numbers import result

SIZES = ("1KB", "64KB", "512KB")
ABSENT = "not measured"
NAMES = {
    "nginx": "nginx (reads nothing)",
    "native": "ConServe, native door",
    "fastapi": "ConServe, FastAPI door",
    "sglang_manual": "sglang-router",
    "vllm_hash": "vllm-router",
    "native_pd": "ConServe, native door",
    "vllm_pd": "vllm-router P/D",
}
PANELS = [
    *((f"turn n, {size.replace('KB', ' KB')}", f"closed {size}", list(NAMES)[:5]) for size in SIZES),
    *(
        (f"P/D conversation, {size.replace('KB', ' KB')}", f"conversation {size}", list(NAMES)[5:])
        for size in SIZES
    ),
]


def judged(spread: dict[str, float] | None, aim: float | None, digits: int, *, least: bool = False) -> str:
    """Median, range and aim; an aim is the most that a value may be, or with `least` the least."""
    if spread is None:
        return ABSENT
    median, low, high = (f"{spread[key]:,.{digits}f}" for key in ("median", "least", "most"))
    if aim is None:
        return f"{median} ({low}–{high})"
    missed = spread["median"] < aim if least else spread["median"] > aim
    return f"{median} ({low}–{high}; aim {'≥' if least else '≤'} {aim:g}{', **missed**' if missed else ''})"


def scaled(spread: dict[str, float] | None, by: float) -> dict[str, float] | None:
    """The same in another unit."""
    return spread and {key: value * by for key, value in spread.items()}


def against_aims() -> str:
    """The table and the lines below it."""
    told = result("peers.json")
    paired, targets, memory = told["paired"], told["targets"], told["memory_mb"]

    def cell(target: str, case: str, key: str) -> dict[str, float] | None:
        spread: dict[str, float] | None = targets.get(target, {}).get(case, {}).get(key)
        return spread

    def row(what: str, case: str, aims: tuple[float, ...], digits: int) -> str:
        cells = [
            judged(paired.get(case.format(size=size)), aim, digits)
            for size, aim in zip(SIZES, aims, strict=True)
        ]
        return f"| {what} | {' | '.join(cells)} |"

    def median(target: str, case: str, key: str, by: float) -> str:
        spread = cell(target, case, key)
        return ABSENT if spread is None else f"{spread['median'] * by:,.{2 if by < 1 else 0}f}"

    def room(name: str, aim: float) -> str:
        if name not in memory:
            return ABSENT
        return f"+{memory[name]:,.1f} MB (aim {aim:g}" + (", **missed**)" if memory[name] > aim else ")")

    samples = {rows["closed 1KB"]["samples"] for name, rows in targets.items() if "closed 1KB" in rows} or {0}
    pd = {rows["conversation 1KB"]["samples"] for rows in targets.values() if "conversation 1KB" in rows} or {
        0
    }
    foreign = [row["foreign"]["median"] for rows in targets.values() for row in rows.values()]
    flat = ", ".join(
        f"{name} {cps['median'] / 1000:.0f}"
        for name, cps in ((name, cell(name, "flat", "cps")) for name in targets)
        if cps is not None
    )
    failures = [f"{name} ({why})" for name, why in told["failed"].items() if why != "no time left"]
    lines = [
        (
            f"`{told['command'].partition(' --json')[0]}`: {counted(samples)} ({counted(pd)} of P/D) on "
            f"{told['machine']['cores']} cores, commit `{told['commit']}`,"
        ),
        (
            f"[peers.json](results/peers.json). Strangers took {sorted(foreign)[len(foreign) // 2] * 100:.1f} % of the CPU (median of cells). "
            "Median and range of the ratios within a round:"
        ),
        "",
        "| native door | 1 KB | 64 KB | 512 KB |",
        "|---|---|---|---|",
        row("pinned turn, CPU against nginx", "closed {size}: native / nginx CPU", (2, 1.5, 1.5), 2),
        row(
            "pinned turn, CPU against vllm-router consistent_hash",
            "closed {size}: native / vllm_hash CPU",
            (0.4, 0.167, 0.143),
            3,
        ),
        row(
            "20-turn P/D conversation, CPU against vllm-router P/D",
            "conversation {size}: native_pd / vllm_pd CPU",
            (0.25, 0.1, 0.083),
            3,
        ),
        row("added p50 over direct, ms", "open {size}: native added p50 ms", (0.15, 0.3, 0.6), 2),
        "",
        (
            f"* 256 paced streams: {median('native', 'paced', 'done', 1)} of 256 kept; CPU per chunk, µs: "
            f"{judged(cell('native', 'paced', 'cpu_us'), 18, 1)}; "
            f"relay p99, ms: {judged(scaled(cell('native', 'paced', 'relay_p99'), 0.001), 1, 2)}, "
            f"direct {median('direct', 'paced', 'relay_p99', 0.001)}."
        ),
        f"* Flat out, thousand chunks/s: {flat}. What passes `direct` is limited by the load generator or the worker.",
        (
            f"* Memory: a 300 MB stream to a slow reader {room('slow_reader_mb', 8)}, 10,000 conversations "
            f"{room('conversations_10k_mb', 10)}, 1,000,000 {room('conversations_1m_mb', 200)}."
        ),
        (
            "* FastAPI door against naive FastAPI + httpx, times: requests/s at 1 KB "
            f"{judged(paired.get('closed 1KB: fastapi / naive rps'), 4, 1, least=True)}, at 64 KB "
            f"{judged(paired.get('closed 64KB: fastapi / naive rps'), 4, 1, least=True)}; chunks/s flat out "
            f"{judged(paired.get('flat: fastapi / naive cps'), 4, 0, least=True)}."
        ),
    ]
    if failures:
        lines.append(f"* Failed: {'; '.join(failures)}.")
    return "\n".join(lines)


def counted(samples: set[int]) -> str:
    """How many rounds the cells had."""
    least, most = min(samples), max(samples)
    said = str(least) if least == most else f"{least} to {most}"
    return f"{said} round" if (least, most) == (1, 1) else f"{said} rounds"


def chart() -> str:
    """The README's figure: CPU of each router for a turn, one panel a size; the line on a bar is the range."""
    told = result("peers.json")
    width, label, line, shut = 430, 170, 22, 34
    drawn: list[str] = []
    top = [58, 58]
    for place, (title, case, names) in enumerate(PANELS):
        side = place // len(SIZES)
        x, y = 10 + side * (width + 20), top[side]
        rows = [
            (name, told["targets"][name][case]["cpu_us"])
            for name in names
            if case in told["targets"].get(name, {})
        ]
        drawn += panel(title, rows, x, y, label, width)
        top[side] = y + len(rows) * line + shut
    machine = told["machine"]
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * width + 40}" height="{max(top)}" '
                'font-family="sans-serif" font-size="12">'
            ),
            f"<title>{escape(sentence(told))}</title>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            '<text x="10" y="22" font-size="15" font-weight="bold">CPU that a router spends on one turn, µs (less is better)</text>',
            (
                f'<text x="10" y="40" fill="#666666">between the same client and workers, {machine["cores"]} cores, commit {told["commit"]}; '
                "thin line: least and most of the rounds; each panel has its own scale</text>"
            ),
            *drawn,
            "</svg>\n",
        ]
    )


def panel(
    title: str, rows: list[tuple[str, dict[str, Any]]], x: int, y: int, label: int, width: int
) -> list[str]:
    """Bars of one case, the longest as wide as the panel allows."""
    room = width - label - 64
    longest = max((spread["most"] for _, spread in rows), default=1.0)
    drawn = [f'<text x="{x}" y="{y + 6}" font-weight="bold">{escape(title)}</text>']
    for place, (name, spread) in enumerate(rows):
        middle = y + 22 + place * 22
        least, median, most = (spread[key] / longest * room for key in ("least", "median", "most"))
        colour = "#1a7f64" if NAMES[name].startswith("ConServe") else "#a0a7b0"
        start = x + label
        drawn += [
            f'<text x="{start - 8}" y="{middle + 4}" text-anchor="end">{escape(NAMES[name])}</text>',
            f'<rect x="{start}" y="{middle - 8}" width="{median:.1f}" height="16" fill="{colour}"/>',
            f'<path d="M{start + least:.1f} {middle}H{start + most:.1f}" stroke="#222222" stroke-width="1"/>',
            f'<text x="{start + max(median, most) + 6:.1f}" y="{middle + 4}">{spread["median"]:,.0f}</text>',
        ]
    return drawn


def sentence(told: dict[str, Any]) -> str:
    """What the figure shows, for those who do not see it."""
    parts = []
    for title, case, names in PANELS:
        spent = [
            f"{NAMES[name]} {told['targets'][name][case]['cpu_us']['median']:,.0f}"
            for name in names
            if case in told["targets"].get(name, {})
        ]
        parts.append(f"{title}: {', '.join(spent)}")
    return "CPU per turn in µs. " + "; ".join(parts)


def caption() -> str:
    """The figure in Markdown."""
    return (
        "![CPU that each router spends on one turn, by size of the body](docs/assets/peers.svg)\n\n"
        "Each router between the same client and the same workers, in one run: [how](bench/README.md#side-by-side), "
        "[against its aims](bench/README.md#against-its-aims), [raw](bench/results/peers.json)."
    )
