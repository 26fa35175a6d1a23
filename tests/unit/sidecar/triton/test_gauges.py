"""What engines tell in Triton's metrics, and what is made of text that nobody's engine wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.triton.gauges import BYTES_MAX, EngineGauges, Gauges, read_gauges

TRTLLM = b"""\
# HELP nv_trt_llm_kv_cache_block_metrics TRT LLM KV cache block metrics
# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.25
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 250
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free",model="tensorrt_llm",version="1"} 750
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 1000
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 0
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 3
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 64
nv_inference_pending_request_count{model="tensorrt_llm",version="1"} 2
nv_inference_count{model="tensorrt_llm",version="1"} 900
nv_gpu_memory_total_bytes{gpu_uuid="GPU-1"} 85899345920
nv_gpu_memory_total_bytes{gpu_uuid="GPU-2"} 85899345920
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 1024
nv_gpu_memory_used_bytes{gpu_uuid="GPU-2"} 1024
"""
VLLM = b"""\
vllm:num_requests_running{engine="0",model_name="llama"} 2.0
vllm:num_requests_waiting{engine="0",model_name="llama"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="llama"} 0.125
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",model_name="llama",num_gpu_blocks="27904"} 1.0
"""


def test_a_tensorrt_llm_engine() -> None:
    engine = EngineGauges(1000, 250, 750, 64, active=3, pending=2)
    assert read_gauges(TRTLLM) == Gauges({"tensorrt_llm": engine}, 2 * 80 * 2**30, 2048)


def test_a_vllm_engine() -> None:
    found = read_gauges(VLLM)
    assert isinstance(found, Gauges)
    assert found.engines == {"llama": EngineGauges(27904, None, None, 16, 0.125, 3)}


def test_the_older_name_of_vllms_usage_counts_too_and_the_newer_one_first() -> None:
    old = read_gauges(b'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n')
    assert isinstance(old, Gauges)
    assert old.engines["m"].usage == 0.5
    both = read_gauges(b'vllm:gpu_cache_usage_perc{model="m"} 0.5\nvllm:kv_cache_usage_perc{model="m"} 0.25\n')
    assert isinstance(both, Gauges)
    assert both.engines["m"].usage == 0.25


def test_all_versions_of_a_model_are_counted_together() -> None:
    second = TRTLLM.replace(b'version="1"', b'version="2"').split(b"nv_gpu")[0]
    found = read_gauges(TRTLLM + second)
    assert isinstance(found, Gauges)
    assert found.engines["tensorrt_llm"] == EngineGauges(2000, 500, 1500, 64, active=6, pending=4)
    other = read_gauges(TRTLLM + second.replace(b"} 64", b"} 32"))
    assert isinstance(other, Gauges)
    assert other.engines["tensorrt_llm"].tokens_per_block is None


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"-1", b"1.5", b"1e300", b"9007199254740993"])
def test_a_number_that_counts_nothing_makes_what_it_is_about_unknown(value: bytes) -> None:
    found = read_gauges(TRTLLM.replace(b"} 1000\n", b"} " + value + b"\n"))
    assert isinstance(found, Gauges)
    engine = found.engines["tensorrt_llm"]
    assert (engine.max_blocks, engine.used_blocks) == (None, 250)


@pytest.mark.parametrize("value", [b"NaN", b"-0.1", b"1.01", b"+Inf"])
def test_a_usage_beyond_its_bounds_is_none(value: bytes) -> None:
    found = read_gauges(VLLM.replace(b"0.125", value))
    assert isinstance(found, Gauges)
    assert found.engines["llama"].usage is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (TRTLLM + TRTLLM.splitlines(keepends=True)[6], "line 17: nv_trt_llm_kv_cache_block_metrics tells one thing"),
        (b'nv_trt_llm_kv_cache_block_metrics{model="m" 5\n', "line 1: nv_trt_llm_kv_cache_block_metrics is no sample"),
        (b'nv_trt_llm_kv_cache_block_metrics{model="m",model="n"} 5\n', "is no sample of Prometheus text"),
        (b"nv_trt_llm_kv_cache_block_metrics{} five\n", "is no sample of Prometheus text"),
        (b"nv_gpu_memory_total_bytes 1 2 3\n", "is no sample of Prometheus text"),
        (b'nv_gpu_memory_total_bytes{gpu_uuid="\xff"} 1\n', "is no sample of Prometheus text"),
        (b'nv_gpu_memory_total_bytes{gpu_uuid="' + b"x" * 5000 + b'"} 1\n', "in more than 4096 bytes"),
        (b"".join(b'nv_gpu_memory_used_bytes{n="%d"} 1\n' % n for n in range(4097)), "more than 4096 series"),
        (b"x" * (BYTES_MAX + 1), "more than 8388608 bytes"),
    ],
    ids=["twice", "open braces", "a label twice", "no number", "too many numbers", "not text", "a long line", "many",
         "too large"],
)  # fmt: skip
def test_text_that_cannot_be_right_is_no_reading_at_all(text: bytes, why: str) -> None:
    found = read_gauges(text)
    assert isinstance(found, str)
    assert why in found


def test_a_label_may_hold_what_stands_between_labels() -> None:
    found = read_gauges(b'nv_inference_pending_request_count{model="a\\"},b\\\\",version="1"} 7 1700000000000\n')
    assert isinstance(found, Gauges)
    assert found.engines == {'a"},b\\': EngineGauges(pending=7)}


def test_what_is_idle() -> None:
    def idle(text: bytes) -> bool:
        found = read_gauges(text)
        assert isinstance(found, Gauges)
        return found.engines["m"].idle

    active = b'nv_trt_llm_request_metrics{model="m",request_type="active"} %d\n'
    pending = b'nv_inference_pending_request_count{model="m"} %d\n'
    assert idle(active % 0 + pending % 0)
    assert idle(active % 0)
    assert not idle(pending % 0), "a model that counts no requests may be at work on some"
    assert not idle(active % 1 + pending % 0)
    assert not idle(active % 0 + pending % 1)
    assert not idle(active % 0 + b'nv_trt_llm_kv_cache_block_metrics{model="m",kv_cache_block_type="used"} 1\n')


LINES = st.sampled_from(
    [line for line in (TRTLLM + VLLM).splitlines() if line]
    + [b"", b"nv_gpu_memory_used_bytes", b"{", b'"', b"\xff\x00"]
)


@given(st.lists(st.one_of(LINES, st.binary(max_size=80)), max_size=30), st.sampled_from([b"\n", b"\r\n", b" "]))
def test_whatever_the_bytes_it_ends_with_a_reading_or_why_not(lines: list[bytes], between: bytes) -> None:
    """Invariant: never an exception; what is told counts, in bounds."""
    found = read_gauges(between.join(lines))
    if isinstance(found, Gauges):
        for engine in found.engines.values():
            counts = (engine.max_blocks, engine.used_blocks, engine.active, engine.pending, engine.tokens_per_block)
            assert all(count is None or 0 <= count < 2**70 for count in counts)
            assert engine.usage is None or 0 <= engine.usage <= 1
