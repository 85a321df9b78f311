"""From calls to a step: who answers, what happens where nobody does, intervals, gaps and memory."""

import json
import math
from dataclasses import dataclass

import pytest
from example_configs import DEEPSEEK_V3, LLAMA_8B, MIXTRAL_8X7B, QWEN3_NEXT_80B

from kerncast.core.device import NOT_MEASURED, Device
from kerncast.errors import InvalidValue, NotFound
from kerncast.estimating.calls import KERNEL_NS, roofline_of
from kerncast.estimating.decoder import checked_deployment, checked_workload
from kerncast.estimating.reading import read_decoder
from kerncast.estimating.result import Comparison
from kerncast.estimating.totals import estimated
from kerncast.library import devices

H200 = devices.get("h200")


@dataclass(frozen=True)
class Answer:
    time_ns: float | None = 1_000_000.0
    lower_ns: float | None = 900_000.0
    upper_ns: float | None = 1_200_000.0
    basis: str = "model"
    model: str | None = "gemm/library@h200"
    software: str | None = "vllm==0.24.0"
    reason: str = ""
    note: str = ""


def always(op, problems):
    return [Answer() for _ in problems]


def never(op, problems):
    raise NotFound(f"there is no {op}; see the docs")


def step(config, ask=always, device=H200, tp=1, ep=None, phase="decode", batch=4, context=1000, new_tokens=None, **options):
    decoder = read_decoder(config)[0]
    spread, work = checked_deployment(decoder, tp, ep), checked_workload(phase, batch, context, new_tokens)
    return estimated(decoder, spread, work, device, ask, **options)


def test_times_are_those_of_the_answers():
    """A row is its calls times the answer; the rows add up to the step, and the shares to one."""
    found = step(LLAMA_8B)
    rows = {row.name: row for row in found.rows}
    assert (rows["qkv"].time_ns, rows["qkv"].lower_ns, rows["qkv"].upper_ns) == (32e6, 28.8e6, 38.4e6)
    assert (rows["qkv"].basis, rows["qkv"].software, rows["norm"].basis) == ("model", "vllm==0.24.0", "roofline")
    assert found.step_ns == pytest.approx(sum(row.time_ns for row in found.rows))
    assert sum(row.share for row in found.rows) == pytest.approx(1)
    assert found.tokens_per_s == pytest.approx(4 / found.step_ns * 1e9)
    assert sum(found.basis_share.values()) == pytest.approx(1)


def test_intervals_of_one_op_add_up_and_those_of_others_as_squares():
    """A model errs in the same direction for all its shapes; different ops err independently."""
    found = step(LLAMA_8B)
    gemm = sum(row.upper_ns - row.time_ns for row in found.rows if row.op == "gemm")
    attention = sum(row.upper_ns - row.time_ns for row in found.rows if row.op == "attention_generation")
    others = sum(row.upper_ns - row.time_ns for row in found.rows if row.op is None)
    assert found.upper_ns == pytest.approx(found.step_ns + math.hypot(gemm, attention, others))
    assert 0 < found.lower_ns < found.step_ns


def test_what_no_model_covers_is_named_and_never_dropped():
    """Without any model every call has its roofline, the same calls are listed, and the notes say why."""
    known, unknown = step(DEEPSEEK_V3, tp=8), step(DEEPSEEK_V3, never, tp=8)
    assert [row.name for row in known.rows] == [row.name for row in unknown.rows]
    assert {row.basis for row in unknown.rows} == {"roofline"}
    assert all(row.time_ns > 0 and row.lower_ns < row.time_ns < row.upper_ns for row in unknown.rows)
    text = repr(unknown)
    assert "moe: by roofline (there is no moe)" in text
    assert "for no model covers them: embedding; norm" in text


def test_one_problem_that_an_op_refuses_costs_the_others_nothing():
    """A list that is refused is asked again one by one."""

    def picky(op, problems):
        if any(problem.get("N") == 128256 for problem in problems):
            raise InvalidValue("N is too large")
        return [Answer() for _ in problems]

    rows = {row.name: row for row in step(LLAMA_8B, picky).rows}
    assert (rows["qkv"].basis, rows["lm_head"].basis, rows["lm_head"].reason) == ("model", "roofline", "N is too large")


