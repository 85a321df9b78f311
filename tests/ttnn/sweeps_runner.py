"""A stand-in for tests/sweep_framework/sweeps_runner.py of tt-metal: its arguments, its files and its log, but no card.

A vector's texts are evaluated, as there. Results of a suite are appended to results_export/MODULE.json when the suite is
done. A time follows from the evaluated arguments, so that a test can tell whether they arrived as they were meant.
`SIMULATE` names vectors that go wrong by a part of their shape: `hang=[1,24, crash=[1,32, fail=[1,40,`.
"""

import argparse
import json
import math
import os
import pathlib
import signal
import sys
import time


class Words:
    """Stands for an enumeration: `DataType.BFLOAT16` is its own text."""

    def __init__(self, name):
        self.name = name

    def __getattr__(self, name):
        return f"{self.name}.{name}"


NAMES = {name: Words(name) for name in ("DataType", "Layout", "MathFidelity")}
NAMES["ttnn"] = type("ttnn", (), {"MathFidelity": Words("MathFidelity"), "DataType": Words("DataType")})


def evaluated(value):
    if isinstance(value, dict):
        assert value["type"] == "ttnn._ttnn.tensor.MemoryConfig", value
        return json.loads(value["data"])
    return eval(value, {"__builtins__": {}}, dict(NAMES))


def run(module, given):
    """The time of a vector; its arguments must be those of the module's `run`."""
    own = module.rpartition(".")[2]
    if "paged_sdpa" in own:
        return attention(**given)
    if "create_qkv_heads" in own:
        return heads(**given)
    extra = {"exp": {"use_safe_nums"}, "tanh": {"accuracy"}, "elu": {"alpha"}, "leaky_relu": {"negative_slope"}}.get(own, set())
    plain = own in ("tanh", "concatenate_heads")
    mixed = own in ("hardshrink", "hardtanh")
    names = {
        "input_shape", "output_memory_config", "input_dtype" if plain else "input_a_dtype",
        "input_layout" if plain or mixed else "input_a_layout", "input_memory_config" if plain else "input_a_memory_config",
    }  # fmt: skip
    assert set(given) == names | extra, (own, sorted(given))
    memory = given["input_memory_config" if plain else "input_a_memory_config"]
    dtype = given["input_dtype" if plain else "input_a_dtype"]
    speed = (1 if dtype == "DataType.BFLOAT16" else 2) * (
        1 + memory["buffer_type"] + given["output_memory_config"]["buffer_type"]
    )
    return 1000 + math.prod(given["input_shape"]) / 100 / speed + len(own)


def heads(
    input_shape,
    input_dtype,
    input_layout,
    input_memory_config,
    output_memory_config,
    num_heads,
    num_kv_heads,
    transpose_k_heads,
):
    assert input_memory_config == {"buffer_type": 1, "created_with_nd_shard_spec": False, "memory_layout": 4}
    assert output_memory_config["memory_layout"] == 2
    batch, one, length, size = input_shape
    assert one == 1
    assert type(transpose_k_heads) is bool
    return 2000 + batch * length * size * (num_heads + 2 * num_kv_heads) / 100 + 500 * transpose_k_heads


def attention(
    valid_combination, input_dtype, input_q_memory_config, output_memory_config, math_fidelity, math_approx_mode,
    fp32_dest_acc_en, packer_l1_acc, exp_approx_mode, q_chunk_size, use_sdpa_program_config, use_device_compute_kernel_config,
):  # fmt: skip
    q, k, v, table, mask, positions, causal, k_chunk, scale = valid_combination
    assert k == v
    assert positions == (q[1],) == (table[0],)
    assert scale == q[3] ** 0.5
    assert (mask is None) == causal
    assert math_fidelity.startswith("MathFidelity.")
    flags = (math_approx_mode, fp32_dest_acc_en, packer_l1_acc, exp_approx_mode)
    assert all(type(item) is bool for item in (*flags, causal))
    chosen = (k_chunk + q_chunk_size if use_sdpa_program_config else 7) + 11 * use_device_compute_kernel_config
    placed = input_q_memory_config["memory_layout"] + 10 * output_memory_config["memory_layout"]
    return 3000 + q[1] * q[2] * table[1] * k[2] / 10 + chosen + placed


def troubles():
    return dict(item.split("=") for item in os.environ.get("SIMULATE", "").split() if item)


def suite_results(name, vectors, module, wrong):
    results = []
    for identity, vector in vectors.items():
        print(
            f"2026 | INFO | SWEEPS - Executing test: Module='{module}', Suite='{name}', Vector ID='{identity}'",
            file=sys.stderr,
            flush=True,
        )
        given = dict(vector)
        kept = {
            key: given.pop(key, None) for key in ("sweep_name", "suite_name", "vector_id", "input_hash", "timestamp", "tag")
        }
        status = {key: given.pop(key) for key in ("validity", "invalid_reason", "status")}
        assert kept["input_hash"] == identity, "a vector is stored under its hash"
        mark = str(vector.get("input_shape", vector.get("valid_combination"))).replace(" ", "")
        if wrong.get("hang") and wrong["hang"] in mark:
            time.sleep(1000)
        if wrong.get("crash") and wrong["crash"] in mark:
            os.kill(os.getpid(), signal.SIGSEGV)
        if status["validity"].endswith("INVALID"):
            continue
        result = {key: value for key, value in kept.items() if key in ("sweep_name", "suite_name", "input_hash")} | {
            "vector_id": identity
        }
        took = run(module, {key: evaluated(value) for key, value in given.items()})
        if wrong.get("fail") and wrong["fail"] in mark:
            result |= {"status": "TestStatus.FAIL_L1_OUT_OF_MEM", "exception": "Out of Memory: Not enough space to allocate"}
        else:
            perf = {"DEVICE FW DURATION [ns]": took + 10, "DEVICE KERNEL DURATION [ns]": took, "OP TO OP LATENCY [ns]": 0}
            result |= {"status": "TestStatus.PASS", "message": "1.0", "device_perf": perf}
        results.append(result | {"timestamp": "2026-01-05_10-00-00", "host": "here", "git_hash": "0123abc"})
    return results


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--module-name", required=True)
    parser.add_argument("--vector-source", required=True, choices=["file", "vectors_export"])
    parser.add_argument("--file-path")
    parser.add_argument("--result-dest", required=True, choices=["results_export"])
    parser.add_argument("--device-perf", action="store_true")
    asked = parser.parse_args()
    assert os.environ["ARCH_NAME"] == "wormhole_b0"
    here = pathlib.Path(__file__).parent
    source = asked.file_path or here / "vectors_export" / f"{asked.module_name}.json"
    export = here / "results_export" / f"{asked.module_name}.json"
    export.parent.mkdir(exist_ok=True)
    for name, vectors in json.loads(pathlib.Path(source).read_text()).items():
        found = suite_results(name, vectors, asked.module_name, troubles())
        old = json.loads(export.read_text()) if export.exists() else []
        export.write_text(json.dumps(old + found, indent=2))


main()
