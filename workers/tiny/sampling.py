"""Choose the next token of each row of logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from conserve_workers.tiny.request import Sampling

_NEVER = float("-inf")


def sample(
    logits: Tensor, rows: Sequence[tuple[Sampling, torch.Generator | None, frozenset[int]]]
) -> list[int]:
    """One token for each row; a row is its settings, its generator (unused when greedy) and the tokens it must not take."""
    logits = logits.float()
    for number, (_settings, _generator, banned) in enumerate(rows):
        usable = [token for token in banned if token < logits.shape[1]]
        if usable:
            logits[number, usable] = _NEVER
    greedy = logits.argmax(-1).tolist()
    return [
        greedy[number] if generator is None else _draw(logits[number].cpu(), settings, generator)
        for number, (settings, generator, _banned) in enumerate(rows)
    ]


def _draw(logits: Tensor, settings: Sampling, generator: torch.Generator) -> int:
    probabilities = torch.softmax(logits / settings.temperature, -1)
    if settings.min_p > 0:
        probabilities[probabilities < settings.min_p * probabilities.max()] = 0
    ordered, tokens = probabilities.sort(descending=True, stable=True)
    if settings.top_k > 0:
        ordered[settings.top_k :] = 0
    if settings.top_p < 1:
        # A token stays while the mass before it is short of top_p, so the first always stays.
        ordered[ordered.cumsum(-1) - ordered >= settings.top_p] = 0
    return int(tokens[torch.multinomial(ordered, 1, generator=generator)])


def make_generator(settings: Sampling) -> torch.Generator | None:
    """A generator for one request, or None when it is greedy."""
    if settings.temperature < 1e-5 or settings.top_k == 1:
        return None
    generator = torch.Generator()
    if settings.seed is None:
        generator.seed()
    else:
        generator.manual_seed(settings.seed)
    return generator
