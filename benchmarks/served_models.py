"""Estimates of whole models against servers: the time between two tokens of vLLM, SGLang and TensorRT-LLM on six GPUs.

Data: PyPI aiconfigurator-core 0.12.0 (Apache-2.0), systems/silicon_sample.csv (times measured on servers) and model_configs;
put the wheel under KERNCAST_DATA/aiconfigurator (`pip download --no-deps aiconfigurator-core==0.12.0`). Only servers that
prefill and decode on the same GPUs without pipeline or data parallelism, of models that nobody serves with guessed tokens.

A server that takes in new requests while it generates does a prompt's prefill for each answer. Per token that is one step of
decode with the whole batch, and the share of one token in the prefills of the batch: batch · prefill / tokens of the answer.
"""

from __future__ import annotations

import csv
import io
import json
import re
import statistics
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from choosing import data_file
from h100_gemm import WHEEL
from reporting import Benchmark, Row, bootstrap, finish, script_parser

import kerncast
from kerncast.errors import KerncastError

SOURCE = "NVIDIA's AIConfigurator, PyPI aiconfigurator-core 0.12.0, systems/silicon_sample.csv"
BENCHMARK = Benchmark(__file__, "Predicting times, on public data", "Whole models against servers", SOURCE, "Apache-2.0")
# Model → the config in the wheel. DeepSeek and Kimi are left out: some of their servers guess several tokens ahead.
MODELS = {
    "meta-llama/Llama-3.1-70B": "meta-llama--Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama--Meta-Llama-3.1-8B",
    "Qwen/Qwen3-32B": "Qwen--Qwen3-32B",
    "Qwen/Qwen3-235B-A22B-FP8": "Qwen--Qwen3-235B-A22B-FP8",
    "MiniMaxAI/MiniMax-M2.5": "MiniMaxAI--MiniMax-M2.5",
    "openai/gpt-oss-120b": "openai--gpt-oss-120b",
}
# gpt-oss has its own format, whatever the table calls it.
FORMATS = {"fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "": None}
OWN_FORMAT = "openai/gpt-oss-120b"


def served(wheel: zipfile.ZipFile, most: int) -> Iterator[tuple[dict[str, Any], float]]:
    """The arguments of an estimate, and the measured time between tokens in ns; repeats are one, with the median time."""
    (member,) = [name for name in wheel.namelist() if name.endswith("systems/silicon_sample.csv")]
    found: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in csv.DictReader(io.StringIO(wheel.read(member).decode())):
        copies = row["attention_dp_size"] in ("", "0", "1")
        if row["mode"] != "agg" or row["model_path"] not in MODELS or row["pp_size"] != "1" or not copies:
            continue
        if row["model_path"] != OWN_FORMAT and row["gemm_quant_mode"] not in FORMATS:
            continue
        tp, ep = int(row["tp_size"]), max(1, int(row["moe_ep_size"] or 1))
        if ep > tp:
            continue
        dtype = None if row["model_path"] == OWN_FORMAT else FORMATS[row["gemm_quant_mode"]]
        key = (
            row["model_path"],
            row["system"],
            row["backend"],
            dtype,
            tp,
            ep,
            *(int(row[k]) for k in ("batch_size", "isl", "osl")),
        )
        found[key].append(float(row["silicon_tpot_ms"]) * 1e6)
    keys = sorted(found, key=str)
    chosen = keys if len(keys) <= most else [keys[i] for i in np.random.default_rng(0).choice(len(keys), most, replace=False)]
    names = ("model", "device", "software", "dtype", "tp", "ep", "batch", "prompt", "answer")
    for key in chosen:
        yield dict(zip(names, key, strict=True)), statistics.median(found[key])


def time_between_tokens(config: dict[str, Any], asked: dict[str, Any]) -> tuple[float, float, bool]:
    """Estimated time between tokens, the share of it that models answered, and whether the model fits."""
    same = {"device": asked["device"], "dtype": asked["dtype"], "software": asked["software"], "tp": asked["tp"]}
    if asked["ep"] > 1:
        same["ep"] = asked["ep"]
    middle = asked["prompt"] + asked["answer"] // 2
    decode = kerncast.estimate(config, batch=asked["batch"], context=middle, progress=False, **same)
    prefill = kerncast.estimate(config, context=asked["prompt"], phase="prefill", progress=False, **same)
    time = decode.step_ns + asked["batch"] * prefill.step_ns / asked["answer"]
    return time, decode.basis_share.get("model", 0.0), decode.memory.fits is not False


def rows_of(found: list[tuple[dict[str, Any], float, float, float]]) -> list[Row]:
    """Over all, and by server."""
    rows = []
    groups = {"": found} | {
        f", {name}": [item for item in found if item[0]["software"] == name]
        for name in sorted({i[0]["software"] for i in found})
    }
    for name, group in groups.items():
        ratio = np.array([estimated / measured for _, measured, estimated, _ in group])
        error = 100 * np.abs(ratio - 1)
        n, by_model = f"{len(group)} servers", f"{np.mean([share for *_, share in group]):.0%} of the step by models"
        rows.append(Row(f"estimated over measured time, median{name}", float(np.median(ratio)), "", n=n, note=by_model,
                        interval=bootstrap(ratio, np.median)))  # fmt: skip
        rows.append(Row(f"median error{name}", float(np.median(error)), "%", n=n, interval=bootstrap(error, np.median)))
        within = 100.0 * (np.abs(np.log(ratio)) < np.log(1.5))
        rows.append(Row(f"within a factor of 1.5{name}", float(within.mean()), "%", n=n, interval=bootstrap(within)))
    orders = np.array([[np.log(measured), np.log(estimated)] for _, measured, estimated, _ in found])
    ranks = orders.argsort(axis=0).argsort(axis=0)
    rows.append(Row("rank correlation", float(np.corrcoef(ranks.T)[0, 1]), "", n=f"{len(found)} servers"))
    return rows


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--servers", type=int, default=400, metavar="N", help="at most so many, drawn at random [default: 400]")
    parser.add_argument("--list", action="store_true", help="print every server")
    given = parser.parse_args()
    found, left_out = [], 0
    with zipfile.ZipFile(data_file("aiconfigurator", WHEEL, source="PyPI aiconfigurator-core==0.12.0")) as wheel:
        configs = {
            model: json.loads(
                wheel.read(next(n for n in wheel.namelist() if re.search(rf"/{re.escape(file)}_config\.json$", n)))
            )
            for model, file in MODELS.items()
        }
        for asked, measured in served(wheel, given.servers):
            try:
                estimated, by_model, fits = time_between_tokens(configs[asked["model"]], asked)
            except KerncastError:
                left_out += 1  # a division that the model's sizes do not allow
                continue
            if not fits:
                left_out += 1  # the server queues what does not fit
                continue
            found.append((asked, measured, estimated, by_model))
            if given.list:
                print(
                    f"{measured / 1e6:8.2f} ms measured {estimated / 1e6:8.2f} estimated {estimated / measured:5.2f}  {asked}"
                )
    print(f"{left_out} left out: too large for the memory, or not divisible")
    return finish(BENCHMARK, rows_of(found), given.json)


if __name__ == "__main__":
    sys.exit(main())