def test_communication_between_nodes_is_not_answered_with_the_links_of_one_node():
    """By the profile's own number it is slower; without one it is left out, and the estimate says so."""
    asked = []

    def noted(op, problems):
        asked.extend(problem["gpus"] for problem in problems if "gpus" in problem)
        return [Answer() for _ in problems]

    within, between = step(DEEPSEEK_V3, noted, tp=8), step(DEEPSEEK_V3, noted, tp=16)
    assert set(asked) == {8}
    sums = {row.name: row for row in between.rows}["all_reduce after attention"]
    assert sums.basis == "roofline"
    assert "16 GPUs are more than a node has" in sums.reason
    assert sums.call_ns > {row.name: row for row in within.rows}["all_reduce after attention"].call_ns
    slow = step(DEEPSEEK_V3, lambda op, problems: [Answer(50_000.0) for _ in problems], tp=16)
    assert {row.name: row for row in slow.rows}["all_reduce after attention"].call_ns > 50_000  # no faster than one node alone
    numbers = {name: value for name, value in H200.numbers.items() if name != "node_bandwidth_gb_s"}
    bare = Device("bare", "bare", "gpu", numbers, H200.peak_tflops)
    silent = step(DEEPSEEK_V3, noted, tp=16, device=bare)
    assert not [row.name for row in silent.rows if row.name.startswith("all_reduce")]
    assert "communication between nodes (all_reduce of the embedding, all_reduce after attention" in repr(silent)
    assert "the profile of bare has no node_bandwidth_gb_s" in repr(silent)
    rack = Device("rack", "rack", "gpu", {**H200.numbers, "node_devices": 72}, H200.peak_tflops)
    asked.clear()
    step(DEEPSEEK_V3, noted, tp=16, device=rack)
    assert set(asked) == {16}


def test_a_bare_floor_is_not_taken_for_a_time():
    """An answer that is the peak rates' floor without an interval says less than the roofline here."""
    floor = Answer(1.0, None, None, "roofline", None, None, "there is no model; the time is the roofline itself")
    rows = {row.name: row for row in step(LLAMA_8B, lambda op, problems: [floor for _ in problems]).rows}
    assert rows["qkv"].call_ns > KERNEL_NS
    assert rows["qkv"].reason == "there is no model"
    missed = Answer(12_000.0, 5_000.0, 70_000.0, "roofline", None, None, "no model")
    eight_bits = {**LLAMA_8B, "quantization_config": {"quant_method": "fp8"}}
    rows = {row.name: row for row in step(eight_bits, lambda op, problems: [missed for _ in problems]).rows}
    assert rows["qkv"].call_ns == 12_000.0
    assert rows["quantise for qkv"].call_ns < 3_000.0
    extrapolated = Answer(50_000.0, None, None)
    rows = {row.name: row for row in step(LLAMA_8B, lambda op, problems: [extrapolated for _ in problems]).rows}
    assert rows["qkv"].call_ns == 50_000.0
    assert rows["qkv"].lower_ns < rows["qkv"].time_ns < rows["qkv"].upper_ns


def test_weights_and_keys_are_read_from_memory_whatever_a_table_had_in_its_cache():
    """A step reads 16 GB of weights: no product and no attention is faster than the memory, whatever a table says."""
    device = devices.get("l40s")
    found = step(LLAMA_8B, lambda op, problems: [Answer(1_000.0, 900.0, 1_100.0) for _ in problems], device)
    rows = {row.name: row for row in found.rows}
    bandwidth = device.numbers["memory_bandwidth_gb_s"]
    assert rows["qkv"].call_ns == pytest.approx(6144 * 4096 * 2 / bandwidth)
    assert rows["qkv"].lower_ns == rows["qkv"].time_ns < rows["qkv"].upper_ns
    keys = 4 * 1000 * 2 * 8 * 128 * 2
    assert rows["attention"].call_ns == pytest.approx(keys / bandwidth, rel=0.01)
    assert found.step_ns > found.memory.weights_bytes / bandwidth * 0.9
    assert sum("from memory" in note for note in found.notes) == 2
    slower = step(LLAMA_8B, lambda op, problems: [Answer(2e6, 1.9e6, 2.1e6) for _ in problems], device)
    assert not any("from memory" in note for note in slower.notes)


