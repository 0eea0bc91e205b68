from __future__ import annotations

from conserve.proxy.report import Report

PAGE = b"""# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.79600436e+09
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="32",cache_dtype="auto",num_gpu_blocks="63"} 1.0
"""


def test_a_page_is_read() -> None:
    assert Report.read(PAGE) == Report(1_796_004_360.0, 62, 32), "without the null block"


def test_what_is_not_told_is_none() -> None:
    assert Report.read(b"") == Report()
    assert Report.read(b'vllm:cache_config_info{num_gpu_blocks="None"} 1.0\n\xff') == Report()


def test_only_two_known_and_different_starts_are_a_restart() -> None:
    assert Report(1.0).restarted(Report(2.0))
    assert not Report(1.0).restarted(Report(1.0))
    assert not Report(None).restarted(Report(2.0))
    assert not Report(1.0).restarted(Report(None))


def test_numbers_without_end_are_not_read() -> None:
    page = b'vllm:cache_config_info{num_gpu_blocks="' + b"9" * 5000 + b'",block_size="16"} 1.0'
    assert Report.read(page) == Report(None, None, 16)
