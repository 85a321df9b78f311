"""What the shipped models answer: every GPU with a profile, types that stand for each other, kernels of the op alone."""

import json
from dataclasses import replace

import pytest
from example_configs import LLAMA_8B

import kerncast
from kerncast.answering.query import Query
from kerncast.answering.routes import Address, in_store
from kerncast.app.api.predict import predict_everywhere
from kerncast.errors import NotFound
from kerncast.estimating.calls import COLLECTIVES
from kerncast.library import devices
from kerncast.models.store.entry import shipped_entries
from kerncast.models.store.store import Store

GEMM = {"M": 4096, "N": 4096, "K": 4096}
EXPERTS = {"tokens": 64, "hidden": 2048, "inter": 768, "top_k": 8, "experts": 128, "dtype": "bf16"}


@pytest.fixture
def empty(tmp_path):
    return Store.open(tmp_path / "store")


def test_every_gpu_with_a_profile_is_answered_by_a_model_or_says_why_not(empty):
    """Data sheets have the numbers that models read, of boards that nobody measured too."""
    by_roofline = {}
    for device in devices.profiles().values():
        if device.kind != "gpu":
            continue
        dtype = "bf16" if "bf16" in device.peak_tflops else "fp16"
        found = kerncast.predict("gemm", {**GEMM, "dtype": dtype}, device=device.name, store=empty)
        assert found.time_ns >= found.roofline_ns * 0.9, device.name
        if found.basis != "model":
            by_roofline[device.name] = found.reason
    assert all("too wide to be of use" in why for why in by_roofline.values()), by_roofline
    assert not {"a10", "b100", "gh200", "gh200_144gb", "h20", "l4", "v100"} & set(by_roofline)


def test_fp16_and_bf16_stand_for_each_other(empty):
    """The answer is that of the twin, says so, and is about the type that was asked for; a device may have but one of them."""
    half, brain = (kerncast.predict("gemm", {**GEMM, "dtype": name}, device="h100", store=empty) for name in ("fp16", "bf16"))
    assert (half.time_ns, half.taken, half.problem["dtype"]) == (brain.time_ns, {"dtype": "bf16"}, "fp16")
    assert "dtype=fp16 is answered as bf16" in half.reason
    assert ("taken as", "dtype=bf16") in half.lines()
    assert half.as_json()["taken"] == {"dtype": "bf16"}
    assert not brain.taken
    assert "bf16" not in devices.get("v100").peak_tflops
    assert kerncast.predict("gemm", {**GEMM, "dtype": "fp16"}, device="v100", store=empty).taken == {"dtype": "bf16"}
    for kind in COLLECTIVES:
        found = kerncast.predict(kind, {"elements": 2**20, "gpus": 4, "dtype": "bf16"}, device="h100", store=empty)
        assert found.basis == "model", kind
    apart = kerncast.predict("gemm", {**GEMM, "dtype": "fp32"}, device="h100", store=empty)
    assert not apart.taken
    odd = [{**GEMM, "N": 1001, "dtype": name} for name in ("fp16", "bf16")]  # unlike all measured ones, but in their range
    half, brain = (kerncast.predict("gemm", item, device="h100", software="trtllm", store=empty) for item in odd)
    assert (half.time_ns, half.status, half.basis) == (brain.time_ns, brain.status, brain.basis)
    assert (brain.status, brain.basis) == ("out_of_range", "model")