def test_experts_may_be_faster_than_all_their_weights():
    """Which experts a batch hits is an expectation, so their answer is taken as it is."""
    rows = step(MIXTRAL_8X7B, lambda op, problems: [Answer(1_000.0, 900.0, 1_100.0) for _ in problems]).rows
    assert [row.call_ns for row in rows if row.op == "moe"] == [1_000.0]


def test_warnings_of_models_are_passed_on():
    """What a model says about its software or its range is said once, and models of different servers are told."""

    def mixed(op, problems):
        server = "vllm==0.24.0" if op == "gemm" else "trtllm==1.3"
        return [Answer(software=server, note="the model is of another version", reason="out of range") for _ in problems]

    text = repr(step(LLAMA_8B, mixed))
    assert text.count("the model is of another version") == 1
    assert text.count("gemm: out of range") == 1
    assert "the models are of different software (trtllm==1.3, vllm==0.24.0): name one with `software`" in text


def test_a_model_of_ones_own_is_named_and_what_is_said_of_some_ops_names_them():
    """A device of which one has rows of one op is not measured for the others alone; communication has no server."""

    def own(op, problems):
        if op == "gemm":
            return [Answer(software=None, model="gemm/library/mine") for _ in problems]
        also = "; there are also models of sglang==0.5: name one with `software`" if op == "all_reduce" else ""
        return [Answer(note=f"mine {NOT_MEASURED}{also}") for _ in problems]

    found = step(LLAMA_8B, own, tp=2)
    assert "by model (gemm/library/mine, vllm==0.24.0)" in repr(found)
    (said,) = [note for note in found.notes if NOT_MEASURED in note]
    assert set(said.partition(":")[0].split(", ")) == {"all_reduce", "attention_generation", "all_gather"}
    assert "sglang" not in repr(found)


def test_a_model_that_did_not_answer_does_not_make_a_device_unmeasured():
    """A row by roofline may say that its model knows the device by its profile only."""
    vague = Answer(None, None, None, "none", None, None, f"h200 {NOT_MEASURED}")
    assert step(LLAMA_8B, lambda op, problems: [vague if op == "gemm" else Answer() for _ in problems]).measured
    assert not step(LLAMA_8B, lambda op, problems: [Answer(note=f"h200 {NOT_MEASURED}") for _ in problems]).measured


def test_gaps_between_launches_are_added_without_graphs():
    """A kernel shorter than the time between launches leaves the GPU waiting; and only one of the two says so."""
    graphs, one_by_one = step(LLAMA_8B), step(LLAMA_8B, launch_ns=5000.0)
    gaps = one_by_one.rows[-1]
    assert gaps.name == "launch gaps"
    assert gaps.time_ns == pytest.approx(sum(row.calls * max(0, 5000 - row.call_ns) for row in graphs.rows))
    assert one_by_one.step_ns == pytest.approx(graphs.step_ns + gaps.time_ns)
    assert any("gaps" in text for text in graphs.left_out)
    assert not any("gaps" in text for text in one_by_one.left_out)


def test_several_tokens_are_several_steps():
    """Of 101 tokens the middle one is estimated, and the total is 101 times that."""
    found = step(LLAMA_8B, context=1000, new_tokens=101)
    attention = next(row for row in found.rows if row.op == "attention_generation")
    assert attention.problem["context_len"] == 1050
    assert found.total_ns == pytest.approx(101 * found.step_ns)
    assert "101 steps" in found.headline


