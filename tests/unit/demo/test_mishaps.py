"""What did not go as planned is found in the router's counters and in the logs, and the logs are kept for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from conserve.demo import Options
from conserve.demo.check import broken_promises
from conserve.demo.cluster import worker_spec
from conserve.demo.mishaps import mishaps, warnings
from conserve.demo.report import Report
from conserve.demo.run import with_logs
from tests.unit.demo.samples import COMPUTED, conversation, fleet


def test_plain_run_has_none() -> None:
    assert not list(mishaps([conversation(1)], fleet(COMPUTED, handoffs_recomputed=0, requests_refused=1)))


def test_recomputed_handoff_is_a_mishap_and_a_broken_promise() -> None:
    seen = fleet(COMPUTED, handoffs_recomputed=2)
    (told,) = mishaps([conversation(1)], seen)
    assert told.endswith("because the decoder could not load the KV: twice (handoffs_recomputed)")
    assert told in list(broken_promises([conversation(1)], seen))


def test_relocation_names_the_decoders() -> None:
    moved = conversation(3, relocations=1, decoders=("d0", "d1"))
    assert list(mishaps([moved], fleet(COMPUTED))) == ["conversation task-3 was relocated once: d0, then d1"]


def test_logs_are_kept_with_their_warnings_only_after_a_mishap(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "d0.log").write_text(
        "10:00 INFO x: fine\n10:01 WARNING x: handoff of request 7 failed: timed out\n"
    )
    plain = Report(model="random", conversations=(conversation(1),), fleet=fleet(COMPUTED), elapsed_s=1.0)
    kept = with_logs(replace(plain, mishaps=("a handoff failed",)), logs)
    assert (kept.logs, kept.warnings) == (
        logs,
        ("d0: 10:01 WARNING x: handoff of request 7 failed: timed out",),
    )
    assert with_logs(plain, logs).logs is None
    assert not logs.exists()


def test_warnings_are_few(tmp_path: Path) -> None:
    (tmp_path / "d0.log").write_text("10:01 ERROR x: no\n" * 100)
    assert len(warnings(tmp_path)) == 6


def test_workers_wait_for_a_handoff_as_long_as_the_router_for_them(tmp_path: Path) -> None:
    argv = worker_spec("d0", "decoder", Options(workdir=tmp_path), kv_blocks=128).argv
    assert argv[argv.index("--handoff-timeout-s") + 1] == "600"