def test_what_is_larger_than_all_that_was_measured_is_answered_in_parts(empty):
    """Rows, columns and tokens of experts are as long as their parts together, wherever one asks; the answer says so."""
    large = {**GEMM, "M": 40_000, "dtype": "bf16"}
    whole, part = (kerncast.predict("gemm", {**large, "M": rows}, device="h100", store=empty) for rows in (40_000, 20_224))
    assert (whole.status, whole.basis, whole.parts, whole.problem["M"]) == ("ok", "model", {"M": 20_224}, 40_000)
    assert whole.time_ns == pytest.approx(part.time_ns * 40_000 / 20_224)
    assert whole.lower_ns / whole.time_ns < 0.9 * part.lower_ns / part.time_ns
    assert whole.upper_ns / whole.time_ns > 1.1 * part.upper_ns / part.time_ns
    assert "M=40,000 is more than shipped/gemm-trtllm saw: 2 parts of 20,224, added" in whole.reason
    assert ("in parts", "M=20224 (their times are added)") in whole.lines()
    assert not part.parts
    reply = json.loads(Query(in_store(empty)).answer(json.dumps({"op": "gemm", "device": "h100", **large})))
    assert (reply["time_ns"], reply["parts"]) == (whole.time_ns, {"M": 20_224})
    mixed = [{**large, "dtype": "fp16"}, {**GEMM, "dtype": "bf16"}, {**large, "N": 151_936, "M": 64}, {**large, "K": 512}]
    twin, small, wide, shallow = kerncast.predict("gemm", mixed, device="h100", store=empty)
    assert (twin.parts, twin.taken, twin.time_ns) == (whole.parts, {"dtype": "bf16"}, whole.time_ns)
    assert (small.parts, wide.parts) == ({}, {"N": 50_688})
    assert (shallow.basis, shallow.status, shallow.parts) == ("roofline", "out_of_range", {})  # its parts take longer
    experts = kerncast.predict("moe", {**EXPERTS, "tokens": 100_000}, device="h100", software="trtllm", store=empty)
    assert (experts.basis, list(experts.parts)) == ("model", ["tokens"])
    step = kerncast.estimate(
        LLAMA_8B, device="h100", batch=10, context=4000, phase="prefill", software="trtllm", store=empty, progress=False
    )
    asked = next(row for row in step.rows if row.name == "o")
    assert asked.call_ns == kerncast.predict("gemm", dict(asked.problem), device="h100", software="trtllm", store=empty).time_ns


def test_a_kernel_that_computes_something_else_is_never_chosen(empty):
    """TensorRT-LLM's experts without a gate are faster than those with one; int8 is not bf16."""
    found = kerncast.predict("gemm", {**GEMM, "M": 16_384, "dtype": "bf16"}, device="a100", software="trtllm", store=empty)
    assert found.config == {"kernel_source": "torch_flow"}
    for device in ("a100", "h100", "h200", "l40s"):
        found = kerncast.predict("moe", EXPERTS, device=device, software="trtllm", store=empty)
        assert found.config is None or "nongated" not in found.config["kernel_source"], device
    named = kerncast.predict(
        "moe", EXPERTS, device="h100", software="trtllm", store=empty, config={"kernel_source": "moe_torch_flow_nongated"}
    )
    assert named.basis == "roofline"
    assert "computes experts without a gate" in named.reason


STATES = {"k_heads": 16, "v_heads": 16, "k_dim": 128, "v_dim": 128, "dtype": "bf16", "batch": 8}


