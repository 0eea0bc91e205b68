"""What the log and `/v1/fleet` say of roles, over a router whose clock the test moves."""

from __future__ import annotations

import logging
from itertools import count

import pytest

from conserve import Decoder, ManualClock, Router, Worker
from conserve.proxy.roles import RoleLog, told


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="conserve.proxy.roles")
    return caplog


def fleet(clock: ManualClock, **options: str) -> Router:
    router = Router(policy="follow-kv", policy_options=options, clock=clock)
    for place in range(4):
        router.join(Worker(f"http://w{place}:8000", kv_blocks=10_000, name=f"w{place}"))
    return router


def work(router: Router, clock: ManualClock, ids: count[int], *, seconds: float, output_tokens: int) -> None:
    """One conversation after the other: 9,000 tokens in 0.3 s, then one more each 10 ms."""
    end_s = router.now_s + seconds
    while router.now_s < end_s:
        key = f"task-{next(ids)}"
        with router.turn(key, prompt_tokens=9_000) as turn:
            clock.advance(0.3)
            turn.handed_over()
            turn.first_token()
            clock.advance((output_tokens - 1) * 0.01)
            turn.finish(output_tokens=output_tokens, prompt_tokens=9_000, cached_tokens=0)
        router.close(key)
        router.tick()


def test_a_change_of_advice_is_one_line_with_its_terms(
    clock: ManualClock, log: pytest.LogCaptureFixture
) -> None:
    router, ids = fleet(clock), count()
    roles = RoleLog(router)
    roles.look()
    assert log.messages == [], "nothing was measured"
    work(router, clock, ids, seconds=200, output_tokens=400)
    roles.look()
    roles.look()
    (line,) = log.messages
    assert line.startswith("roles (advise): 0 workers only compute prompts; advice: 0 of 4 workers should")
    # 0.3 s of each 4.29 s are prompts, all of them movable.
    assert "prompts take 0.07 workers' time, 0.07 of it movable" in line
    work(router, clock, ids, seconds=200, output_tokens=11)
    roles.look()
    # 0.3 of 0.4 s: 0.75 > 0.6 is too much for one prefiller, and a gap of 1 / (1 - 0.75 / 4) is 1.23 times one without.
    assert "advice: 2 of 4 workers should" in log.messages[1]
    assert "1: not carried, 2: " in log.messages[1]
    assert router.snapshot().prefillers == 0, "it is advice"


def test_the_router_follows_its_advice_where_it_is_asked_to(
    clock: ManualClock, log: pytest.LogCaptureFixture
) -> None:
    router, ids = fleet(clock, roles="auto"), count()
    roles = RoleLog(router)
    work(router, clock, ids, seconds=170, output_tokens=11)
    assert router.snapshot().prefillers == 0, "not before three minutes"
    work(router, clock, ids, seconds=30, output_tokens=11)
    roles.look()
    assert log.messages[-1].startswith(
        "roles (auto): 1 workers only compute prompts; advice: 1 of 4 workers "
    )
    work(router, clock, ids, seconds=200, output_tokens=11)
    roles.look()
    assert len(log.messages) == 1, "it carries 0.75 workers' time, and is spared the rest where there is more"
    metrics = router.metrics()
    assert "conserve_acting_prefillers 1\n" in metrics
    assert "conserve_recommended_prefillers 1\n" in metrics
    with router.turn("next", prompt_tokens=9_000) as turn:
        assert turn.route.decoder_name != "w0", "it holds conversations when nobody else has room"


def test_without_measures_of_late_the_roles_are_those_that_were_given(
    clock: ManualClock, log: pytest.LogCaptureFixture
) -> None:
    router, ids = fleet(clock, roles="auto"), count()
    roles = RoleLog(router)
    work(router, clock, ids, seconds=250, output_tokens=11)
    roles.look()
    assert router.snapshot().prefillers == 1
    for _ in range(40):
        clock.advance(30)
        router.tick()
    roles.look()
    assert told(router.snapshot()) == {"mode": "auto", "prefillers": 0, "advice": None}
    assert log.messages[-1] == (
        "roles (auto): 0 workers only compute prompts; advice: none, too little was measured of late"
    )
    assert "\nconserve_recommended_prefillers " not in router.metrics()
    work(router, clock, ids, seconds=170, output_tokens=11)
    assert router.snapshot().prefillers == 0, "the measuring began anew"


def helping(router: Router) -> list[str]:
    return sorted(row.name for row in router.snapshot().workers if row.helps and row.health != "lost")


@pytest.mark.parametrize("places", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_in_whatever_order_workers_join_the_same_ones_help(
    clock: ManualClock, places: tuple[int, ...]
) -> None:
    router = Router(policy="follow-kv", policy_options={"prefillers": "1"}, clock=clock)
    for place in places:
        router.join(Worker(f"http://w{place}:8000", kv_blocks=10_000, name=f"w{place}"))
    assert helping(router) == ["w0"]
    with router.turn("next", prompt_tokens=9_000) as turn:
        assert turn.route.decoder_name in ("w1", "w2")
    router.close("next")
    router.drain("w0")
    assert helping(router) == ["w1"], "one that takes no new prompts cannot help"
    router.undrain("w0")
    assert helping(router) == ["w0"]
    router.lose("w0", reason="asked")
    assert helping(router) == ["w1"]


def test_who_holds_least_becomes_the_helper(clock: ManualClock) -> None:
    router, ids = fleet(clock, roles="auto"), count()
    with router.turn("kept", prompt_tokens=9_000) as turn:
        home = turn.route.decoder_name
        turn.first_token()
        turn.finish(output_tokens=1, prompt_tokens=9_000, cached_tokens=0)
    work(router, clock, ids, seconds=250, output_tokens=11)
    assert helping(router) == [min({"w0", "w1", "w2", "w3"} - {home})]


def test_only_workers_that_do_both_change(clock: ManualClock) -> None:
    router = Router(policy="follow-kv", policy_options={"roles": "auto"}, clock=clock)
    for place in range(4):
        router.join(Decoder(f"http://d{place}:8000", kv_blocks=10_000))
    work(router, clock, count(), seconds=400, output_tokens=11)
    assert told(router.snapshot())["prefillers"] == 0
    assert told(router.snapshot())["advice"]["prefillers"] == 0


def test_what_the_fleet_page_says_is_data(clock: ManualClock) -> None:
    router = fleet(clock)
    assert told(router.snapshot()) == {"mode": "advise", "prefillers": 0, "advice": None}
    work(router, clock, count(), seconds=200, output_tokens=11)
    page = told(router.snapshot())
    assert (page["advice"]["prefillers"], page["advice"]["prefillers_now"], page["advice"]["workers"]) == (
        2,
        0,
        4,
    )
    assert page["advice"]["gaps_ms"][1] is None
    assert len(page["advice"]["gaps_ms"]) == 4
    assert page["advice"]["tokens_per_s"] == pytest.approx(11 / 0.4, rel=0.05)
    assert page["advice"]["prompt_workers"] == pytest.approx(0.75, rel=0.05)
