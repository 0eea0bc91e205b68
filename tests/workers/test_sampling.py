from __future__ import annotations

from collections import Counter

import torch

from conserve_workers.tiny.request import Sampling
from conserve_workers.tiny.sampling import make_generator, sample

LOGITS = torch.tensor([[1.0, 3.0, 2.0, -1.0]])


def draw(settings: Sampling, count: int = 400) -> Counter[int]:
    generator = make_generator(settings)
    return Counter(sample(LOGITS.clone(), [(settings, generator, frozenset())])[0] for _ in range(count))


def test_zero_temperature_takes_the_most_likely() -> None:
    assert draw(Sampling(temperature=0), 3) == {1: 3}
    assert make_generator(Sampling(temperature=0)) is None


def test_one_candidate_is_greedy_at_any_temperature() -> None:
    assert draw(Sampling(temperature=2, top_k=1), 3) == {1: 3}


def test_seed_repeats_and_another_seed_differs() -> None:
    def run(seed: int) -> list[int]:
        settings = Sampling(seed=seed)
        generator = make_generator(settings)
        return [sample(LOGITS.clone(), [(settings, generator, frozenset())])[0] for _ in range(50)]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_temperature_one_follows_the_distribution() -> None:
    counts = draw(Sampling(seed=3), 4000)
    expected = torch.softmax(LOGITS[0], -1).tolist()  # 0.089, 0.658, 0.242, 0.012
    assert all(abs(counts[token] / 4000 - expected[token]) < 0.03 for token in range(4))


def test_candidates_are_cut_by_count_mass_and_share() -> None:
    assert set(draw(Sampling(seed=1, top_k=2))) == {1, 2}
    assert set(draw(Sampling(seed=1, top_p=0.6))) == {1}, "the most likely alone has 0.658"
    assert set(draw(Sampling(seed=1, top_p=0.7))) == {1, 2}, "0.658 is short of 0.7, so one more stays"
    assert set(draw(Sampling(seed=1, min_p=0.3))) == {1, 2}, "0.3 * 0.658 = 0.197"


def test_banned_token_is_never_chosen_and_unknown_ones_do_not_matter() -> None:
    settings = Sampling(temperature=0)
    assert sample(LOGITS.clone(), [(settings, None, frozenset((1, 99)))]) == [2]


def test_rows_do_not_share_settings() -> None:
    greedy, banned = Sampling(temperature=0), Sampling(temperature=0)
    assert sample(LOGITS.repeat(2, 1), [(greedy, None, frozenset()), (banned, None, frozenset((1,)))]) == [
        1,
        2,
    ]