@pytest.mark.parametrize("software", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("device", ["b200", "h200", "l40s"])
def test_linear_attention_is_answered_by_kernels_of_its_kind_and_phase(empty, device, software):
    """None of generation for a prompt, none of GDN for KDA, none that convolves as well; if none is left, a roofline."""
    of_kind = {"gdn": "gated_delta_rule", "kda": "kda"}
    for kind, word in of_kind.items():
        for phase, length in (("context", 512), ("generation", 1), ("verify", 4)):
            asked = {**STATES, "kind": kind, "phase": phase, "seq_len": length}
            found = kerncast.predict("linear_attention", asked, device=device, software=software, store=empty)
            assert found.time_ns is not None
            if found.basis == "model":
                path = found.config["kernel_source"]
                assert word in path or path == "fused_sigmoid_gating_delta_rule_update", (kind, phase)
                assert path.startswith(("chunk", "flash")) == (phase == "context"), (kind, phase)
                assert path not in ("fused_kda_decode", "kda_fused_decode", "fused_kda_decode_mtp_dspark")
            else:
                assert (kind, software) == ("kda", "trtllm") or phase == "verify", (kind, phase)


def test_of_models_with_as_many_rows_the_better_one_answers_and_a_whole_model_is_of_one_server(empty):
    """The order of names decides nothing; the ops of a step come from the server whose products were asked about first."""
    entries = shipped_entries("gemm")
    ranked = sorted(entries, key=lambda entry: (-entry.record.rows, entry.record.mape))
    assert [entry.id for entry in entries] == [entry.id for entry in ranked]
    found = kerncast.predict("gemm", {**GEMM, "dtype": "bf16"}, device="h100", store=empty)
    assert found.model == entries[0].id
    step = kerncast.estimate(LLAMA_8B, device="h100", tp=2, batch=4, context=1000, store=empty, progress=False)
    of = {row.software for row in step.rows if row.basis == "model" and row.op != "all_gather"}
    assert of == {found.software}


def test_a_config_that_is_named_is_asked_of_a_model_that_has_seen_it(empty):
    """Another server's kernel is answered by that server's model; one that nobody ran on the device says so."""
    problem = {**GEMM, "dtype": "bf16"}
    linear = {"kernel_source": "torch.nn.functional.linear"}
    found = kerncast.predict("gemm", problem, device="h100", store=empty, config=linear)
    assert (found.status, found.model, found.config) == ("ok", "shipped/gemm-vllm", linear)
    strange = kerncast.predict("gemm", problem, device="h100", store=empty, config={"kernel_source": "vllm_default"})
    assert strange.status == "out_of_range"
    assert strange.reason.endswith("only, got vllm_default: nothing like it was measured")


def test_a_profile_with_the_name_of_a_measured_device_but_fewer_numbers_gets_its_roofline(empty):
    """It is a device of its own: never an error, and never the answer of its namesake."""
    bare = replace(devices.get("h100"), numbers={"memory_bandwidth_gb_s": 1000.0}, peak_tflops={"bf16": 100.0})
    found = kerncast.predict("gemm", {**GEMM, "dtype": "bf16"}, device=bare, store=empty)
    assert (found.basis, found.status) == ("roofline", "out_of_range")
    assert found.roofline_ns == pytest.approx(2 * 4096**3 / 100e3)


def test_software_that_no_model_is_of_is_said_on_every_device(empty):
    """All devices answer as one alone does; a family without models is named."""
    everywhere = predict_everywhere("gemm", {**GEMM, "dtype": "bf16"}, software="sparkle", family=None, store=empty)
    assert len(everywhere) >= 9
    assert all("not on sparkle" in item.note for item in everywhere)
    with pytest.raises(NotFound, match="no model of gemm in the family cpu"):
        predict_everywhere("gemm", {**GEMM, "dtype": "bf16"}, software=None, family="cpu", store=empty)
    with pytest.raises(NotFound, match="or name the device"):
        in_store(empty)(Address("gemm"))


def test_a_roofline_of_one_measured_device_names_it():
    """Mixed products were measured on the A100 alone: the reason says so, not "on 1 devices"."""
    found = kerncast.predict(
        "mixed_mm", {"M": 64, "N": 4096, "K": 4096, "dtype": "fp16", "b_dtype": "int4", "layout": "rcr"}, device="h200"
    )
    assert found.basis == "roofline"
    assert found.reason.endswith("of this size take on a100")


def test_more_gpus_than_a_node_has_are_answered_with_a_note():
    """Some tables have nodes of more GPUs than the device asked about: the answer says what it takes for granted."""
    message = {"elements": 1_000_000, "dtype": "bf16"}
    inside, across = kerncast.predict("all_reduce", [{**message, "gpus": 8}, {**message, "gpus": 16}], device="h100")
    assert (inside.basis, across.basis) == ("model", "model")
    assert "one node" not in inside.note
    assert across.note.startswith("a node of h100 has 8 devices: 16 are answered as if they were in one node")


def test_a_model_of_several_devices_answers_for_the_one_that_a_request_names(tmp_path):
    """Given or in a store, and a request that names none is told which there are."""
    model = kerncast.open("shipped/mla_bmm-vllm")
    store = Store.open(tmp_path)
    store.add(model)
    problem = {"tokens": 1024, "heads": 32, "stage": "pre", "dtype": "bf16"}
    for where in ({"model": model, "compiled": False}, {"store": store}):
        for device in ("h100", "b200"):
            reply = kerncast.predict({"op": "mla_bmm", "device": device, **problem}, progress=False, **where)
            assert reply["time_ns"] == model.predict(problem, device=device).time_ns
        reply = kerncast.predict({"op": "mla_bmm", **problem}, progress=False, **where)
        assert reply["status"] == "no_model"
        assert "h100" in reply["message"]


@pytest.mark.needs("a C compiler")
def test_a_model_of_an_op_with_products_compiles_and_answers_as_python_does():
    """A product may stand for two sizes in its requests; C that does not compile would only be slow, unseen."""
    model = kerncast.open("shipped/reshard_block-wormhole")
    assert model.family.op.products
    assert kerncast.Selector(model, progress=False).is_compiled
    grids = {"in_x": 1, "in_y": 7, "out_x": 2, "out_y": 4, "in_strategy": "block", "out_strategy": "width", "dtype": "bf16"}
    for sizes, status in (({"height_tiles": 56, "width_tiles": 56}, "ok"), ({"tiles": 3136}, "unsupported")):
        request = {"op": "reshard", "device": "wormhole_b0", **grids, **sizes}
        compiled, python = (kerncast.predict(request, model=model, compiled=wanted, progress=False) for wanted in (True, False))
        assert compiled == python
        assert compiled["status"] == status