def test_memory_counts_weights_and_cache():
    """bf16 weights are two bytes each, and the cache holds keys and values of all layers; too much is said."""
    found = step(LLAMA_8B, batch=64, context=4096).memory
    assert found.weights_bytes == 2 * 8_030_261_248
    assert found.cache_bytes == 2 * 32 * 64 * 4096 * 8 * 128 * 2
    assert found.fits
    large = step(MIXTRAL_8X7B, device=devices.get("l40s"))
    assert large.memory.fits is False
    assert "DOES NOT FIT" in repr(large)
    latent = step(DEEPSEEK_V3, batch=10, context=100).memory
    assert latent.cache_bytes == 61 * 10 * 100 * 576 * 2
    window = {**LLAMA_8B, "model_type": "mistral", "sliding_window": 128}
    assert step(window, batch=64, context=4096).memory.cache_bytes == found.cache_bytes / 32
    # 36 layers of states in fp32 and three tokens of the convolution, however long the context; 12 with a cache.
    linear = step(QWEN3_NEXT_80B, batch=10, context=100).memory
    states = 32 * 128 * 128 * 4 + 3 * 8192 * 2
    assert linear.cache_bytes == 10 * (36 * states + 12 * 100 * 2 * 2 * 256 * 2)
    # DeepSeek in blocks of fp8: a byte for each weight but embeddings, routers and norms.
    assert latent.weights_bytes == pytest.approx(671e9 + 2 * 129280 * 7168, rel=0.01)


def test_rooflines_of_single_calls():
    """By hand: a norm of 4 matrices at 80 % of 4.8 TB/s and 2 us; a profile without bandwidth is refused."""
    found = step(LLAMA_8B, never, batch=1, context=1_000_000, phase="prefill")
    norm = next(row for row in found.rows if row.name == "norm")
    assert norm.call_ns == pytest.approx(2000 + 4 * 1_000_000 * 4096 * 2 / 4800 / 0.8)
    bare = Device("bare", "no numbers", "gpu")
    with pytest.raises(InvalidValue, match="bare has no memory_bandwidth_gb_s"):
        step(LLAMA_8B, never, device=bare)
    slow = Device("slow", "no peak rates", "gpu", numbers={"memory_bandwidth_gb_s": 100.0})
    row = next(row for row in step(LLAMA_8B, never, device=slow, tp=2).rows if row.name == "qkv")
    assert row.reason.endswith("the profile has no peak rate of bf16, which is left out")
    assert row.call_ns == pytest.approx(2000 + (4 * 4096 + 4096 * 3072 + 4 * 3072) * 2 / 100 / 0.8)


def test_more_work_never_takes_less_time_by_roofline():
    """Batch, context and prompt only add."""
    for what, phase in (("batch", "decode"), ("context", "decode"), ("context", "prefill")):
        times = [step(DEEPSEEK_V3, never, phase=phase, **{what: size}).step_ns for size in (1, 2, 64, 1000, 100_000)]
        assert times == sorted(times)


def test_results_print_themselves():
    """JSON without NaN, a table with every row, HTML whose texts are escaped."""
    hostile = {**LLAMA_8B, "_name_or_path": "<b>\x1b[2J\n&'\""}
    found = step(hostile, tp=2)
    document = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert document["step_ns"] == found.step_ns
    assert len(document["rows"]) == len(found.rows)
    assert "\x1b" not in repr(found)
    assert "<b>" not in found._repr_html_()
    assert all(row.name in repr(found) for row in found.rows)
    both = Comparison((found, step(hostile, tp=2, device=devices.get("a100"))), {"bare": "has no bandwidth"})
    assert "a100" in repr(both)
    assert "bare: has no bandwidth" in repr(both)
    assert len(both.as_json()["estimates"]) == 2
    assert "<b>" not in both._repr_html_()


def test_a_roofline_call_of_a_collective_needs_the_link():
    """With the link's bandwidth known, a large message takes at least what it sends over the link."""
    from kerncast.estimating.calls import collective

    call = collective("sum", 1, "all_reduce", 10**9, 8, "bf16")
    assert call.link_bytes == 2 * 2e9 * 7 / 8
    assert roofline_of(call, H200).floor_ns == pytest.approx(call.link_bytes / H200.numbers["link_bandwidth_gb_s"])
